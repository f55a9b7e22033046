"""Readers of what a Python program passes: lists, dicts of lists, DataFrames, Datasets, iterators.

pandas and datasets are known by what their objects can do, so that neither is imported here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from offline_judge.errors import UserError
from offline_judge.schema.reader import Reader
from offline_judge.schema.text_files import records_of_columns

_ROWS_PER_BATCH = 1024


def in_memory_reader(source: object) -> Reader:
    """Choose the reader of a Python object.

    Raises:
        UserError: it is of no kind that holds rows, or holds several data sets.
    """
    if isinstance(source, Mapping):
        if source and all(hasattr(value, "column_names") for value in source.values()):
            raise UserError(
                f"a {type(source).__name__} holds {len(source)} data sets",
                {"to fix": "pass one: " + ", ".join(f"data[{split!r}]" for split in source)},
            )
        if all(_is_column(value) for value in source.values()):
            return ColumnLists(source)
        raise UserError("a dict whose values are not all lists", {"to fix": "for a single row, pass [row]"})
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        return DataFrame(source)
    if hasattr(source, "column_names") and hasattr(source, "select_columns") and hasattr(source, "__len__"):
        return Dataset(source)
    if isinstance(source, Iterator):
        return Records(source, f"the {type(source).__name__}", one_shot=True)
    if isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray, memoryview)):
        return Records(source, f"the {type(source).__name__}", one_shot=False)
    raise UserError(
        f"rows can't be read from a value of type {type(source).__name__}",
        {"to fix": "pass a path, a DataFrame, a Dataset, dicts in a list or iterator, or a dict of lists"},
    )


def _is_column(value: object) -> bool:
    # A number or a 0-dimensional array of numpy has `tolist` too.
    return isinstance(value, (list, tuple)) or (
        hasattr(value, "tolist") and getattr(value, "shape", None) != ()
    )


class _InMemory:
    unit: Literal["line", "row"] = "row"
    name = "rows"
    one_shot = False
    files: tuple[Path, ...] = ()


class Records(_InMemory):
    """Any iterable of dicts. An iterator can be passed over once only."""

    def __init__(self, source: Iterable[object], label: str, *, one_shot: bool) -> None:
        self.label = label
        self.one_shot = one_shot
        self._source = source
        self._started = False

    def columns(self) -> tuple[object, ...] | None:
        """Return None: each record names its own."""
        return None

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (row, record).

        Raises:
            UserError: the iterator has been begun before.
        """
        if self.one_shot and self._started:
            raise UserError(f"{self.label} has been read already", {"to fix": "open rows from a new one"})
        self._started = True
        return enumerate(self._source, 1)


class ColumnLists(_InMemory):
    """A dict of equally long lists."""

    label = "the dict"

    def __init__(self, source: Mapping[Any, Collection[object]]) -> None:
        self._source = source

    def columns(self) -> tuple[object, ...]:
        """Return the dict's keys."""
        return tuple(self._source)

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (row, record).

        Raises:
            UserError: the lists are not equally long.
        """
        return records_of_columns(self._source, self.label)


class DataFrame(_InMemory):
    """A pandas DataFrame; its index is not read."""

    label = "the DataFrame"

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def columns(self) -> tuple[object, ...]:
        """Return the frame's columns."""
        return tuple(self._frame.columns)

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (row, record)."""
        if not used:
            return enumerate(({} for _ in range(len(self._frame))), 1)
        return records_of_columns({name: self._frame[name] for name in used}, self.label)


class Dataset(_InMemory):
    """A `datasets.Dataset`, whatever format it is set to."""

    label = "the Dataset"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def columns(self) -> tuple[object, ...]:
        """Return the data set's columns."""
        return tuple(self._dataset.column_names)

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (row, record)."""
        if not used:
            return enumerate(({} for _ in range(len(self._dataset))), 1)
        return enumerate(self._rows(list(used)), 1)

    def _rows(self, used: list[str]) -> Iterator[object]:
        chosen = self._dataset.select_columns(used).with_format(None)
        for batch in chosen.iter(batch_size=_ROWS_PER_BATCH):
            for row in zip(*(batch[name] for name in used), strict=True):
                yield dict(zip(used, row, strict=True))
