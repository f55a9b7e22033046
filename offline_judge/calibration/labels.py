"""Labelled claims: premise, claim and label of each row of a CSV, TSV or JSONL file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from offline_judge.errors import UserError

_COLUMNS = ("premise", "claim", "label")
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
        path: `.csv`, `.tsv` or `.jsonl`.
        probabilities: whether labels between 0 and 1 are allowed.

    Raises:
        UserError: naming file, row and column of what is missing or not understood.
    """
    found = []
    for place, row in _rows(path):
        for column in _COLUMNS:
            value = row.get(column)
            if value is None or not str(value).strip():
                raise UserError(
                    f"{path}: {place} has no {column}",
                    {"it has": ", ".join(map(str, row)), "needed": ", ".join(_COLUMNS)},
                )
        premise, claim = str(row["premise"]), str(row["claim"])
        label = _label(row["label"], probabilities)
        if label is None:
            raise UserError(
                f"{path}: {place}, column label is not understood",
                {
                    "found": f"{type(row['label']).__name__} of {len(str(row['label']))} characters",
                    "allowed": "a number from 0 to 1"
                    if probabilities
                    else "1 or 0, true or false, "
                    "supported or unsupported, entailment, neutral or contradiction",
                },
            )
        found.append(LabelledClaim(premise, claim, label, str(row.get("document") or premise)))
    if not found:
        raise UserError(f"{path} holds no labelled claims", {"needed": "rows of " + ", ".join(_COLUMNS)})
    return found


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


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each row with its place for an error."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise UserError(f"{path} is of an unknown kind", {"known": ".csv, .tsv, .jsonl"})
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if kind == ".jsonl":
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield f"line {number}", _object(line, path, number)
                return
            csv.field_size_limit(1 << 30)
            reader = csv.DictReader(file, delimiter="," if kind == ".csv" else "\t")
            for number, row in enumerate(reader, 1):
                yield f"row {number}", row
    except OSError as error:
        raise UserError(f"can't read {path}", {"found": error.strerror or type(error).__name__}) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} can't be read as text", {"found": type(error).__name__}) from error


def _object(line: str, path: Path, number: int) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{path}: line {number} is not JSON") from error
    if not isinstance(row, dict):
        raise UserError(f"{path}: line {number} is not a JSON object")
    return row
