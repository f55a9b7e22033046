"""The two classes of error: what the user can fix, and everything else (a bug, with a traceback)."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path


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


def where(error: BaseException) -> str:
    """Name an error by its class and line: its message may quote a row."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{type(error).__name__}@{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        if frames
        else type(error).__name__
    )


def without_messages(error: BaseException) -> str:
    """Write the traceback of a bug with the lines of code and the classes of the errors alone.

    The messages of errors are left out: those of a library may quote what it was given, a row.
    """
    parts = []
    for one in _chain(error):
        parts.append("Traceback (most recent call last):\n")
        parts += traceback.format_tb(one.__traceback__)
        parts.append(f"{type(one).__name__}: (its message is left out, since it may quote a row)\n\n")
    return "".join(parts).rstrip()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Errors from the first cause to the last, each once."""
    found: dict[int, BaseException] = {}
    while error is not None and id(error) not in found:
        found[id(error)] = error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    yield from reversed(found.values())
