"""The answer store: every answer is in SQLite as soon as it is known, so a killed run loses nothing.

A key is the hash of everything that could change the answer. Values are JSON text: never pickled.
Beside each answer stands its origin: which model gave it, in a run begun when.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import secrets
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offline_judge.errors import UserError
from offline_judge.private_files import create_private_file, locked, make_private_folder

#: An answer waits for its commit no longer than this, and less where commits are cheap: they take at most
#: this share of the time.
_COMMIT_WITHIN_S = 0.05
_COMMIT_SHARE = 0.05
_LOOKUP_BATCH = 900  # SQLite allows 999 parameters in its oldest builds.
_FORMAT = 2
_APPLICATION_ID = 0x6F6A7564  # "ojud": tells our files from other programs' data bases.

# Keys are random, so a table sorted by them would change a page of its own for nearly every answer.
# Here answers are appended, in the order in which they came, and only the small index is touched at random.
_SCHEMA = """
CREATE TABLE origins (id INTEGER PRIMARY KEY, model TEXT NOT NULL, fingerprint TEXT NOT NULL,
                      started INTEGER NOT NULL);
CREATE TABLE answers (key BLOB NOT NULL, answer TEXT NOT NULL, origin INTEGER NOT NULL);
CREATE UNIQUE INDEX answer_keys ON answers (key);
CREATE TABLE secret (value BLOB NOT NULL);
"""

_log = logging.getLogger(__name__)


def key_of(*parts: str) -> bytes:
    """Hash parts to 16 bytes. Each part is length-prefixed, so no two lists of parts collide by joining."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    return digest.digest()


class Store:
    """Answers by key, in one SQLite file that several processes may share at once.

    A file that is damaged, or is no store, is renamed to `<name>.damaged-N` with a warning in the log, and
    a new one takes its place. What is committed stays, whatever happens to this process or to the disk.

    Args:
        path: the file; None keeps the answers in memory for as long as the store lives.
        fresh: find only what this very object was given; older answers are replaced as new ones come.

    Raises:
        UserError: where the file can't be opened or written, or a newer version of this package wrote it.
    """

    def __init__(self, path: Path | None, *, fresh: bool = False) -> None:
        self.path = path
        self._fresh = fresh
        self._unwritten: list[tuple[bytes, str, int]] = []
        self._origins: dict[tuple[str, str], int] = {}
        self._started = int(time.time())
        self._error: UserError | None = None
        self._lock = threading.RLock()
        self._commit_at = 0.0
        self._file_id: tuple[int, int] | None = None
        self._db = self._open()
        self._waiting = threading.Event()
        if path is not None:
            self._start_late_commits()

    def origin(self, model: str, fingerprint: str) -> int:
        """Return the number under which answers of a model are put in this run."""
        found = self._origins.get((model, fingerprint))
        if found is None:
            found = self._origins[model, fingerprint] = secrets.randbits(31)
        return found

    def get(self, keys: Iterable[bytes]) -> dict[bytes, Any]:
        """Look up many keys; those that are not there are left out.

        Raises:
            UserError: where the file can't be read.
        """
        wanted = list(keys)
        found: dict[bytes, Any] = {}
        with self._lock:
            self._look_up(wanted, found)
        return found

    def _look_up(self, wanted: list[bytes], found: dict[bytes, Any]) -> None:
        own = f" AND origin IN ({','.join(map(str, self._origins.values()))})" if self._fresh else ""
        try:
            for start in range(0, len(wanted), _LOOKUP_BATCH):
                batch = wanted[start : start + _LOOKUP_BATCH]
                marks = ",".join("?" * len(batch))
                query = f"SELECT key, answer FROM answers WHERE key IN ({marks}){own}"
                for key, answer in self._db.execute(query, batch):
                    # A text that a failing disk has spoilt is no answer: the ask is asked again.
                    with contextlib.suppress(ValueError):
                        found[key] = json.loads(answer)
        except sqlite3.Error as error:
            self._recover(error, "read")

    def put(self, key: bytes, answer: Mapping[str, Any], origin: int) -> None:
        """Keep one answer of a model. It is committed at once where answers are slow, and else within 50 ms.

        Raises:
            UserError: where it can't be written. What was committed before stays.
        """
        text = json.dumps(answer, separators=(",", ":"))
        with self._lock:
            self._unwritten.append((key, text, origin))
            if time.monotonic() >= self._commit_at:
                self.flush()
            elif len(self._unwritten) == 1:
                self._waiting.set()

    def flush(self) -> None:
        """Commit what is not on disk yet.

        Raises:
            UserError: where it can't be written. What was committed before stays.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if not self._unwritten:
                return
            started = time.monotonic()
            try:
                self._commit()
            except sqlite3.Error as error:
                self._recover(error, "written")
                self.flush()  # to the file that took the damaged one's place
                return
            self._unwritten.clear()
            now = time.monotonic()
            self._commit_at = now + min(_COMMIT_WITHIN_S, (now - started) / _COMMIT_SHARE)

    def secret(self) -> bytes:
        """Return 16 random bytes, the same while the file lives: the key of redacted texts' hashes."""
        found = self._db.execute("SELECT value FROM secret").fetchone()
        assert found is not None
        return bytes(found[0])

    def close(self) -> None:
        """Commit and close.

        Raises:
            UserError: where the last answers can't be written; not a second time where that was said.
        """
        try:
            if self._error is None:
                self.flush()
        finally:
            with self._lock, contextlib.suppress(sqlite3.Error):
                self._db.close()

    def _start_late_commits(self) -> None:
        """Commit from a thread what waits while the judge takes long over its next answer."""
        waiting = self._waiting
        this = weakref.ref(self)  # so that a store that nobody needs any more is not kept by its thread
        weakref.finalize(self, waiting.set)

        def work() -> None:
            while True:
                waiting.wait()
                time.sleep(_COMMIT_WITHIN_S)
                store = this()
                if store is None:
                    return
                with store._lock:
                    if time.monotonic() >= store._commit_at:  # else the next answer commits this one too
                        waiting.clear()
                        # An error is raised where the next answer is put.
                        with contextlib.suppress(UserError, sqlite3.Error):
                            store.flush()
                del store

        threading.Thread(target=work, name="answer-store", daemon=True).start()

    # The file -----------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            return connect(":memory:")
        try:
            make_private_folder(self.path.parent)
            with locked(self.path.parent):
                if not self.path.exists():
                    create_private_file(self.path).close()
                try:
                    db = connect(str(self.path))
                except sqlite3.DatabaseError as error:
                    if not is_damage(error):
                        raise
                    set_aside(self.path, str(error))
                    create_private_file(self.path).close()
                    db = connect(str(self.path))
                self._file_id = _file_id(self.path)
                return db
        except (OSError, sqlite3.Error) as error:
            raise self._cannot_be("opened", error) from error

    def _commit(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(
                "INSERT OR IGNORE INTO origins VALUES (?, ?, ?, ?)",
                [(origin, *model, self._started) for model, origin in self._origins.items()],
            )
            self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", self._unwritten)
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite itself rolls back where the disk is full
                self._db.execute("ROLLBACK")
            raise

    def _recover(self, error: sqlite3.Error, what: str) -> None:
        """Go on with a new file where this one is damaged.

        Raises:
            UserError: where it is something else, such as a full disk.
        """
        if self.path is None or not is_damage(error):
            self._error = self._cannot_be(what, error)
            raise self._error from error
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        with locked(self.path.parent):
            # Another process may have been here first.
            if _file_id(self.path) == self._file_id:
                set_aside(self.path, str(error))
        self._db = self._open()

    def _cannot_be(self, what: str, error: Exception) -> UserError:
        details = {"file": str(self.path), "found": str(error)}
        if self.path is not None and self.path.parent.is_dir():
            free = shutil.disk_usage(self.path.parent).free
            details["disk"] = f"{free / 2**20:,.0f} MiB free"
        full = "full" in str(error) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full:
            details["to fix"] = "make room, then give the same command again: it goes on where it stopped"
        elif "locked" in str(error):
            details["to fix"] = "end the process that holds the file, then give the same command again"
        else:
            details["to fix"] = "mend that, or name another file with --store"
        if what == "written":
            details["kept"] = "every answer that was committed before"
        return UserError(f"the answer store can't be {what}", details)


def set_aside(path: Path, found: str) -> Path:
    """Rename a file that is no sound store, with its journal, and say so in the log; return its new name."""
    numbers = (path.with_name(f"{path.name}.damaged-{number}") for number in range(1, 1_000_000))
    aside = next(name for name in numbers if not name.exists())
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        journal = path.with_name(path.name + suffix)
        if journal.exists():
            journal.rename(aside.with_name(aside.name + suffix))
    _log.warning("the answer store %s is damaged or no store (%s): set aside as %s", path, found, aside.name)
    return aside


def connect(name: str) -> sqlite3.Connection:
    """Open a store, make its tables, or bring those of an older format up to date.

    Raises:
        UserError: where a newer version of this package wrote it.
        sqlite3.DatabaseError: where it is no store, or can't be opened.
    """
    # The lock of `Store` keeps its two threads apart.
    db = sqlite3.connect(name, timeout=60, isolation_level=None, check_same_thread=False)
    try:
        # Bytes, since decoding is json's: SQLite's own error would quote the text.
        db.text_factory = bytes
        found = _format(db, name)  # before anything is changed: it may be another program's
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA cache_size=-65536")  # KiB
        # One checkpoint of many commits writes a page of the index once, not once per commit.
        db.execute("PRAGMA wal_autocheckpoint=16384")  # pages of 4 KiB
        if found < _FORMAT:
            _make_tables(db, found)
        return db
    except BaseException:
        db.close()
        raise


def _format(db: sqlite3.Connection, name: str) -> int:
    """Return the format of a store; 0 where the file is empty.

    Raises:
        UserError: where a newer version of this package wrote it.
        sqlite3.DatabaseError: where it is no store.
    """
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (found,) = db.execute("PRAGMA user_version").fetchone()
    tables = {bytes(table) for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if application_id == _APPLICATION_ID and found > _FORMAT:
        raise UserError(
            "the answer store was written by a newer version",
            {"file": name, "found": f"format {found}", "to fix": "name another file with --store"},
        )
    if application_id == _APPLICATION_ID and found == _FORMAT:
        if not tables >= {b"origins", b"answers", b"secret"}:
            raise sqlite3.DatabaseError("malformed: tables are missing")
        return _FORMAT
    if not application_id and found == 1 and tables == {b"answers"}:
        return 1
    if application_id or found or tables:
        raise sqlite3.DatabaseError("malformed: a data base of another program")
    return 0


def _make_tables(db: sqlite3.Connection, found: int) -> None:
    """Make the tables of today's format, and take over the answers of the first one."""
    db.execute("BEGIN IMMEDIATE")
    try:
        if found == 1:
            db.execute("ALTER TABLE answers RENAME TO old_answers")
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO secret VALUES (?)", (secrets.token_bytes(16),))
        if found == 1:
            db.execute("INSERT INTO origins VALUES (0, '', '', ?)", (int(time.time()),))
            db.execute("INSERT INTO answers SELECT key, answer, 0 FROM old_answers")
            db.execute("DROP TABLE old_answers")
        db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={_FORMAT}")
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.Error) -> bool:
    """Tell whether the file itself is at fault, not its disk or another process."""
    # Python 3.10 does not pass on SQLite's error codes.
    return any(sign in str(error) for sign in ("malformed", "not a database", "no such table"))


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
