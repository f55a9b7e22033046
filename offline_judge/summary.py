"""The summary of a run: for each metric its mean, and how many of how many rows it stands on."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class MetricSummary:
    """Totals of one metric. Only numbers are kept: 16 bytes a row.

    Means are of the scored rows alone, exactly rounded and so independent of windows and order;
    None where there is no score. `unscored` counts the reason codes.
    """

    n: int = 0
    unscored: Counter[str] = field(default_factory=Counter)
    _hard: array[float] = field(default_factory=lambda: array("d"))
    _soft: array[float] = field(default_factory=lambda: array("d"))

    def add(self, score: float | None, soft: float | None, unscored: str | None) -> None:
        """Count one row."""
        self.n += 1
        if score is None:
            self.unscored[unscored or "unknown"] += 1
            return
        self._hard.append(score)
        if soft is not None:
            self._soft.append(soft)

    @property
    def n_scored(self) -> int:
        """Rows that have a score."""
        return len(self._hard)

    @property
    def mean(self) -> float | None:
        """Mean of the hard scores of the scored rows."""
        return _mean(self._hard)

    @property
    def soft(self) -> float | None:
        """Mean of the soft scores of the scored rows."""
        return _mean(self._soft)

    @property
    def unscored_share(self) -> float:
        """Share of the rows without a score, in [0, 1]."""
        return 1 - self.n_scored / self.n if self.n else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return what the run record keeps."""
        return {
            "mean": self.mean,
            "soft_mean": self.soft,
            "n_scored": self.n_scored,
            "n": self.n,
            "unscored": dict(self.unscored.most_common()),
        }


def _mean(values: array[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def summary_rows(summary: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str, str, str]]:
    """Lines of the summary table: metric, mean, soft mean, "n of n", reason codes with counts."""
    return [
        (
            label,
            _number(one["mean"]),
            _number(one["soft_mean"]),
            f"{one['n_scored']} of {one['n']}",
            ", ".join(f"{reason} {count}" for reason, count in one["unscored"].items()),
        )
        for label, one in summary.items()
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
