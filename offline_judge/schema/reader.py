"""What every source of rows is read through, and how an error names a place in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, Protocol

_LIKE_A_NAME = re.compile(r"\w[\w .:/#()\[\]@+-]*")
_MOST_SPACES = 3
_MOST_CHARACTERS = 60


class Reader(Protocol):
    """Reads one source, a record at a time. Each call of `records` starts at the beginning."""

    #: How errors call the source: the path as it was given, or "the DataFrame".
    label: str
    #: Short name: the file's stem, or "rows".
    name: str
    #: What the numbers that `records` yields count, from 1.
    unit: Literal["line", "row"]
    #: True where `records` can be called once only.
    one_shot: bool
    #: The files that are read, so that a change is noticed; none for Python objects.
    files: tuple[Path, ...]

    def columns(self) -> tuple[object, ...] | None:
        """Names of all columns, or None where each record names its own."""
        ...

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (number, record); a record holds at least the columns in `used` that the row has."""
        ...


def location(reader: Reader, number: int, column: str | None = None) -> str:
    """Name a place: "data.jsonl, line 7, column 'response'"."""
    place = f"{reader.label}, {reader.unit} {number}"
    return place if column is None else f"{place}, column {shown(column)!r}"


def shown(name: str) -> str:
    """An id or a column name as a message may show it: cut off where it is long.

    What reads like a sentence is counted, not quoted: in a file without a header the first row stands
    where the names should, and an id may have been mapped to a column of text.
    """
    if not _LIKE_A_NAME.fullmatch(name) or name.count(" ") > _MOST_SPACES or name.endswith("."):
        return f"({len(name)} characters)"
    return name if len(name) <= _MOST_CHARACTERS else f"{name[:_MOST_CHARACTERS]}…"
