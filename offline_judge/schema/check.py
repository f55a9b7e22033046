"""Before any model is loaded: which metric can score how many rows, and what the others lack."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from offline_judge.errors import UserError
from offline_judge.schema.columns import ALIASES, COLUMNS, list_columns
from offline_judge.schema.reader import shown
from offline_judge.schema.row import Row
from offline_judge.schema.source import RowSource

_N_FIRST_IDS = 3


@dataclass(frozen=True, slots=True)
class Gap:
    """A column that some rows lack: how many, and the ids of the first three."""

    column: str
    n_rows: int
    first_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricCoverage:
    """How many rows have all that one metric needs, and what the others lack."""

    metric: str
    needs: tuple[str, ...]
    n_scorable: int
    gaps: tuple[Gap, ...]
    #: What stops every row whatever columns it has, such as a model that is not there.
    unanswered: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a data set allows each metric to score."""

    n_rows: int
    metrics: tuple[MetricCoverage, ...]
    #: Columns of the data, by the data's own names.
    columns: tuple[str, ...]
    #: True where the user named the metrics, so that one which can't be scored is an error.
    requested: bool

    def table(self) -> list[tuple[str, str, str]]:
        """One (metric, "n of n", what stops the rest) each; the last is "" where nothing does."""
        return [
            (
                metric.metric,
                f"{0 if metric.unanswered else metric.n_scorable} of {self.n_rows}",
                "; ".join(filter(None, (metric.unanswered, *map(self._describe, metric.gaps)))),
            )
            for metric in self.metrics
        ]

    def without(self, metrics: Collection[str], why: str) -> Coverage:
        """Return the table with some metrics marked as unanswered; their rows will be unscored."""
        marked = [replace(one, unanswered=why) if one.metric in metrics else one for one in self.metrics]
        return replace(self, metrics=tuple(marked))

    def stopped(self) -> tuple[str, ...]:
        """Names of the metrics that can't be scored for any row."""
        return tuple(metric.metric for metric in self.metrics if not metric.n_scorable)

    def raise_if_stopped(self) -> None:
        """Stop where scoring would be in vain: for a requested metric, or else for all metrics.

        Raises:
            UserError: with a line for each such metric, the columns that the data has, and the fix.
        """
        stopped = [metric for metric in self.metrics if not metric.n_scorable]
        if not stopped or (not self.requested and len(stopped) < len(self.metrics)):
            return
        lines = {metric.metric: self._why_stopped(metric) for metric in stopped}
        lacking = {gap.column: None for metric in stopped for gap in metric.gaps if gap.n_rows == self.n_rows}
        fixes = [f"--map {column}={self._likely_name(column)}" for column in lacking]
        fixes.append(f"leave out {', '.join(lines)}")
        count = "1 metric" if len(stopped) == 1 else f"{len(stopped)} metrics"
        raise UserError(
            f"{count} can't be scored for any of {self.n_rows} rows",
            {**lines, "data has": list_columns(self.columns), "to fix": ", or ".join(fixes)},
        )

    def _describe(self, gap: Gap) -> str:
        if gap.n_rows == self.n_rows:
            return f"{gap.column} missing in every row"
        more = ", …" if gap.n_rows > len(gap.first_ids) else ""
        return f"{gap.column} missing in {gap.n_rows}: {', '.join(map(shown, gap.first_ids))}{more}"

    def _why_stopped(self, metric: MetricCoverage) -> str:
        columns = [gap.column for gap in metric.gaps if gap.n_rows == self.n_rows]
        if columns:
            return f"no row has {' or '.join(columns)}"
        return f"no row has all of {', '.join(metric.needs)}"

    def _likely_name(self, column: str) -> str:
        """A column of the data that is misspelt ours, or a stand-in."""
        unknown = [name for name in self.columns if name not in COLUMNS and name not in ALIASES]
        near = difflib.get_close_matches(column, unknown, n=1)
        return near[0] if near else "YOUR_COLUMN"


def check(rows: Iterable[Row], needs: Mapping[str, Sequence[str]], *, requested: bool) -> Coverage:
    """Count, in one pass, which rows have what each metric needs.

    Args:
        rows: the data set.
        needs: metric name to the columns that it reads.
        requested: whether the user named these metrics, or they are the default set.

    Raises:
        UserError: there are no rows, or what reading them raises.
    """
    columns = tuple(dict.fromkeys(column for needed in needs.values() for column in needed))
    patterns: Counter[tuple[str, ...]] = Counter()
    first_ids: dict[str, list[str]] = {column: [] for column in columns}
    present: set[str] = set()
    for row in rows:
        missing = tuple(column for column in columns if row.missing(column))
        patterns[missing] += 1
        for column in missing:
            if len(first_ids[column]) < _N_FIRST_IDS:
                first_ids[column].append(row.id)
        if len(present) < len(COLUMNS):
            present.update(column for column in COLUMNS if not row.missing(column))
    n_rows = sum(patterns.values())
    if not n_rows:
        raise UserError("there are no rows to score", {"to fix": "give data with at least one row"})

    def coverage(metric: str, needed: Sequence[str]) -> MetricCoverage:
        gaps = []
        for column in needed:
            n_missing = sum(n for missing, n in patterns.items() if column in missing)
            if n_missing:
                gaps.append(Gap(column, n_missing, tuple(first_ids[column])))
        n_scorable = sum(n for missing, n in patterns.items() if not set(missing) & set(needed))
        return MetricCoverage(metric, tuple(needed), n_scorable, tuple(gaps))

    return Coverage(
        n_rows=n_rows,
        metrics=tuple(coverage(metric, needed) for metric, needed in needs.items()),
        columns=rows.columns if isinstance(rows, RowSource) else tuple(c for c in COLUMNS if c in present),
        requested=requested,
    )
