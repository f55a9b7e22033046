"""Ten pairs of example rows, good and bad answers to the same question, in English and Korean."""

from __future__ import annotations

from pathlib import Path

#: JSON lines with id, user_input, response, retrieved_contexts and reference; ids end in -good or -bad.
ROWS = Path(__file__).parent / "rows.jsonl"
