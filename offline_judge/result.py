"""What `evaluate` returns: a view of the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_judge.errors import UserError
from offline_judge.run_folder import RunFolder
from offline_judge.tables import summary_text


class Result:
    """Scores, summary and evidence of one run, read from its folder as they are asked for."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Open a finished run.

        Raises:
            UserError: where the folder is no finished run.
        """
        return cls(RunFolder(Path(folder)))

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._run.folder

    @property
    def record(self) -> dict[str, Any]:
        """The run record: configuration, versions, models, tokens and seconds."""
        return self._run.record

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """By metric: `mean`, `soft_mean`, `n_scored`, `n` and the counts of reason codes `unscored`."""
        found: dict[str, dict[str, Any]] = self._run.record["summary"]
        return found

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics, in the order in which they were asked for."""
        return list(self.summary)

    def __getitem__(self, metric: str) -> list[float | None]:
        """Scores of one metric in the order of the rows; None where a row is unscored.

        Raises:
            KeyError: where the run has no such metric.
        """
        self._require(metric)
        return self._run.table().column(metric).to_pylist()  # type: ignore[no-any-return]

    def soft(self, metric: str) -> list[float | None]:
        """Soft scores of one metric: the same formula over probabilities instead of verdicts."""
        self._require(metric)
        return self._run.table().column(f"{metric}.soft").to_pylist()  # type: ignore[no-any-return]

    def to_pandas(self) -> Any:
        """One row per row: `id`, a column per metric, and its `.soft`, `.unscored` and `.flags`.

        Columns that are empty in every row are left out, except the scores themselves.

        Raises:
            UserError: where pandas is not installed.
        """
        try:
            import pandas  # noqa: F401 - asked for by name so that the error can say so
        except ImportError as error:
            raise UserError(
                "to_pandas needs pandas", {"to fix": "pip install 'offline-judge[pandas]'"}
            ) from error
        table = self._run.table()
        scores = {"id", *self.metrics}
        kept = [
            name
            for name in table.column_names
            if name in scores or table.column(name).null_count < table.num_rows
        ]
        return table.select(kept).to_pandas()

    def evidence(self, row_id: str) -> dict[str, dict[str, Any]]:
        """By metric: what the score of one row was computed from.

        Raises:
            KeyError: where the run has no such row.
        """
        found = {line["metric"]: line for line in self._run.evidence(row_id)}
        if not found:
            raise KeyError(f"no row {row_id!r} in {self.folder}")
        return found

    def worst(self) -> str | None:
        """Id of the row with the lowest mean score; None where no row has a score.

        A metric of which lower is better counts as 1 - score.
        """
        lower = {label for label, one in self.record["metrics"].items() if one["better"] == "lower"}
        worst: tuple[float, str] | None = None
        for line in self._run.scores():
            scores = [
                1 - value if label in lower else value
                for label, value in line["scores"].items()
                if value is not None
            ]
            if scores and (worst is None or sum(scores) / len(scores) < worst[0]):
                worst = sum(scores) / len(scores), line["id"]
        return worst[1] if worst else None

    def largest_unscored_share(self) -> float:
        """Largest share of unscored rows over the metrics, in [0, 1].

        Where the run was asked to do without a judge, rows that need one don't count.
        """
        expected = "needs_judge" if self.record["config"].get("judge") == "none" else ""
        return max(
            (
                (one["n"] - one["n_scored"] - one["unscored"].get(expected, 0)) / one["n"]
                for one in self.summary.values()
                if one["n"]
            ),
            default=0.0,
        )

    def _require(self, metric: str) -> None:
        if metric not in self.summary:
            raise KeyError(f"no metric {metric!r} in this run; it has {', '.join(self.metrics)}")

    def __str__(self) -> str:
        """Return the summary table as text."""
        return summary_text(self.record)

    def __repr__(self) -> str:
        """Name the run folder."""
        return f"Result({str(self.folder)!r})"
