"""Turn the cell of any source into text, chunks or ids; what can't be turned raises `CellError`.

Nothing here knows of files or lines: who reads the row adds the place. What was changed on the way
is counted in `notes` under the codes below, so that nothing is changed silently.
"""

from __future__ import annotations

import ast
import io
import itertools
import json
import numbers
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Mapping

#: Codes counted in the notes, with what each means in a report.
NOTES = {
    "one_string": "held one string where a list belongs, taken as one chunk or id",
    "replaced": "held NUL or half a surrogate pair, replaced by U+FFFD",
}

_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_LIST_OF_TEXT = re.compile(r"""\[\s*["'{]""")
_QUOTES_ALONE = re.compile(r"""["']\s+["']""")
_TEXT_KEYS = ("text", "page_content", "content")
_NULLS = frozenset({"NAType", "NaTType"})  # of pandas


class CellError(Exception):
    """A cell that can't be used: what it holds (never its content) and the fix."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(found)
        self.found = found
        self.fix = fix


def as_text(value: object, notes: Counter[str]) -> str | None:
    """Text, or None where the cell is null or NaN.

    Raises:
        CellError: a number, a list, an object: anything else.
    """
    if isinstance(value, str):
        return _clean(value, notes)
    if _is_missing(value):
        return None
    raise CellError(f"{kind(value)} where text belongs", "write the value as text, or leave it null")


def as_question(value: object, notes: Counter[str]) -> str | None:
    """As `as_text`, with advice of its own for a conversation.

    Raises:
        CellError: not text.
    """
    if isinstance(value, (list, tuple)):
        raise CellError(
            f"{kind(value)} where text belongs: conversations of many turns are not supported",
            "pass the last question as one text, with what it needs of the turns before it written into it",
        )
    return as_text(value, notes)


def as_only_text(value: object, notes: Counter[str]) -> str | None:
    """The text of a list of one (the `ground_truths` of RAGAS 0.1), or plain text; None for `[]`.

    Raises:
        CellError: more than one text, or not text.
    """
    listed = _parse_list(value) if isinstance(value, str) else _to_plain(value)
    if not isinstance(listed, (list, tuple)):
        return as_text(value, notes)
    if len(listed) > 1:
        raise CellError(f"a list of {len(listed)} where one text belongs", "keep one reference a row")
    return as_text(listed[0], notes) if listed else None


def as_chunks(value: object, notes: Counter[str]) -> tuple[str, ...] | None:
    """Chunks in their order, or None where the cell is null.

    A list, tuple or array of texts, or of objects with a "text", "page_content" or "content"; or a
    string that holds such a list as JSON or as Python prints it. Any other string is one chunk.
    A null or NaN in the list is a blank chunk "".

    Raises:
        CellError: not a list, or an item that is not text.
    """
    items = _as_items(value, notes)
    return None if items is None else tuple(_as_chunk(item, n, notes) for n, item in enumerate(items, 1))


def as_ids(value: object, notes: Counter[str]) -> tuple[str, ...] | None:
    """Ids of chunks, texts or whole numbers, in the shapes that `as_chunks` takes.

    Raises:
        CellError: not a list, or an item that is no id.
    """
    items = _as_items(value, notes)
    if items is None:
        return None
    ids = [as_id(item, notes) for item in items]
    if None in ids:
        raise CellError(f"nothing as id {ids.index(None) + 1}", "give every chunk an id")
    return tuple(name for name in ids if name is not None)


def as_id(value: object, notes: Counter[str]) -> str | None:
    """An id as text; None where it is null or blank. A whole number gives its digits.

    Raises:
        CellError: anything else.
    """
    if isinstance(value, str):
        return _clean(value, notes) if value.strip() else None
    if _is_missing(value):
        return None
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    # pandas turns whole numbers with gaps into floats.
    if is_whole or (isinstance(value, float) and value.is_integer()):
        try:
            return str(int(value))  # type: ignore[call-overload]
        except ValueError:
            raise CellError("a number of too many digits where an id belongs", "write it as text") from None
    raise CellError(f"{kind(value)} where an id belongs", "write ids as text or whole numbers")


def as_language(value: object, notes: Counter[str]) -> str | None:
    """A language code such as "ko", or None where the cell is null or blank.

    Raises:
        CellError: not text.
    """
    return (as_text(value, notes) or "").strip() or None


def kind(value: object) -> str:
    """What a value is, in words and by its type, without a word of its content."""
    if isinstance(value, bool):
        word = "true or false"
    elif isinstance(value, numbers.Number):
        word = "a number"
    elif isinstance(value, Mapping):
        word = "an object"
    elif isinstance(value, (list, tuple)):
        word = "a list"
    elif isinstance(value, str):
        word = "text"
    else:
        word = "a value"
    name = "null" if value is None else "dict" if isinstance(value, dict) else type(value).__name__
    return f"{word} ({name})"


def _as_items(value: object, notes: Counter[str]) -> list[object] | tuple[object, ...] | None:
    if isinstance(value, str):
        items = _parse_list(value)
        if items is None:
            notes["one_string"] += 1
            return [value]
        return items
    if _is_missing(value):
        return None
    value = _to_plain(value)
    if not isinstance(value, (list, tuple)):
        raise CellError(f"{kind(value)} where a list of texts belongs", 'write a list, such as ["a chunk"]')
    return value


def _as_chunk(item: object, number: int, notes: Counter[str]) -> str:
    text = item
    if isinstance(item, Mapping):
        text = next((item[key] for key in _TEXT_KEYS if key in item), item)
    if isinstance(text, str):
        return _clean(text, notes)
    if _is_missing(text):
        return ""
    raise CellError(
        f"{kind(text)} as chunk {number}",
        "write each chunk as text, or as an object with its text under " + " or ".join(map(repr, _TEXT_KEYS)),
    )


def _parse_list(text: str) -> list[object] | None:
    """The list that a string holds, as JSON or as Python prints it; None for any other string."""
    text = text.strip()
    if not text.startswith("["):
        return None
    for parse in (json.loads, _python_literal):
        try:
            value = parse(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue  # TypeError: a Python set or dict of what can't be in one
        return value if isinstance(value, list) else None
    if _LIST_OF_TEXT.match(text):
        raise CellError(
            "text that begins like a list but is neither a JSON nor a Python list (cut off?)",
            "write a JSON list; a spreadsheet cuts cells off at 32,767 characters",
        )
    return None


def _python_literal(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about backslashes; they would quote the row
        value: object = ast.literal_eval(text)
    if _QUOTES_ALONE.search(text) and _has_neighbouring_strings(text):
        # numpy prints ['a' 'b'], which Python reads as the one string 'ab'.
        raise CellError("a printed numpy array", "save the column as lists: column.map(list)")
    return value


def _has_neighbouring_strings(text: str) -> bool:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    types = [token.type for token in tokens if token.type not in (tokenize.NL, tokenize.NEWLINE)]
    return any(a == b == tokenize.STRING for a, b in itertools.pairwise(types))


def _to_plain(value: object) -> object:
    """Arrays and scalars of numpy, and whatever else has `tolist`, as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_missing(value: object) -> bool:
    # pandas.NA has no truth value, so that it is known by its name, not by value != value.
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ in _NULLS


def _clean(text: str, notes: Counter[str]) -> str:
    """The text with what no model's tokenizer takes replaced; almost always the text itself."""
    if "\0" not in text:
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text if type(text) is str else str(text)
    notes["replaced"] += 1
    return _NOT_TEXT.sub("\ufffd", text)
