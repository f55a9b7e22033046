"""What an answer store holds, and how it is made smaller."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from offline_judge.engine.store import connect, is_damage
from offline_judge.errors import UserError


@dataclass(frozen=True)
class ModelShare:
    """Answers of one model: `first` and `last` are when runs that asked it began, in seconds of Unix time."""

    model: str
    fingerprint: str
    n_answers: int
    n_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class StoreContents:
    """Sizes of a store.

    Attributes:
        n_bytes: on disk, the journal included.
        problem: what SQLite's own check finds wrong; "" where it finds nothing.
        set_aside: damaged files whose place this one took.
    """

    path: Path
    n_bytes: int
    n_answers: int
    models: tuple[ModelShare, ...]
    problem: str
    set_aside: tuple[Path, ...]


def contents(path: Path) -> StoreContents:
    """Count what a store holds, and check its file.

    Raises:
        UserError: where there is no such file, or it is no store.
    """
    with _opened(path) as db:
        (checked,) = db.execute("PRAGMA quick_check(1)").fetchone()
        found = db.execute(
            "SELECT model, fingerprint, SUM(n), SUM(size), MIN(started), MAX(started) FROM origins JOIN"
            " (SELECT origin, COUNT(*) AS n, SUM(LENGTH(answer)) AS size FROM answers GROUP BY origin)"
            " ON id = origin GROUP BY model, fingerprint ORDER BY SUM(n) DESC"
        ).fetchall()
        models = tuple(
            ModelShare(model.decode(), fingerprint.decode(), *numbers)
            for model, fingerprint, *numbers in found
        )
        return StoreContents(
            path=path,
            n_bytes=_n_bytes(path),
            n_answers=sum(one.n_answers for one in models),
            models=models,
            problem="" if checked == b"ok" else checked.decode(errors="replace"),
            set_aside=tuple(
                sorted(
                    found
                    for found in path.parent.glob(f"{path.name}.damaged-*")
                    if not found.name.endswith(("-wal", "-shm"))
                )
            ),
        )


def prune(
    path: Path, *, older_than_s: float | None = None, model: str | None = None, max_bytes: int | None = None
) -> int:
    """Delete answers from a store, give their space back to the disk, and return how many were deleted.

    Runs that use the store meanwhile go on; what they find missing they ask again.

    Args:
        path: file of the store.
        older_than_s: delete answers of runs that began longer ago than this, in seconds.
        model: delete answers of this model: its name, or the beginning (8 digits or more) of its fingerprint.
        max_bytes: then delete the oldest until the file is no larger.

    Raises:
        UserError: where there is no such file, it is no store, or it can't be written.
    """
    with _opened(path) as db:
        before = _count(db)
        if older_than_s is not None:
            _delete(db, "origin IN (SELECT id FROM origins WHERE started < ?)", time.time() - older_than_s)
        if model is not None:
            is_fingerprint = "length(?1) >= 8 AND substr(fingerprint, 1, length(?1)) = ?1"
            _delete(db, f"origin IN (SELECT id FROM origins WHERE model = ?1 OR ({is_fingerprint}))", model)
        _give_back(db)
        while max_bytes is not None and (n_bytes := _database_bytes(db)) > max_bytes and (n := _count(db)):
            # Answers are of different sizes, so the first cut may fall short of the mark, or a little over.
            n_surplus = min(n, 1 + int(n * (1 - max_bytes / n_bytes)))
            _delete(db, "rowid IN (SELECT rowid FROM answers ORDER BY rowid LIMIT ?)", n_surplus)
            _give_back(db)
        return before - _count(db)


def _delete(db: sqlite3.Connection, where: str, value: object) -> None:
    db.execute(f"DELETE FROM answers WHERE {where}", (value,))


def _give_back(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM origins WHERE id NOT IN (SELECT DISTINCT origin FROM answers)")
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _count(db: sqlite3.Connection) -> int:
    (n,) = db.execute("SELECT COUNT(*) FROM answers").fetchone()
    return int(n)


def _database_bytes(db: sqlite3.Connection) -> int:
    ((n_pages,), (page_bytes,)) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
    )
    return int(n_pages * page_bytes)


def _n_bytes(path: Path) -> int:
    parts = (path.with_name(path.name + suffix) for suffix in ("", "-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise UserError(
            "there is no answer store",
            {"looked for": str(path), "to fix": "name the file with --store, or its folder with --out"},
        )
    try:
        db = connect(str(path))
        try:
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        details = {"file": str(path), "found": str(error)}
        if is_damage(error):
            details["to fix"] = "nothing: the next run sets the file aside and begins a new one"
        raise UserError("the answer store can't be read or written", details) from error
