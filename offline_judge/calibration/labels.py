"""Labelled claims: premise, claim and label of each row of a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from offline_judge.errors import UserError
from offline_judge.schema import file_reader, records_of
from offline_judge.schema.cells import as_text
from offline_judge.schema.reader import location, shown

_COLUMNS = ("premise", "claim", "label")
_DOCUMENT = "document"
_TRUE = {"1", "true", "yes", "supported", "supports", "entailment", "faithful"}
_FALSE = {
    *("0", "false", "no", "unsupported", "not_supported", "refuted", "refutes", "contradiction", "neutral"),
    *("not_entailment", "unfaithful", "not enough info"),
}


class LabelledClaim(NamedTuple):
    """A claim with a person's verdict: 1.0 the premise supports it, 0.0 it does not.

    Where the labels may be probabilities (a judge's, to train on), any number from 0 to 1. `document`
    names what the premise is a part of: rows of one document are drawn and split together.
    """

    premise: str
    claim: str
    label: float
    document: str


def read_labels(path: Path, *, probabilities: bool = False) -> list[LabelledClaim]:
    """Read a file with the columns premise, claim, label and, where there is one, document.

    Args:
        path: a file of any kind that rows are read from.
        probabilities: whether labels between 0 and 1 are allowed.

    Raises:
        UserError: naming file, row and column of what is missing or not understood.
    """
    found = []
    reader = file_reader(path)
    columns = reader.columns()
    used = [name for name in (*_COLUMNS, _DOCUMENT) if columns is None or name in columns]
    for number, row in records_of(reader, used):
        for column in _COLUMNS:
            value = row.get(column)
            if value is None or not str(value).strip():
                raise UserError(
                    f"{location(reader, number)} has no {column}",
                    {"it has": ", ".join(shown(str(name)) for name in row), "needed": ", ".join(_COLUMNS)},
                )
        premise, claim = _text(row["premise"]), _text(row["claim"])
        label = _label(row["label"], probabilities)
        if label is None:
            raise UserError(
                f"{location(reader, number, 'label')} is not understood",
                {
                    "found": f"{type(row['label']).__name__} of {len(str(row['label']))} characters",
                    "allowed": "a number from 0 to 1"
                    if probabilities
                    else "1 or 0, true or false, "
                    "supported or unsupported, entailment, neutral or contradiction",
                },
            )
        found.append(LabelledClaim(premise, claim, label, str(row.get(_DOCUMENT) or premise)))
    if not found:
        raise UserError(f"{path} holds no labelled claims", {"needed": "rows of " + ", ".join(_COLUMNS)})
    return found


def _text(value: object) -> str:
    """The value as text that a model can take: NUL and half characters are replaced, as in rows."""
    return as_text(str(value), Counter()) or ""


def _label(value: Any, probabilities: bool) -> float | None:
    text = str(value).strip().lower()
    if text in _TRUE:
        return 1.0
    if text in _FALSE:
        return 0.0
    try:
        number = float(text)
    except ValueError:
        return None
    allowed = 0 <= number <= 1 if probabilities else number in (0, 1)
    return number if allowed else None
