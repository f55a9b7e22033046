"""Hold a generation to a JSON schema: which tokens may come next.

Two engines, measured on a vocabulary of 151,000 tokens and 2 cores:

- `guidance` (llguidance): 3 to 7 ms and no memory for each new schema, exact `maxLength`.
- `outlines` (outlines_core): one automaton for each new schema. It counts the characters of a bounded
  string one state each: `maxLength` 300 takes 8 s and 600 MB for one string, 18 s and 2 GB for a list
  of three. So there `maxLength` is left out, and `max_tokens` alone bounds a string.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from offline_judge.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

STRUCTURED_BACKENDS = ("guidance", "outlines")

#: Small models that may write whitespace between JSON tokens can go on with it for ever.
_AT_MOST_ONE_SPACE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
#: An automaton for 20 lists of strings takes about 1 GB.
_MOST_AUTOMATA = 16


class Constraint(Protocol):
    """The state of one generation."""

    def write_mask(self, bitmask: Tensor, row: int) -> None:
        """Set bit t of int32 `bitmask[row]` where token t may come next."""
        ...

    def accept(self, token_id: int) -> bool:
        """Move on by a token that the mask allows; True where the JSON text is now complete."""
        ...


def check_structured_backend(name: str) -> None:
    """Raise a UserError unless `name` is an engine that is known here."""
    if name not in STRUCTURED_BACKENDS:
        raise UserError(
            f"structured_backend {name!r} is not known", {"one of": ", ".join(STRUCTURED_BACKENDS)}
        )


@lru_cache(maxsize=4096)
def schema_for(structured_backend: str, schema: str) -> str:
    """Return the schema as an engine shall have it: bounded whitespace, and only what it can afford.

    Raises:
        ValueError: where `schema` is not the JSON text of an object.
    """
    parsed = json.loads(schema)
    if not isinstance(parsed, dict):
        raise ValueError("a JSON schema is an object")
    if structured_backend == "guidance":
        return json.dumps({**parsed, "x-guidance": _AT_MOST_ONE_SPACE})
    return json.dumps(_without_max_length(parsed))


def _without_max_length(schema: Any, *, in_properties: bool = False) -> Any:
    """Drop the keyword `maxLength` at every depth, but no property that happens to bear that name."""
    if isinstance(schema, list):
        return [_without_max_length(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_max_length(value, in_properties=key == "properties" and not in_properties)
        for key, value in schema.items()
        if in_properties or key != "maxLength"
    }


def constraint_factory(
    structured_backend: str, tokenizer: Any, n_vocabulary: int
) -> Callable[[str], Constraint]:
    """Return a function from a schema's JSON text to a fresh constraint.

    It raises ValueError for a schema that the engine can't hold. `n_vocabulary` is the width of the
    model's logits, which can be more than the tokenizer's own.
    """
    import llguidance.hf

    vocabulary = llguidance.hf.from_tokenizer(tokenizer, n_vocab=max(n_vocabulary, len(tokenizer)))
    if structured_backend == "guidance":
        return lambda schema: _GuidanceConstraint(vocabulary, schema_for("guidance", schema))
    return _outlines_factory(vocabulary)


class _GuidanceConstraint:
    def __init__(self, vocabulary: Any, schema: str) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_json_schema(schema), log_level=0)
        if self._matcher.is_error():
            raise ValueError("the schema can't be held by llguidance")

    def write_mask(self, bitmask: Tensor, row: int) -> None:
        words = bitmask[row]
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * words.element_size())

    def accept(self, token_id: int) -> bool:
        self._matcher.consume_token(token_id)
        return bool(self._matcher.is_stopped())


def _outlines_factory(vocabulary: Any) -> Callable[[str], Constraint]:
    from outlines_core import Index, Vocabulary
    from outlines_core.json_schema import build_regex_from_schema

    # Tokens as bytes, not as text: a token can be a part of a Korean letter.
    tokens: dict[bytes, list[int]] = {}
    for token_id in range(vocabulary.vocab_size):
        token = vocabulary.decode_bytes([token_id])
        if token and not vocabulary.is_special_token(token_id):
            tokens.setdefault(token, []).append(token_id)
    outlines_vocabulary = Vocabulary(vocabulary.eos_token, tokens)

    @lru_cache(maxsize=_MOST_AUTOMATA)
    def automaton(schema: str) -> Any:
        return Index(build_regex_from_schema(schema), outlines_vocabulary)

    return lambda schema: _OutlinesConstraint(automaton(schema_for("outlines", schema)))


class _OutlinesConstraint:
    def __init__(self, automaton: Any) -> None:
        from outlines_core import Guide

        self._guide = Guide(automaton, max_rollback=0)

    def write_mask(self, bitmask: Tensor, row: int) -> None:
        words = bitmask[row]
        self._guide.write_mask_into(words.data_ptr(), words.numel(), words.element_size())

    def accept(self, token_id: int) -> bool:
        self._guide.advance(token_id, return_tokens=False)
        return bool(self._guide.is_finished())
