"""The run folder: what one evaluation leaves on disk, written window by window and read back lazily.

    run.json         configuration, versions, models, tokens and seconds, and the summary
    scores.jsonl     one line per row: scores, soft scores, reason codes, flags
    scores.parquet   the same as a table: one column per metric and one for each of the above
    evidence.jsonl   one line per row and metric: what the score was computed from

A run is written as `<name>.partial` and takes its name when it is whole. Folders are 0700 and files
0600: evidence quotes the rows, unless the run is redacted; then a keyed hash stands in each text's place.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offline_judge.engine.asks import Check, Evidence, Probability, Reason, Unscored, flat
from offline_judge.errors import UserError
from offline_judge.private_files import create_private_file, flush_to_disk, locked, make_private_folder

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one metric made of one row: a score, or the reason why there is none."""

    row_id: str
    metric: str
    evidence: Evidence | None = None
    score: float | None = None
    soft: float | None = None
    unscored: str | None = None
    reasons: Mapping[tuple[str, str], Reason] = field(default_factory=dict)


class RunWriter:
    """Writes one run; `close` makes it whole, `abandon` leaves it marked as partial.

    Args:
        folder: of the run.
        labels: names of its metrics.
        redact: key of the hashes that stand for texts; None leaves the texts as they are.

    Raises:
        UserError: where another process is writing this very run.
    """

    def __init__(self, folder: Path, labels: Sequence[str], *, redact: bytes | None = None) -> None:
        self.folder = folder
        self._partial = folder.with_name(folder.name + ".partial")
        self._redact = redact
        make_private_folder(self._partial)
        self._lock = contextlib.ExitStack()
        try:
            self._lock.enter_context(locked(self._partial, wait=False))
        except BlockingIOError as error:
            raise UserError(
                "another process is writing this very run",
                {"folder": str(self._partial), "to fix": "wait for it, or name another run with --name"},
            ) from error
        for left in self._partial.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._labels = list(labels)
        self._evidence = create_private_file(self._partial / "evidence.jsonl")
        self._scores = create_private_file(self._partial / "scores.jsonl")
        self._table: Any = None

    def write(self, rows: Sequence[Sequence[Outcome]]) -> None:
        """Append the outcomes of some rows, one sequence per row with one outcome per metric."""
        lines = [_score_line(outcomes) for outcomes in rows]
        with _disk(self._partial):
            for outcomes, line in zip(rows, lines, strict=True):
                self._scores.write(_json(line))
                for outcome in outcomes:
                    evidence = _evidence_line(outcome)
                    if self._redact is not None:
                        _redact(evidence, self._redact)
                    self._evidence.write(_json(evidence))
            self._scores.flush()
            self._evidence.flush()
            self._write_table(lines)

    def close(self, record: Mapping[str, Any]) -> None:
        """Write the run record and give the folder its name; a run that had it is replaced."""
        with _disk(self._partial):
            self._close_files()
            with create_private_file(self._partial / "run.json") as file:
                file.write(json.dumps({"format": FORMAT, **record}, ensure_ascii=False, indent=2) + "\n")
            # Without this a loss of power could leave the name and lose what it names.
            for path in (*self._partial.iterdir(), self._partial):
                flush_to_disk(path)
            old = self.folder.with_name(self.folder.name + ".old")
            if self.folder.exists():
                shutil.rmtree(old, ignore_errors=True)
                self.folder.rename(old)
            self._partial.rename(self.folder)
            flush_to_disk(self.folder.parent)
        shutil.rmtree(old, ignore_errors=True)
        self._lock.close()

    def abandon(self) -> None:
        """Close the files of a run that did not get to its end; after `close` there is nothing to do."""
        with contextlib.suppress(OSError):  # a full disk has been reported already
            self._close_files()
        self._lock.close()

    def _close_files(self) -> None:
        self._evidence.close()
        self._scores.close()
        if self._table is not None:
            table, self._table = self._table, None
            table.close()

    def _write_table(self, lines: Sequence[Mapping[str, Any]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"id": pa.array([line["id"] for line in lines], pa.string())}
        for label in self._labels:
            for suffix, part, kind in _TABLE_COLUMNS:
                values = [line[part].get(label) for line in lines]
                columns[label + suffix] = pa.array(values, pa.float64() if kind is float else pa.string())
        table = pa.table(columns)
        if self._table is None:
            path = self._partial / "scores.parquet"
            create_private_file(path).close()
            self._table = pq.ParquetWriter(path, table.schema)
        self._table.write_table(table)


#: Suffix of a table column, the part of a scores line that it shows, its type.
_TABLE_COLUMNS = (
    ("", "scores", float),
    (".soft", "soft", float),
    (".unscored", "unscored", str),
    (".flags", "flags", str),
)


class RunFolder:
    """A finished run, read from disk as it is asked for.

    Raises:
        UserError: where the folder is no run, or one that did not get to its end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "run.json"
        if not path.is_file():
            partial = folder.with_name(folder.name + ".partial")
            hint = "that run did not get to its end: give the same command again" if partial.is_dir() else ""
            raise UserError(
                f"{folder} is not a run folder",
                {"looked for": str(path), **({"found": f"{partial} ({hint})"} if hint else {})},
            )
        with _damage(path):
            self.record: dict[str, Any] = _object_with(
                _RECORD_KEYS, json.loads(path.read_bytes().decode("utf-8"))
            )

    def scores(self) -> Iterator[dict[str, Any]]:
        """Lines of scores.jsonl in the order of the input.

        Raises:
            UserError: where the file is gone or damaged.
        """
        return _lines(self.folder / "scores.jsonl", _SCORE_KEYS)

    def evidence(self, row_id: str | None = None) -> Iterator[dict[str, Any]]:
        """Lines of evidence.jsonl: of every row, or of one.

        Raises:
            UserError: where the file is gone or damaged.
        """
        lines = _lines(self.folder / "evidence.jsonl", _EVIDENCE_KEYS)
        return lines if row_id is None else (line for line in lines if line["id"] == row_id)

    def table(self) -> Any:
        """scores.parquet as a pyarrow Table.

        Raises:
            UserError: where the file is gone or damaged.
        """
        import pyarrow.parquet as pq

        path = self.folder / "scores.parquet"
        with _damage(path):  # pyarrow's errors are a ValueError, an OSError or a KeyError too
            return pq.read_table(path)


def evidence_of(line: Mapping[str, Any]) -> Evidence | Unscored:
    """Rebuild what was found of a row from its line of evidence.jsonl."""
    if line["values"] is None:
        return Unscored(line["unscored"])
    checks = tuple(Check(check["source"], check["claim"], check["p"]) for check in line["checks"])
    return Evidence(line["values"], line["texts"], tuple(line["flags"]), checks)


def _score_line(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "id": outcomes[0].row_id,
        "scores": {outcome.metric: outcome.score for outcome in outcomes},
        "soft": {outcome.metric: outcome.soft for outcome in outcomes if outcome.soft is not None},
        "unscored": {outcome.metric: outcome.unscored for outcome in outcomes if outcome.unscored},
        "flags": {
            outcome.metric: " ".join(outcome.evidence.flags)
            for outcome in outcomes
            if outcome.evidence and outcome.evidence.flags
        },
    }


def _evidence_line(outcome: Outcome) -> dict[str, Any]:
    evidence = outcome.evidence
    line: dict[str, Any] = {
        "id": outcome.row_id,
        "metric": outcome.metric,
        "score": outcome.score,
        "soft": outcome.soft,
        "unscored": outcome.unscored,
        "values": None,
        "texts": {},
        "flags": (),
        "windows": {},
        "checks": [],
    }
    if evidence is not None:
        line.update(
            values=evidence.values,
            texts=evidence.texts,
            flags=evidence.flags,
            windows={name: found for name, value in evidence.values.items() if (found := _windows(value))},
            checks=[
                _check_line(check, outcome.reasons.get((check.source, check.claim)))
                for check in evidence.checks
            ],
        )
    return line


def _check_line(check: Check, reason: Reason | None) -> dict[str, Any]:
    line: dict[str, Any] = {"source": check.source, "claim": check.claim, "p": check.p}
    if reason is not None:
        line |= {"reason": reason.text, "reason_verdict": reason.verdict}
    return line


def _windows(value: Any) -> dict[str, tuple[int, int]]:
    """Where in a long text each probability was read, by its place in the (flattened) list."""
    return {
        str(place): one.window
        for place, one in enumerate(flat(value))
        if isinstance(one, Probability) and one.window is not None
    }


def _redact(line: dict[str, Any], key: bytes) -> None:
    """Put hashes in the place of every text of an evidence line; equal texts keep equal hashes.

    Keyed, so that a text that could be guessed is not found by hashing guesses: the key lies in the answer
    store, never in the run folder.
    """

    def hashed(text: str) -> str:
        return (
            "#" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=key).hexdigest()
        )

    line["texts"] = {name: [hashed(text) for text in texts] for name, texts in line["texts"].items()}
    for check in line["checks"]:
        check.update({name: hashed(check[name]) for name in ("claim", "reason") if name in check})


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Say what to do where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS):
            raise
        raise UserError(
            "the run folder can't be written",
            {
                "folder": str(folder),
                "found": error.strerror or type(error).__name__,
                "disk": f"{shutil.disk_usage(folder).free / 2**20:,.0f} MiB free",
                "kept": "every answer is in the store",
                "to fix": "make room, then give the same command again: it goes on where it stopped",
            },
        ) from error


def _json(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


_RECORD_KEYS = ("config", "dataset", "metrics", "models", "seconds", "summary")
_SCORE_KEYS = ("flags", "id", "scores", "soft", "unscored")
_EVIDENCE_KEYS = (
    "checks",
    "flags",
    "id",
    "metric",
    "score",
    "soft",
    "texts",
    "unscored",
    "values",
    "windows",
)


def _lines(path: Path, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    number = 0  # of the last line that was begun
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                number += 1
                yield _object_with(keys, json.loads(line))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error, f", line {number}") from None


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception, place: str = "") -> UserError:
    found = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return UserError(
        f"{path}{place}: gone or damaged",
        {"found": found, "to fix": "give the command of the run again: what it asked is in the store"},
    )


def _object_with(keys: Sequence[str], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(key in value for key in keys):
        raise ValueError("not an object with the keys of its kind")
    return value
