"""What every source of rows is read through, and how an error names a place in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, Protocol


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

    def columns(self) -> tuple[object, ...] | None:
        """Names of all columns, or None where each record names its own."""
        ...

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (number, record); a record holds at least the columns in `used` that the row has."""
        ...


def location(reader: Reader, number: int, column: str | None = None) -> str:
    """Name a place: "data.jsonl, line 7, column 'response'"."""
    place = f"{reader.label}, {reader.unit} {number}"
    return place if column is None else f"{place}, column {column!r}"
