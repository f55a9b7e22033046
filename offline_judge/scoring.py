"""From evidence to scores: whole batches of rows, hard and soft, without asking any model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offline_judge.engine.asks import Evidence, Reason, Unscored
from offline_judge.metrics.registry import Metric
from offline_judge.numeric import Padded, pad
from offline_judge.run_folder import Outcome

#: Where a metric with probabilities has no threshold of its own.
_THRESHOLD = 0.5


class Score(NamedTuple):
    """One row's score; `soft` is None where the metric has no probabilities."""

    hard: float
    soft: float | None


def score_batch(metric: Metric, evidence: Sequence[Evidence]) -> list[Score]:
    """Score the evidence of many rows at once.

    Values named `p_…` are probabilities. For the hard score each becomes the verdict
    V = [p >= threshold]; the soft score is the same formula with p in place of V.
    """
    if not evidence:
        return []
    padded = {name: _pad([one.values[name] for one in evidence]) for name in evidence[0].values}
    threshold = getattr(metric, "threshold", _THRESHOLD)
    verdicts = {
        name: Padded((values >= threshold).to(values.dtype), mask)
        if name.startswith("p_")
        else Padded(values, mask)
        for name, (values, mask) in padded.items()
    }
    hard = metric.score(**verdicts).tolist()
    if not any(name.startswith("p_") for name in padded):
        return [Score(value, None) for value in hard]
    soft = metric.score(**padded).tolist()
    return [Score(*pair) for pair in zip(hard, soft, strict=True)]


def score_rows(
    metric: Metric,
    label: str,
    row_ids: Sequence[str],
    found: Sequence[Evidence | Unscored],
    reasons: Sequence[Mapping[tuple[str, str], Reason]],
) -> list[Outcome]:
    """Turn what was found of each row into its outcome; a formula that gives NaN is `undefined`."""
    scores = iter(score_batch(metric, [one for one in found if isinstance(one, Evidence)]))
    outcomes = []
    for row_id, one, why in zip(row_ids, found, reasons, strict=True):
        if isinstance(one, Unscored):
            outcomes.append(Outcome(row_id, label, unscored=one.reason))
            continue
        hard, soft = next(scores)
        if math.isnan(hard):
            outcomes.append(Outcome(row_id, label, one, unscored="undefined", reasons=why))
        else:
            outcomes.append(Outcome(row_id, label, one, hard, soft, reasons=why))
    return outcomes


def _pad(rows: Sequence[Any]) -> Padded:
    return pad(rows, ndim=max(_rank(row) for row in rows))


def _rank(value: Any) -> int:
    """0 for a number, 1 for a list of numbers, 2 for a list of lists (an empty list is 1)."""
    if not isinstance(value, list | tuple):
        return 0
    return 1 + max((_rank(item) for item in value[:1]), default=0)
