"""The answer store: every answer is in SQLite as soon as it is known, so a killed run loses nothing.

A key is the hash of everything that could change the answer. Values are JSON text: never pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offline_judge.errors import UserError

_COMMIT_EVERY_S = 0.05
_LOOKUP_BATCH = 900  # SQLite allows 999 parameters in its oldest builds.
_FORMAT = 1


def key_of(*parts: str) -> bytes:
    """Hash parts to 16 bytes. Each part is length-prefixed, so no two lists of parts collide by joining."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    return digest.digest()


class Store:
    """Answers by key, in one SQLite file that several runs may share at once.

    With `path` None the answers live in memory for as long as the store does.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)  # answers quote the rows
        self._db = sqlite3.connect(path or ":memory:", timeout=60, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS answers"
                " (key BLOB PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
            )
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found == 0:
                self._db.execute(f"PRAGMA user_version={_FORMAT}")
        except sqlite3.DatabaseError as error:
            raise UserError(
                "the answer store can't be read",
                {
                    "file": str(path),
                    "found": str(error),
                    "to fix": "move the file away, or name another with --store",
                },
            ) from error
        if found not in (0, _FORMAT):
            raise UserError(
                "the answer store was written by another version",
                {"file": str(path), "found": f"format {found}", "to fix": "name another file with --store"},
            )
        self._unwritten: list[tuple[bytes, str]] = []
        self._committed_at = time.monotonic()

    def get(self, keys: Iterable[bytes]) -> dict[bytes, Any]:
        """Look up many keys; those that are not there are left out."""
        wanted = list(keys)
        found: dict[bytes, Any] = {}
        for start in range(0, len(wanted), _LOOKUP_BATCH):
            batch = wanted[start : start + _LOOKUP_BATCH]
            marks = ",".join("?" * len(batch))
            rows = self._db.execute(f"SELECT key, answer FROM answers WHERE key IN ({marks})", batch)
            found.update((key, json.loads(answer)) for key, answer in rows)
        return found

    def put(self, key: bytes, answer: Mapping[str, Any]) -> None:
        """Keep one answer. It is on disk at most 50 ms later, or at `flush`."""
        self._unwritten.append((key, json.dumps(answer, separators=(",", ":"))))
        if time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Commit what is not on disk yet."""
        if self._unwritten:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", self._unwritten)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
            self._unwritten.clear()
        self._committed_at = time.monotonic()

    def close(self) -> None:
        """Commit and close."""
        self.flush()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
