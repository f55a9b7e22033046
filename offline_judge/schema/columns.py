"""Column names: the canonical ones, their aliases, and the user's own through `column_map`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Set

from offline_judge.errors import UserError
from offline_judge.schema.reader import shown

#: The columns that metrics read, by their RAGAS 0.2 names.
COLUMNS = (
    "user_input",
    "response",
    "retrieved_contexts",
    "reference",
    "reference_contexts",
    "retrieved_context_ids",
    "reference_context_ids",
)

#: Other names that are understood unasked (the RAGAS 0.1 names, and the usual ones of an id).
ALIASES = {
    "question": "user_input",
    "answer": "response",
    "contexts": "retrieved_contexts",
    "ground_truth": "reference",
    "ground_truths": "reference",
    "row_id": "id",
    "_id": "id",
}

_CANONICAL = {name: name for name in ("id", *COLUMNS, "language")} | ALIASES


def parse_column_map(items: Iterable[str]) -> dict[str, str]:
    """Read command-line items such as `user_input=query` into a column map.

    Raises:
        UserError: an item is not `name=yours`, or two items map one column.
    """
    column_map: dict[str, str] = {}
    for item in items:
        name, equals, yours = (part.strip() for part in item.partition("="))
        if not (name and equals and yours):
            raise UserError(
                f"--map {item!r} is not of the form column=yours", {"to fix": "--map user_input=query"}
            )
        if name in column_map:
            raise UserError(
                f"--map gives two columns for {name!r}", {"found": f"{column_map[name]!r}, {yours!r}"}
            )
        column_map[name] = yours
    return canonical_column_map(column_map)


def canonical_column_map(column_map: Mapping[str, str] | None) -> dict[str, str]:
    """Check a column map and give its keys their canonical names.

    Raises:
        UserError: a key is no known column (the map is the wrong way round, or a name is misspelt),
            or two keys mean one column.
    """
    canonical: dict[str, str] = {}
    for name, yours in (column_map or {}).items():
        if not isinstance(name, str) or not isinstance(yours, str):
            raise UserError("column_map must map column names to column names, both text")
        if name not in _CANONICAL:
            raise _unknown_key(name, yours)
        if _CANONICAL[name] in canonical:
            raise UserError(
                f"column_map gives two columns for {_CANONICAL[name]!r}",
                {"found": f"{canonical[_CANONICAL[name]]!r}, {yours!r}"},
            )
        canonical[_CANONICAL[name]] = yours
    return canonical


def _unknown_key(name: str, yours: str) -> UserError:
    if yours in _CANONICAL:
        return UserError(
            f"column_map is the wrong way round: {name!r} is no column of offline_judge, {yours!r} is",
            {"to fix": _map_advice(yours, name)},
        )
    details = {"columns": ", ".join(_CANONICAL)}
    if near := difflib.get_close_matches(name, _CANONICAL, n=1):
        details["to fix"] = _map_advice(near[0], yours)
    return UserError(f"column_map: {name!r} is no column of offline_judge", details)


def _map_advice(name: str, yours: str) -> str:
    return f"column_map={{{name!r}: {yours!r}}}, on the command line --map {name}={yours}"


class Layout:
    """Which column of one data set holds which field of a row.

    Where every row names its own columns (JSON), they are known bit by bit: `add` may be called
    again and again, and the clash of two names is seen as soon as both have been met.
    """

    def __init__(self, column_map: Mapping[str, str], label: str) -> None:
        """Start with no column; `column_map` has canonical keys, `label` names the data in errors."""
        self._column_map = column_map
        self._label = label
        self._seen: dict[str, None] = {}
        #: Canonical name to the data's own name, for the columns that the data has.
        self.used: dict[str, str] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the data met so far, in order."""
        return tuple(self._seen)

    def covers(self, columns: Set[object]) -> bool:
        """Tell whether all of these columns have been added before."""
        return columns <= self._seen.keys()

    def add(self, columns: Iterable[object]) -> None:
        """Take note of columns; those that are not text or have no name are ignored.

        Raises:
            UserError: the data has two names for one field and neither was mapped.
        """
        self._seen.update((name, None) for name in columns if isinstance(name, str) and name)
        used: dict[str, str] = {}
        for name in self._seen:
            field = _CANONICAL.get(name)
            if field is None or field in self._column_map:
                continue
            if field in used:
                raise UserError(
                    f"{self._label}: the columns {used[field]!r} and {name!r} both mean {field!r}",
                    {"to fix": f"choose one: {_map_advice(field, name)}"},
                )
            used[field] = name
        used.update((field, yours) for field, yours in self._column_map.items() if yours in self._seen)
        self.used = used

    def require_mapped(self) -> None:
        """Check, once all columns are known, that each mapped one exists.

        Raises:
            UserError: the data has no such column.
        """
        for field, yours in self._column_map.items():
            if yours not in self._seen:
                details = {"data has": list_columns(self.columns)}
                if aliases := [name for name in self._seen if _CANONICAL.get(name) == field]:
                    details["to fix"] = f"leave it out of the map: {aliases[0]!r} is understood unasked"
                raise UserError(
                    f"{self._label}: no column {yours!r}, which column_map gives for {field!r}", details
                )


def check_distinct(columns: Iterable[object], label: str) -> None:
    """Check that no two columns have one name; columns without a name may be many.

    Raises:
        UserError: a name stands twice.
    """
    seen = set()
    for name in columns:
        if name in seen and name != "":
            raise UserError(
                f"{label}: two columns are named {shown(str(name))!r}",
                {"to fix": "rename or drop one of them"},
            )
        seen.add(name)


def list_columns(columns: Collection[str], at_most: int = 20) -> str:
    """Name columns for an error message: the first `at_most`, and how many more there are."""
    names = [shown(name) for name in list(columns)[:at_most]]
    if len(columns) > at_most:
        names.append(f"and {len(columns) - at_most} more")
    return ", ".join(names) or "no columns"
