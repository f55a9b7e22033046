"""What all metrics need to know of one row, and the reasons for what failed."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from offline_judge.config import Config
from offline_judge.engine.asks import (
    Check,
    Evidence,
    Gather,
    Gathered,
    Probability,
    Reason,
    Reasons,
    Source,
    Unscored,
    flat,
)
from offline_judge.metrics.registry import Metric
from offline_judge.schema import Row, ScorableRow
from offline_judge.text import prompt_language, prompt_language_named

#: Below this probability a supported claim is unsure enough for a written reason.
UNSURE_BELOW = 0.75

#: The flag of a row with a text that moves the judge whatever it is asked, and from which excess over
#: ordinary doubt on it is set. At 2.25 (Qwen2.5-Coder-1.5B: a control of 0.2) that is 4 of 302 rows of texts
#: that people wrote, and 244 of 414 with an attack in the chunk (benchmarks/RESULTS.md).
STEERING_TEXT = "steering_text"
_STEERED = 2.25
#: So many of the rows that have it are named in a run's notes.
_NAMED_ROWS = 5


def gather_row(
    row: Row, metrics: Mapping[str, Metric], reasons: str
) -> Generator[Sequence[Any], list[Any], tuple[list[Evidence | Unscored], dict[tuple[str, str], Reason]]]:
    """Gather what all metrics need to know of one row, then the reasons for what failed."""
    results: list[Evidence | Unscored | None] = []
    gathering: list[Gathered] = []
    for label, metric in metrics.items():
        absent = next((column for column in metric.needs if row.missing(column)), None)
        results.append(Unscored(f"missing_{absent}") if absent else None)
        if not absent:
            gathering.append(Gathered(_gather(metric, row), label))
    answers = iter((yield gathering))
    complete = [next(answers) if result is None else result for result in results]

    checks: dict[tuple[Source, str], None] = {}
    for metric, result in zip(metrics.values(), complete, strict=True):
        if isinstance(result, Evidence):
            for one in result.checks:
                if _wants_reason(one, metric, reasons):
                    checks[one.source, one.claim] = None
    if not checks:
        return complete, {}
    (written,) = yield [Reasons(tuple(checks), row.context, row.reference or "", row.response or "")]
    if not isinstance(written, tuple):
        return complete, {}
    return complete, {check: reason for check, reason in zip(checks, written, strict=True) if reason}


def _gather(metric: Metric, row: Row) -> Gather:
    """Let a metric gather; what it does wrong when it is called, or gives back, is that row's reason."""
    found = yield from metric.gather(cast(ScorableRow, row))
    if isinstance(found, Unscored):
        return found
    if not isinstance(found, Evidence):
        return Unscored("metric_error:no_evidence")
    numbers = (number for value in found.values.values() for number in flat(value))
    steered = any(isinstance(number, Probability) and number.excess >= _STEERED for number in numbers)
    return replace(found, flags=(*found.flags, STEERING_TEXT)) if steered else found


@dataclass
class SteeredRows:
    """How many rows of a run have the flag `STEERING_TEXT`, and which come first."""

    n: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, row_id: str, found: Iterable[Evidence | None]) -> None:
        """Count a row by what its metrics found."""
        if any(one is not None and STEERING_TEXT in one.flags for one in found):
            self.n += 1
            if self.n <= _NAMED_ROWS:
                self.first.append(row_id)

    def notes(self) -> list[str]:
        """Say which rows to look at, where there are any."""
        if not self.n:
            return []
        named = ", ".join(self.first) + (", …" if self.n > len(self.first) else "")
        return [
            f"{self.n} with a text that moves the judge whatever it is asked ({STEERING_TEXT}): {named}. "
            "What the text alone does is taken off their verdicts; look at them before you trust them"
        ]


def _wants_reason(check: Check, metric: Metric, reasons: str) -> bool:
    if reasons != "failed":
        return reasons == "all"
    return check.p < max(getattr(metric, "threshold", 0.5), UNSURE_BELOW)


def language_of(row: Row, config: Config) -> str:
    """Return the language of the prompts for a row: as configured, as the row says, or as it reads."""
    if config.language != "auto":
        return config.language
    if row.language:
        return prompt_language_named(row.language)
    return prompt_language(" ".join(filter(None, (row.user_input, row.response))) or row.context)
