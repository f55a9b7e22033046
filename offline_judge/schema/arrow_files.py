"""Readers of Parquet files and of the folders that `datasets` saves, through pyarrow, a batch at a time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from offline_judge.errors import UserError

_ROWS_PER_BATCH = 1024


class Parquet:
    """A Parquet file, of which only the columns that a row needs are read."""

    unit: Literal["line", "row"] = "row"
    one_shot = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.label = str(path)
        self.name = path.stem
        self.files: tuple[Path, ...] = (path,)

    def columns(self) -> tuple[object, ...]:
        """Names in the file's schema.

        Raises:
            UserError: the file is not Parquet.
        """
        with self._open() as file:
            return tuple(file.schema_arrow.names)

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (row, record).

        Raises:
            UserError: the file is not Parquet, or damaged.
        """
        with self._open() as file:
            batches = file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=list(used))
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        import pyarrow.parquet

        if not self._path.stat().st_size:
            raise UserError(f"{self.label} is empty", {"to fix": "write rows to it"})
        with _arrow_errors(f"{self.label} is not a Parquet file, or damaged"):  # noqa: SIM117
            with pyarrow.parquet.ParquetFile(self._path) as file:
                yield file


class SavedDataset:
    """A folder written by `save_to_disk` of a `datasets.Dataset`, read without that library."""

    unit: Literal["line", "row"] = "row"
    one_shot = False

    def __init__(self, folder: Path) -> None:
        """Find the data files.

        Raises:
            UserError: the folder holds several splits, or no data set.
        """
        self.label = str(folder)
        self.name = folder.resolve().name
        self.files: tuple[Path, ...] = _data_files(folder)

    def columns(self) -> tuple[object, ...]:
        """Names in the schema of the first file.

        Raises:
            UserError: a file is no Arrow stream.
        """
        for file in self.files:
            with _open_stream(file) as stream:
                return tuple(stream.schema.names)
        return ()

    def records(self, used: Collection[str]) -> Iterator[tuple[int, object]]:
        """Yield (row, record), through all files.

        Raises:
            UserError: a file is no Arrow stream.
        """
        return enumerate((row for file in self.files for row in _stream_rows(file, list(used))), 1)


def _stream_rows(file: Path, used: list[str]) -> Iterator[object]:
    with _open_stream(file) as stream:
        for batch in stream:
            chosen = batch.select(used)
            chosen.validate(full=True)  # Arrow trusts a file's offsets unless it is asked not to
            for start in range(0, batch.num_rows, _ROWS_PER_BATCH):
                yield from chosen.slice(start, _ROWS_PER_BATCH).to_pylist()


@contextmanager
def _open_stream(file: Path) -> Iterator[Any]:
    import pyarrow

    with (
        _arrow_errors(f"{file} is not an Arrow stream, or damaged"),
        pyarrow.OSFile(str(file)) as source,  # a mapped file that shrinks would kill the process
        pyarrow.ipc.open_stream(source) as stream,
    ):
        yield stream


@contextmanager
def _arrow_errors(message: str) -> Iterator[None]:
    """Turn what pyarrow raises, whose words may quote the data, into an error that doesn't."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        # Beside pyarrow's own: a date that Python can't hold, text that is no UTF-8, a lacking column.
        raise UserError(message, {"found": type(error).__name__, "to fix": "write the data anew"}) from None


def _data_files(folder: Path) -> tuple[Path, ...]:
    splits_file, state_file = folder / "dataset_dict.json", folder / "state.json"
    if splits_file.is_file():
        splits = _as_list(_read_json(splits_file).get("splits"))
        raise UserError(
            f"{folder} holds {len(splits)} data sets",
            {"to fix": "choose one: " + ", ".join(str(folder / str(split)) for split in splits)},
        )
    if not state_file.is_file():
        raise UserError(
            f"{folder} is a folder without a saved data set",
            {
                "looked for": str(state_file),
                "to fix": "give a file, or a folder written by Dataset.save_to_disk",
            },
        )
    entries = _read_json(state_file).get("_data_files")
    found = [entry.get("filename") if isinstance(entry, dict) else None for entry in _as_list(entries)]
    names = [name for name in found if isinstance(name, str) and Path(name).name == name]
    if not names or len(names) < len(found):
        raise UserError(
            f"{state_file} is damaged",
            {"found": "no list of data files in this folder", "to fix": "save the data set anew"},
        )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder}: data files are missing", {"looked for": ", ".join(missing)})
    return tuple(folder / name for name in names)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged", {"to fix": "save the data set anew"})
    return value


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
