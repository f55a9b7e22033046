"""Notices that a file changed between or during the passes over it: its rows would not be those checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from offline_judge.errors import UserError


class _State(NamedTuple):
    n_bytes: int
    mtime_ns: int
    inode: int


class Unchanged:
    """Holds what the files of a data set looked like when they were first read."""

    def __init__(self, label: str, files: Sequence[Path]) -> None:
        self._label = label
        self._files = files
        self._first: list[_State] | None = None

    def check(self) -> None:
        """Compare the files with how they were at the first call.

        Raises:
            UserError: one of them grew, was written anew, or is gone.
        """
        try:
            now = [_state(path) for path in self._files]
        except OSError as error:
            raise self._changed(error.strerror or type(error).__name__) from None
        if self._first is None:
            self._first = now
        for before, after in zip(self._first, now, strict=True):
            if before.n_bytes != after.n_bytes:
                raise self._changed(f"{before.n_bytes:,} bytes at first, {after.n_bytes:,} now")
            if before != after:
                raise self._changed(f"written anew, {after.n_bytes:,} bytes as before")

    def _changed(self, found: str) -> UserError:
        return UserError(
            f"{self._label} changed while it was read",
            {
                "found": found,
                "to fix": "give the same command again when the file is whole, or evaluate a copy of it",
            },
        )


def _state(path: Path) -> _State:
    stat = path.stat()
    return _State(stat.st_size, stat.st_mtime_ns, stat.st_ino)
