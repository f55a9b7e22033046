"""How many of a claim's words a text holds: the cheapest guess at where a claim might be supported."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

_WORD = re.compile(r"\w+")
# Korean, Japanese and Chinese words carry endings or have no spaces between them: pairs of characters
# are what two forms of one word share.
_EAST_ASIAN = re.compile("[\u1100-\u11ff\u3040-\u30ff\u3131-\u318e\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7ff]+")


def words(text: str) -> set[str]:
    """Distinct words of a text in small letters; of East Asian script the pairs of neighbours."""
    found: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        runs = _EAST_ASIAN.findall(word)
        for run in runs:
            found.update(run[i : i + 2] for i in range(max(1, len(run) - 1)))
        if not runs:
            found.add(word)
        else:
            found.update(part for part in _EAST_ASIAN.split(word) if part)
    return found


def word_overlap(claim: AbstractSet[str], text: AbstractSet[str]) -> float:
    """Share of the claim's words that the text holds, in [0, 1]; 0.0 for a claim without words."""
    return len(claim & text) / len(claim) if claim else 0.0
