"""Text that a tokenizer would take for a token of its own: found, and broken so that it stays text.

A tokenizer looks for its added tokens ("<|im_end|>", "[SEP]") before it splits a text, and does so in row
text too: there they would end a turn of a chat, or a premise beside its claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_ZERO_WIDTH_SPACE = "\u200b"


def added_tokens(tokenizer: Any) -> dict[str, int]:
    """Every token that is matched as a whole before a text is split, with its id: special ones and others.

    Some are no control tokens of this model's template (marks of code completion, of tools, HTML), but
    each has a meaning to the model that its characters alone would not have. Runs of spaces are text.
    """
    added = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items()}
    added.update(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    return {text: token_id for text, token_id in added.items() if text.strip()}


class ControlText:
    """Knows the texts that must not stand in a row as they are."""

    def __init__(self, texts: Iterable[str]) -> None:
        breakable = {text for text in texts if len(text) > 1 and _ZERO_WIDTH_SPACE not in text}
        longest_first = sorted(breakable, key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def broken_in(self, text: str) -> str:
        """Break each of them in `text` with a zero-width space after its first character."""
        return break_matches(self._pattern, text)


def break_matches(pattern: re.Pattern[str], text: str) -> str:
    """Break what a pattern finds with a zero-width space after its first character, until nothing is left."""
    while pattern.search(text):
        text = pattern.sub(lambda found: found[0][0] + _ZERO_WIDTH_SPACE + found[0][1:], text)
    return text
