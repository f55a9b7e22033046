"""The edges that several metrics share, and small pieces of their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from offline_judge.engine.asks import Check, Source, Unscored
from offline_judge.schema import ScorableRow

_T = TypeVar("_T")

NO_CLAIMS = Unscored("no_claims")
NO_REFERENCE_CLAIMS = Unscored("no_reference_claims")


def no_contexts(row: ScorableRow) -> tuple[str, ...]:
    """Return the flag of a row for which nothing was retrieved (no chunk, or only blank ones)."""
    return () if row.context else ("no_contexts",)


def blank(text: str | None) -> bool:
    """Whether a text is missing or holds nothing but white space."""
    return not (text or "").strip()


def checks(source: Source, claims: Sequence[str], p: Sequence[float]) -> tuple[Check, ...]:
    """Pair claims with the source that they were checked against, for the written reasons."""
    return tuple(Check(source, claim, probability) for claim, probability in zip(claims, p, strict=True))


def grid(answers: Sequence[_T], n_rows: int, n_columns: int) -> list[Sequence[_T]]:
    """Cut a list of answers, row by row, into a matrix of `n_rows` and `n_columns`."""
    return [answers[row * n_columns : (row + 1) * n_columns] for row in range(n_rows)]
