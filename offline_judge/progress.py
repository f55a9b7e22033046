"""The progress bar of the command line: rows, asks, tokens, time left. Quiet where nobody watches."""

from __future__ import annotations

import os
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from offline_judge.evaluation import RowProgress


class TerminalProgress(RowProgress):
    """Two bars on standard error: the rows of the run, and the asks of the current round.

    Shows nothing where standard error is no terminal. It is told counts, never texts.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description:<5}"),
            BarColumn(),
            TextColumn("{task.completed:,} of {task.total:,}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._rows = self._bars.add_task("rows", total=0, note="")
        self._asks = self._bars.add_task("asks", total=0, note="")
        self._n_tokens = 0

    def __enter__(self) -> TerminalProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def start(self, n_rows: int) -> None:
        """Show how many rows there are."""
        self._bars.update(self._rows, total=n_rows)

    def rows_done(self, n_rows: int) -> None:
        """Move the bar of rows."""
        self._bars.advance(self._rows, n_rows)

    def stopping(self) -> None:
        """Say that the first Ctrl-C was seen. Written past the bars, whose lock the main thread may hold."""
        os.write(2, b"\nstopping after the batch under way; once more to stop now\n")

    def round(self, n_asks: int) -> None:
        """Begin a new bar of asks."""
        self._bars.reset(self._asks, total=n_asks, note=self._note())

    def answered(self, n_asks: int, n_tokens: int) -> None:
        """Move the bar of asks."""
        self._n_tokens += n_tokens
        self._bars.update(self._asks, advance=n_asks, note=self._note())

    def _note(self) -> str:
        return f"{self._n_tokens:,} tokens"
