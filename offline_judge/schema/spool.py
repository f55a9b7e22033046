"""A private temporary file of rows, so that an iterator can be passed over more than once."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from offline_judge.errors import UserError
from offline_judge.schema.row import Row, row_from_json, row_to_json


class Spool:
    """Rows written to disk, readable by their owner alone, deleted at `close` or with the object."""

    def __init__(self, rows: Iterable[Row]) -> None:
        """Write all rows; if one can't be had, the file is deleted and the error goes on.

        Raises:
            UserError: where the disk is full.
        """
        descriptor, path = tempfile.mkstemp(prefix="offline_judge-", suffix=".jsonl")  # mode 0600
        self.path = Path(path)
        self.close = weakref.finalize(self, self.path.unlink, missing_ok=True)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.writelines(row_to_json(row) + "\n" for row in rows)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(
                    "the rows do not fit into a temporary file",
                    {"folder": str(self.path.parent), "to fix": "make room, or name another in TMPDIR"},
                ) from error
            raise

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows from the start."""
        with self.path.open(encoding="ascii") as file:
            for index, line in enumerate(file):
                yield row_from_json(line, index)
