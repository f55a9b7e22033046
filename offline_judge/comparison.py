"""`compare`: two runs side by side, row by row; or the reason why their scores do not compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from offline_judge.calibration.figures import Interval, with_interval
from offline_judge.errors import UserError
from offline_judge.run_folder import RunFolder

#: Settings of a run, besides its models, that change what is asked or how an answer is read.
_SETTINGS = (
    "claims",
    "language",
    "seed",
    "thinking",
    "thinking_tokens",
    "cascade_low",
    "cascade_high",
)
_SHOWN = 6

_Scores: TypeAlias = Mapping[str, float | None]


class Compared(NamedTuple):
    """One metric in two runs, on the rows that both scored.

    `difference` is the mean of second - first over those rows, with its 95 % bootstrap interval over rows.
    `n_better` and `n_worse` count the rows that the second run scored better and worse, by what is better
    for this metric ("higher" or "lower"); `n_rows` are the rows that both runs hold.
    """

    metric: str
    better: str
    first: float
    second: float
    difference: Interval
    n_better: int
    n_worse: int
    n_scored: int
    n_rows: int


def compare(first: str | Path, second: str | Path, *, seed: int = 0) -> list[Compared]:
    """Compare the hard scores of two finished runs, metric by metric; rows are matched by their ids.

    Args:
        first: folder of a run.
        second: folder of a run with the same models, prompts and settings, of another system's rows.
        seed: of the intervals.

    Returns:
        The metrics that both runs hold and that scored at least one row in both, in the first run's order.

    Raises:
        UserError: where a formula's version, its settings, a prompt, a model or a calibration differs, or
            the runs share no row or no metric: scores then do not compare.
    """
    runs = [RunFolder(Path(folder)) for folder in (first, second)]
    one, other = (run.record for run in runs)
    shared = [label for label in one["metrics"] if label in other["metrics"]]
    if not shared:
        held = {"first": ", ".join(one["metrics"]), "second": ", ".join(other["metrics"])}
        raise UserError("the two runs share no metric", held)
    mixed = list(_mixed(one, other, shared))
    if mixed:
        more = {"and": f"{len(mixed) - _SHOWN} more"} if len(mixed) > _SHOWN else {}
        raise UserError(
            "the two runs were not scored in the same way, so their scores do not compare",
            {
                **{
                    name: f"{here} in the first, {there} in the second"
                    for name, here, there in mixed[:_SHOWN]
                },
                **more,
                "to fix": "evaluate the rows of one of them again as the other was",
            },
        )
    ours, theirs = ({line["id"]: line["scores"] for line in run.scores()} for run in runs)
    pairs = [(scores, theirs[row_id]) for row_id, scores in ours.items() if row_id in theirs]
    if not pairs:
        raise UserError(
            "the two runs share no row",
            {"rows": f"{len(ours)} and {len(theirs)}", "to fix": "give equal questions equal ids"},
        )
    found = [_compared(label, one["metrics"][label]["better"], pairs, seed) for label in shared]
    return [compared for compared in found if compared is not None]


def _mixed(
    first: Mapping[str, Any], second: Mapping[str, Any], shared: list[str]
) -> Iterator[tuple[str, str, str]]:
    """What differs between two records and must not: (name, in the first, in the second)."""
    for label in shared:
        one, other = first["metrics"][label], second["metrics"][label]
        if one["version"] != other["version"]:
            yield f"formula of {label}", f"version {one['version']}", f"version {other['version']}"
        elif one["settings"] != other["settings"]:
            names = [name for name in one["settings"] if one["settings"][name] != other["settings"].get(name)]
            for name in names:
                yield f"{label}.{name}", repr(one["settings"][name]), repr(other["settings"].get(name))
    for prompt, languages in first.get("prompts", {}).items():
        for language, version in languages.items():
            found = second.get("prompts", {}).get(prompt, {}).get(language, version)
            if found != version:
                yield f"prompt {prompt}, {language}", version, found
    for role in sorted({*first["models"], *second["models"]}):
        one, other = first["models"].get(role), second["models"].get(role)
        if one is None or other is None or one["fingerprint"] != other["fingerprint"]:
            yield role, _named(one), _named(other)
    for name in _SETTINGS:
        one, other = first["config"].get(name), second["config"].get(name)
        if one != other:
            yield name, repr(one), repr(other)
    one, other = (record.get("calibrations", {}) for record in (first, second))
    if one != other:
        yield "calibrations", ", ".join(one) or "none", ", ".join(other) or "none"


def _named(model: Mapping[str, Any] | None) -> str:
    return "none" if model is None else f"{model['name']} ({model['fingerprint'][:8]})"


def _compared(label: str, better: str, rows: Sequence[tuple[_Scores, _Scores]], seed: int) -> Compared | None:
    pairs = [(first[label], second[label]) for first, second in rows]
    known = np.array([pair for pair in pairs if None not in pair], float).reshape(-1, 2)
    if not len(known):
        return None
    first, second = known.T
    differences = second - first
    gains = differences if better == "higher" else -differences
    return Compared(
        metric=label,
        better=better,
        first=float(first.mean()),
        second=float(second.mean()),
        difference=with_interval(
            lambda weights: weights @ differences / weights.sum(axis=1),
            [str(row) for row in range(len(known))],
            np.random.default_rng(seed),
        ),
        n_better=int((gains > 0).sum()),
        n_worse=int((gains < 0).sum()),
        n_scored=len(known),
        n_rows=len(rows),
    )
