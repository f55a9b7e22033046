"""Files and folders that their owner alone can read: they quote the rows.

Modes are those of POSIX; on other systems the folder's own rules hold.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

try:
    import fcntl
except ImportError:  # pragma: no cover - not on POSIX
    fcntl = None  # type: ignore[assignment]


def make_private_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, each 0700; one that exists keeps its mode."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def create_private_file(path: Path) -> TextIO:
    """Open a new file, or an emptied one, for UTF-8 text. A new one is 0600 from its first moment."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")  # noqa: PTH123


def flush_to_disk(path: Path) -> None:
    """Wait until a file or the entries of a folder would survive a loss of power."""
    if os.name != "posix":  # pragma: no cover - where a folder can't be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder against other processes that ask for it here; the lock dies with its process.

    Where the system has no such locks, nothing is held.

    Raises:
        BlockingIOError: with `wait` False, where another process holds it.
    """
    if fcntl is None:  # pragma: no cover
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
