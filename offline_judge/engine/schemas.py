"""JSON schemas made for one ask each: exactly n keys for n claims, every list and string bounded.

A small model that loses its way repeats itself until it meets the token limit. The bounds are what
the text can hold, so such a list or string ends by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_MOST_CLAIMS = 6
_CHARACTERS_PER_CLAIM = 40
#: A claim may be longer than its sentence by what its pronouns stand for.
_EXTRA_CHARACTERS = 80
_QUESTION_CHARACTERS = 240
_REASON_CHARACTERS = 240

_VERDICT = {"type": "integer", "enum": [0, 1]}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def most_claims(sentence: str) -> int:
    """How many claims a sentence can state: 1, one more for each 40 characters, at most 6."""
    return min(_MOST_CLAIMS, 1 + len(sentence) // _CHARACTERS_PER_CLAIM)


def most_characters(sentence: str) -> int:
    """How long a claim of a sentence can be; in steps of 40, so that few schemas differ by it alone."""
    return _EXTRA_CHARACTERS + 40 * (1 + len(sentence) // 40)


@lru_cache(maxsize=4096)
def _claims(first: int, bounds: tuple[tuple[int, int], ...]) -> str:
    lists = {
        str(number): {
            "type": "array",
            "items": {"type": "string", "maxLength": characters},
            "maxItems": claims,
        }
        for number, (claims, characters) in enumerate(bounds, first)
    }
    return json.dumps(_object(lists))


def claims_schema(sentences: Sequence[str], first: int = 1) -> str:
    """Build {"1": [claim, …], …, "n": […]} for n sentences; the number of the first is `first`."""
    return _claims(first, tuple((most_claims(sentence), most_characters(sentence)) for sentence in sentences))


@lru_cache(maxsize=64)
def reasons_schema(n: int) -> str:
    """Build {"1": {"reason": text, "verdict": 0 or 1}, …, "n": {…}} for n claims."""
    reason = _object({"reason": {"type": "string", "maxLength": _REASON_CHARACTERS}, "verdict": _VERDICT})
    return json.dumps(_object({str(number): reason for number in range(1, n + 1)}))


@lru_cache(maxsize=1)
def question_schema() -> str:
    """Build {"noncommittal": 0 or 1, "question": text}."""
    question = {"type": "string", "maxLength": _QUESTION_CHARACTERS}
    return json.dumps(_object({"noncommittal": _VERDICT, "question": question}))
