"""Readers of JSON lines, JSON and CSV, with errors that name the line."""

from __future__ import annotations

import codecs
import csv
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Literal, TextIO

from offline_judge.errors import UserError
from offline_judge.schema.cells import kind
from offline_judge.schema.columns import check_distinct
from offline_judge.schema.reader import shown

_MAX_FIELD_CHARACTERS = 64 * 2**20
_SAMPLE_BYTES = 8192

# UTF-32 stands before UTF-16: the mark of the one begins with the mark of the other.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class _TextFile:
    one_shot = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = str(path)
        self.name = path.stem
        self.files: tuple[Path, ...] = (path,)

    def columns(self) -> tuple[object, ...] | None:
        """Return None: each record names its own."""
        return None


class JsonLines(_TextFile):
    """One JSON object a line; empty lines are passed over."""

    unit: Literal["line", "row"] = "line"

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (line, record).

        Raises:
            UserError: a line is not JSON, or the file is not text.
        """
        with _open_text(self.path) as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield number, self._parse(line, number)

    def _parse(self, line: str, number: int) -> object:
        try:
            # Without the line break an error at the end has this line's column.
            return json.loads(line.rstrip(), object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            details = {"to fix": "write one JSON object a line"}
            if number == 1 and line.lstrip().startswith(("[", "{")):
                details["or"] = "where the whole file is one JSON text, name it .json"
            place = f"{self.label}, line {number}"
            if isinstance(error, json.JSONDecodeError):
                place += f", column {error.pos + 1}"
            raise _broken_json(place, error, details) from None


class Json(_TextFile):
    """One JSON text: a list of objects, {"data": that list}, or an object of equally long lists.

    The file is read whole on each pass; JSON lines is the format for data that memory can't hold.
    """

    unit: Literal["line", "row"] = "row"

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (row, record).

        Raises:
            UserError: the file is not JSON, not text, or holds something else than rows.
        """
        with _open_text(self.path) as file:
            text = file.read()
        try:
            document = json.loads(text, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            details = {"to fix": "write one JSON text, or name a file with one object a line .jsonl"}
            place = self.label
            if isinstance(error, json.JSONDecodeError):
                place += f", line {error.lineno}, column {error.colno}"
            raise _broken_json(place, error, details) from None
        del text
        if isinstance(document, KeyTwice):
            raise UserError(
                f"{self.label}: the name {shown(document.twice)!r} stands twice",
                {"to fix": "keep one of the two"},
            )
        if isinstance(document, dict) and _is_list_of_objects(document.get("data")):
            document = document["data"]
        if isinstance(document, list):
            return enumerate(document, 1)
        if isinstance(document, dict) and document and all(isinstance(v, list) for v in document.values()):
            return records_of_columns(document, self.label)
        raise UserError(
            f"{self.label}: {kind(document)} that holds no rows",
            {
                "to fix": 'write a list of objects, {"data": that list}, or an object of equally long lists',
                "from pandas": "to_json(path, orient='records')",
            },
        )


class Csv(_TextFile):
    """Comma- or tab-separated values with a header, quoted as in RFC 4180.

    An empty cell is a missing value: CSV can't tell an empty text from none.
    """

    unit: Literal["line", "row"] = "line"

    def __init__(self, path: Path, delimiter: str) -> None:
        super().__init__(path)
        self._delimiter = delimiter

    def columns(self) -> tuple[object, ...]:
        """Names in the header.

        Raises:
            UserError: as for `records`.
        """
        with _open_text(self.path, newline="") as file:
            return self._header(self._lines(file))

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (line that the row starts on, record).

        Raises:
            UserError: a quote is lost, a row has too many or too few fields, or the file is not text.
        """
        with _open_text(self.path, newline="") as file:
            lines = self._lines(file)
            header = self._header(lines)
            for number, row in lines:
                if len(row) != len(header):
                    raise UserError(
                        f"{self.label}, line {number}: {len(row)} fields under a header of {len(header)}",
                        {"to fix": "quote fields that hold a separator, a quote or a line break"},
                    )
                yield number, {name: cell or None for name, cell in zip(header, row, strict=True)}

    def _header(self, lines: Iterator[tuple[int, list[str]]]) -> tuple[str, ...]:
        _, row = next(lines)
        header = tuple(name.strip() for name in row)
        others = [
            mark for mark in ",;\t|" if mark != self._delimiter and len(header) == 1 and mark in header[0]
        ]
        if others:
            raise UserError(
                f"{self.label}: the header has one field; fields seem to be separated by {others[0]!r}",
                {"to fix": "separate fields by commas in a .csv, by tabs in a .tsv"},
            )
        check_distinct(header, self.label)
        return header

    def _lines(self, file: TextIO) -> Iterator[tuple[int, list[str]]]:
        """Yield (line that it starts on, fields) of every row that is not empty, the header first."""
        if csv.field_size_limit() < _MAX_FIELD_CHARACTERS:
            csv.field_size_limit(_MAX_FIELD_CHARACTERS)
        # Python 3.10's csv refuses NUL; half a surrogate pair passes, to be replaced and noted later.
        reader = csv.reader(
            (line.replace("\0", "\ud800") for line in file), delimiter=self._delimiter, strict=True
        )
        while True:
            number = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise UserError(
                    f"{self.label}, line {number}: broken CSV in the row that starts here",
                    {
                        "found": f"{error}, at line {reader.line_num}",
                        "to fix": 'close every quote; inside a quoted field a quote is written ""',
                    },
                ) from None
            if row:
                yield number, row


class KeyTwice(dict[str, object]):
    """A JSON object in which `twice`, a key, stands more than once: one of its values would be lost."""

    twice: str


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    marked = KeyTwice(made)
    marked.twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
    return marked


def records_of_columns(columns: Mapping[str, Collection[object]], label: str) -> Iterator[tuple[int, object]]:
    """Yield (row, record) from columns given as equally long lists.

    Raises:
        UserError: the lists are not equally long.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{shown(str(name))} {n}" for name, n in list(lengths.items())[:20])
        raise UserError(f"{label}: the columns are not equally long", {"found": found})
    rows = zip_longest(*columns.values())
    return enumerate((dict(zip(columns, row, strict=True)) for row in rows), 1)


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _broken_json(place: str, error: Exception, details: Mapping[str, str]) -> UserError:
    if isinstance(error, json.JSONDecodeError):
        found = error.msg
    else:
        found = (
            "objects nested too deeply"
            if isinstance(error, RecursionError)
            else "a number of too many digits"
        )
    return UserError(f"{place}: broken JSON", {"found": found, **details})


@contextmanager
def _open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a file in UTF-8, or in the UTF-16 or UTF-32 that its byte order mark tells of."""
    with path.open("rb") as file:
        sample = file.read(_SAMPLE_BYTES)
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if sample.startswith(mark)), "utf-8-sig")
    if len(sample) < _SAMPLE_BYTES and not sample.removeprefix(codecs.BOM_UTF8).strip():
        raise UserError(f"{path} is empty", {"to fix": "write rows to it"})
    if encoding == "utf-8-sig" and _looks_binary(sample):
        raise UserError(
            f"{path} is not a text file",
            {
                "found": "bytes of a binary file, or UTF-16 without a byte order mark",
                "to fix": "save it as UTF-8",
            },
        )
    try:
        with path.open(encoding=encoding, newline=newline) as text:
            yield text
    except UnicodeDecodeError:
        place = f", {_undecodable_place(path)}" if encoding == "utf-8-sig" else ""
        name = encoding.removesuffix("-sig").upper()
        raise UserError(f"{path}{place}: not valid {name}", {"to fix": "save it as UTF-8"}) from None


def _looks_binary(sample: bytes) -> bool:
    """NUL bytes beside others that are no UTF-8, or too many of them for a stray one in a text."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return b"\0" in sample
    return sample.count(0) * 10 > len(sample)


def _undecodable_place(path: Path) -> str:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number}, column {len(line[: error.start].decode()) + 1}"
    raise AssertionError("the file was not valid UTF-8 a moment ago")
