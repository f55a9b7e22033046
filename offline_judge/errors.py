"""The two classes of error: what the user can fix, and everything else (a bug, with a traceback)."""

from __future__ import annotations

from collections.abc import Mapping


class UserError(Exception):
    """Something the user can fix: printed without a traceback, exit status 2.

    The message says what is wrong in one line. `details` are label and text pairs printed
    below it (what was looked for, what was found, the fix). Neither ever holds row text:
    rows are private, so messages quote ids, line numbers, column names, counts and types.
    """

    def __init__(self, message: str, details: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = dict(details or {})

    def __str__(self) -> str:
        """Return the message with its details, one a line, labels aligned."""
        width = max((len(label) for label in self.details), default=0)
        lines = [self.message]
        lines += [f"  {label:<{width}}  {text}" for label, text in self.details.items()]
        return "\n".join(lines)


class Stopped(KeyboardInterrupt):
    """The user asked a run to stop, and it did so in order: every answer that was known is in the store.

    A KeyboardInterrupt, so that nothing which handles errors row by row takes it for one.

    Attributes:
        signal: number of the signal that asked for it; 0 where it was not a signal.
    """

    def __init__(self, message: str = "stopped", signal: int = 0) -> None:
        super().__init__(message)
        self.signal = signal
