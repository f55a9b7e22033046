"""One row of a data set, in the shape that every metric reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Row:
    """One question with what a RAG system retrieved and answered, and what it should have.

    None means that the data has nothing there (a missing column or a null); `()` and `""` are
    values: nothing was retrieved, nothing was answered. A blank chunk keeps its rank as `""`.
    """

    id: str
    user_input: str | None
    response: str | None
    retrieved_contexts: tuple[str, ...] | None
    reference: str | None
    reference_contexts: tuple[str, ...] | None
    retrieved_context_ids: tuple[str, ...] | None
    reference_context_ids: tuple[str, ...] | None
    language: str | None = None
    """What the data's own `language` column says, which overrules detection."""
    index: int = 0
    """0-based position in the input."""

    @property
    def context(self) -> str:
        """The retrieved chunks that are not blank, joined by two line breaks; "" where there is none."""
        return "\n\n".join(chunk for chunk in self.retrieved_contexts or () if chunk.strip())

    def missing(self, column: str) -> bool:
        """Tell whether `column`, a field of this class, is None: neither `()` nor `""` is missing."""
        return getattr(self, column) is None


class ScorableRow(Protocol):
    """A row as a metric sees it: every column that the metric needs is there.

    The columns that it does not need may still be None; no check at run time stands behind the
    types here but the one that keeps rows away from metrics that they lack a column for.
    """

    id: str
    user_input: str
    response: str
    retrieved_contexts: tuple[str, ...]
    reference: str
    reference_contexts: tuple[str, ...]
    retrieved_context_ids: tuple[str, ...]
    reference_context_ids: tuple[str, ...]

    @property
    def context(self) -> str:
        """The retrieved chunks that are not blank, joined by two line breaks."""
        ...


_STORED = tuple(field.name for field in fields(Row) if field.name != "index")


def row_to_json(row: Row) -> str:
    """One line of JSON, all ASCII, with everything but the row's position."""
    return json.dumps({name: getattr(row, name) for name in _STORED})


def row_from_json(line: str, index: int) -> Row:
    """Read back a line of `row_to_json`."""
    stored = json.loads(line).items()
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored}
    return Row(index=index, **values)
