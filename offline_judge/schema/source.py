"""`open_rows`: rows from a file or a Python object, checked cell by cell, as often as they are wanted."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from offline_judge.errors import UserError
from offline_judge.schema.cells import (
    NOTES,
    CellError,
    as_chunks,
    as_id,
    as_ids,
    as_language,
    as_only_text,
    as_question,
    as_text,
)
from offline_judge.schema.columns import Layout, canonical_column_map, check_distinct
from offline_judge.schema.in_memory import in_memory_reader
from offline_judge.schema.reader import Reader, location, shown
from offline_judge.schema.records import file_reader, records_of, unreadable
from offline_judge.schema.row import Row, row_to_json
from offline_judge.schema.spool import Spool
from offline_judge.schema.unchanged import Unchanged

_ROWS_PER_LOOK = 1024

_Converter: TypeAlias = Callable[[object, Counter[str]], Any]
#: Field of the row, column of the data, how to convert its cells, where to count notes.
_PlannedField: TypeAlias = tuple[str, str, _Converter, Counter[str]]

_CONVERTERS: dict[str, _Converter] = {
    "id": as_id,
    "user_input": as_question,
    "response": as_text,
    "retrieved_contexts": as_chunks,
    "reference": as_text,
    "reference_contexts": as_chunks,
    "retrieved_context_ids": as_ids,
    "reference_context_ids": as_ids,
    "language": as_language,
}

_NO_VALUES: dict[str, Any] = dict.fromkeys(_CONVERTERS)


def open_rows(source: object, column_map: Mapping[str, str] | None = None) -> RowSource:
    """Open a data set; nothing but names is read before the first pass.

    Args:
        source: a path (.jsonl, .ndjson, .json, .csv, .tsv, .parquet, or a folder written by
            `Dataset.save_to_disk`), a pandas DataFrame, a `datasets.Dataset`, a list of dicts, a
            dict of lists, or an iterator of dicts.
        column_map: the data's own column names, by ours: `{"user_input": "query"}`.

    Raises:
        UserError: there is no such file, it is of no known kind, or the map is wrong.
    """
    if isinstance(source, (str, Path)):
        return RowSource(file_reader(Path(source)), column_map)
    return RowSource(in_memory_reader(source), column_map)


class RowSource:
    """The rows of one data set, read anew from the start by every `iter()`.

    Rows are read one at a time and not kept. What an iterator yields is written to a private
    temporary file at the first pass. Of the first pass, ids and their line numbers are held until it
    ends, to find duplicates.
    """

    def __init__(self, reader: Reader, column_map: Mapping[str, str] | None = None) -> None:
        """Raise UserError where the map is wrong; see `open_rows`."""
        self._reader = reader
        self._column_map = canonical_column_map(column_map)
        self._spool: Spool | None = None
        self._unchanged = Unchanged(reader.label, reader.files)
        self.name = reader.name
        #: How many rows there are; None before a pass has come to the end.
        self.n_rows: int | None = None
        #: The data's own columns; empty before a pass has come to the end.
        self.columns: tuple[str, ...] = ()
        #: What was changed or guessed, as counts; empty before a pass has come to the end.
        self.notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows from the start.

        Raises:
            UserError: the first thing that is wrong with the data, with its place.
        """
        if not self._reader.one_shot:
            return self._read()
        if self._spool is None:
            self._spool = Spool(self._read())
        return iter(self._spool)

    def fingerprint(self) -> str:
        """SHA-256 over all rows as hexadecimal text, from a pass of its own.

        It depends on the rows alone: the same rows from another format have the same fingerprint.
        """
        digest = hashlib.sha256()
        for row in self:
            digest.update(row_to_json(row).encode())
            digest.update(b"\n")
        return digest.hexdigest()

    def close(self) -> None:
        """Delete the temporary file, if there is one."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def __enter__(self) -> RowSource:
        """Return itself, to be closed at the end of the `with`."""
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _read(self) -> Iterator[Row]:
        """Read all rows; a file that changes meanwhile is an error, whatever else it looks like."""
        self._unchanged.check()
        try:
            for n_read, row in enumerate(self._read_rows(), 1):
                if n_read % _ROWS_PER_LOOK == 0:
                    self._unchanged.check()
                yield row
        except OSError as error:
            self._unchanged.check()
            raise unreadable(self._reader.label, error) from None
        except UserError:
            self._unchanged.check()
            raise
        self._unchanged.check()

    def _read_rows(self) -> Iterator[Row]:
        reader = self._reader
        layout = Layout(self._column_map, reader.label)
        if (columns := reader.columns()) is not None:
            check_distinct(columns, reader.label)
            layout.add(columns)
            layout.require_mapped()
        notes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        plan = _plan(layout, notes)
        place_of_id: dict[str, int] | None = {} if self.n_rows is None else None
        n_rows = 0
        for number, record in records_of(reader, layout.used.values()):
            if columns is None and not layout.covers(record.keys()):
                layout.add(record)
                plan = _plan(layout, notes)
            row = self._row(record, plan, number, n_rows)
            if place_of_id is not None and place_of_id.setdefault(row.id, number) != number:
                raise self._duplicate_id(row.id, place_of_id[row.id], number, layout.used.get("id"))
            n_rows += 1
            yield row
        if n_rows:
            layout.require_mapped()
        self.n_rows = n_rows
        self.columns = layout.columns
        self.notes = tuple(
            f"{column}: {n} {'cell' if n == 1 else 'cells'} {NOTES[code]}"
            for column, counts in notes.items()
            for code, n in counts.items()
        )

    def _row(self, record: Mapping[Any, object], plan: list[_PlannedField], number: int, index: int) -> Row:
        values = _NO_VALUES.copy()
        for field, column, convert, counts in plan:
            try:
                values[field] = convert(record.get(column), counts)
            except CellError as error:
                raise UserError(
                    f"{location(self._reader, number, column)}: {error.found}", {"to fix": error.fix}
                ) from None
        values["id"] = values["id"] or f"row-{index + 1:06}"
        return Row(index=index, **values)

    def _duplicate_id(self, row_id: str, first: int, second: int, column: str | None) -> UserError:
        return UserError(
            f"{self._reader.label}: the id {shown(row_id)!r} stands twice in column {column!r}",
            {
                "found": f"{self._reader.unit}s {first} and {second}",
                "to fix": "give every row an id of its own, or leave the column out",
            },
        )


def _plan(layout: Layout, notes: defaultdict[str, Counter[str]]) -> list[_PlannedField]:
    return [
        (field, column, as_only_text if column == "ground_truths" else _CONVERTERS[field], notes[column])
        for field, column in layout.used.items()
    ]
