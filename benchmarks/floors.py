"""Floors: what a score has to beat. No model reads anything here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from offline_judge.text import language_of

_WORD = re.compile(r"\w+")

#: Words too common to say what a sentence is about.
_COMMON = frozenset(
    """
    a an and are as at be been by did do does for from had has have he her his how i in is it its of on or
    she that the their they this to was we were what when where which who whose why will with you
    """.split()  # noqa: SIM905 - a list of 60 strings, one a line, is harder to read
)


def word_overlap(premise: str, claim: str) -> float:
    """Share of the claim's words that stand in the premise, in [0, 1]; common words don't count.

    Korean words change their endings, so there the pairs of neighbouring characters are compared.
    """
    wanted = set(_words(claim))
    if not wanted:
        return 0.0
    return len(wanted & set(_words(premise))) / len(wanted)


def density(text: str, question: str) -> float:
    """Share of the text's words that stand in the question, in [0, 1]; each counts as often as it stands."""
    words, wanted = list(_words(text)), set(_words(question))
    return sum(word in wanted for word in words) / len(words) if words else 0.0


def _words(text: str) -> Iterator[str]:
    korean = language_of(text) == "ko"
    for word in _WORD.findall(text.lower()):
        if korean and len(word) > 1:
            yield from (word[start : start + 2] for start in range(len(word) - 1))
        elif word not in _COMMON:
            yield word
