"""Records of a file by its ending: which reader there is, and what every record must be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_judge.errors import UserError
from offline_judge.schema.arrow_files import Parquet, SavedDataset
from offline_judge.schema.cells import kind
from offline_judge.schema.reader import Reader, location
from offline_judge.schema.text_files import Csv, Json, JsonLines, KeyTwice

_FILE_READERS: dict[str, Callable[[Path], Reader]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".json": Json,
    ".csv": lambda path: Csv(path, ","),
    ".tsv": lambda path: Csv(path, "\t"),
    ".parquet": Parquet,
}


def records_of(reader: Reader, used: Collection[str]) -> Iterator[tuple[int, Mapping[Any, object]]]:
    """Yield (number, record) of a reader.

    Raises:
        UserError: what stands there is no object, a name stands twice in it, or it can't be read.
    """
    try:
        for number, record in reader.records(used):
            if not isinstance(record, Mapping):
                raise UserError(
                    f"{location(reader, number)}: {kind(record)} where a row belongs",
                    {"to fix": "make each row an object: column names and values"},
                )
            if isinstance(record, KeyTwice):
                raise UserError(
                    f"{location(reader, number, record.twice)}: the name stands twice in this row",
                    {"to fix": "keep one of the two"},
                )
            yield number, record
    except OSError as error:
        raise unreadable(reader.label, error) from None


def unreadable(name: str, error: OSError) -> UserError:
    """Say that a source can't be read, and why; never what stands in it."""
    return UserError(f"{name} can't be read", {"found": error.strerror or type(error).__name__})


def file_reader(path: Path) -> Reader:
    """Return the reader of a file or a saved data set.

    Raises:
        UserError: there is no such file, it can't be opened, or it is of no known kind.
    """
    try:
        if path.is_dir():
            return SavedDataset(path)
        if not path.exists():
            raise _no_such_file(path)
        if not path.is_file():
            raise UserError(f"{path} is not a regular file", {"to fix": "write the rows to a file first"})
        if path.suffix.lower() not in _FILE_READERS:
            raise UserError(
                f"{path}: rows can't be read from a file with the ending {path.suffix!r}",
                {"supported": f"{', '.join(_FILE_READERS)}, or a folder written by Dataset.save_to_disk"},
            )
        path.open("rb").close()
    except OSError as error:
        raise unreadable(_shown(path), error) from None
    return _FILE_READERS[path.suffix.lower()](path)


def _no_such_file(path: Path) -> UserError:
    if not path.parent.is_dir():
        return UserError(f"there is no file {_shown(path)}", {"found": "its folder does not exist either"})
    names = [entry.name for entry in path.parent.iterdir()]
    near = difflib.get_close_matches(path.name, names, n=3)
    return UserError(f"there is no file {_shown(path)}", {"similar": ", ".join(near)} if near else None)


def _shown(path: Path) -> str:
    """The path, unless it is likely to be row text that was passed in a path's place."""
    text = str(path)
    is_content = len(text) > 1000 or "\n" in text or text.lstrip().startswith(("{", "["))
    return f"of that name ({len(text)} characters: data in place of a path?)" if is_content else text
