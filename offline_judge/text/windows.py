"""Overlapping windows over a text that is longer than a model can read at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from offline_judge.text.sentences import split_sentences


class Window(NamedTuple):
    """A part of a text and where it stands: text == original[start:end]."""

    text: str
    start: int
    end: int


def windows(
    text: str,
    n_tokens: Callable[[Sequence[str]], list[int]],
    budget: int,
    overlap_sentences: int = 1,
) -> list[Window]:
    """Windows over a text, cut at sentence ends, that together cover all of it.

    Each window begins with the last `overlap_sentences` sentences of the one before it, fewer
    where they leave no room for the next. A sentence over the budget is cut at spaces, or
    anywhere if it has none, and each part counts as a sentence. A text that fits is one window.

    Args:
        text: Any text.
        n_tokens: Tokens of each text alone; no more than it has UTF-8 bytes, as of a byte-level
            tokenizer.
        budget: The most tokens of one window, at least 1.
        overlap_sentences: Sentences that two neighbours share, at least 0.

    Raises:
        ValueError: The budget or overlap is out of range, or one character is over the budget.
    """
    if budget < 1 or overlap_sentences < 0:
        raise ValueError(f"budget {budget} must be at least 1, overlap {overlap_sentences} at least 0")
    if len(text.encode("utf-8", "surrogatepass")) <= budget or n_tokens([text])[0] <= budget:
        return [Window(text, 0, len(text))]

    starts = [0, *(sentence.start for sentence in split_sentences(text)[1:]), len(text)]
    parts, sizes = _parts_within(text, list(pairwise(starts)), n_tokens, budget)
    limit = budget
    while True:
        spans = [
            (parts[first][0], parts[last - 1][1]) for first, last in _pack(sizes, limit, overlap_sentences)
        ]
        packed = [Window(text[start:end], start, end) for start, end in spans]
        # Few texts have more tokens than their parts together; such a text is packed less tightly.
        excess = max(n_tokens([window.text for window in packed])) - budget
        if excess <= 0:
            return packed
        limit -= excess


def _parts_within(
    text: str, parts: list[tuple[int, int]], n_tokens: Callable[[Sequence[str]], list[int]], budget: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Halve every part that is over the budget until none is; return the parts and their tokens."""
    size_of: dict[tuple[int, int], int] = {}
    while uncounted := [part for part in parts if part not in size_of]:
        size_of.update(zip(uncounted, n_tokens([text[start:end] for start, end in uncounted]), strict=True))
        parts = [
            piece for part in parts for piece in ([part] if size_of[part] <= budget else _halves(text, *part))
        ]
    return parts, [size_of[part] for part in parts]


def _halves(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Cut after the last space of the second quarter, or in the middle if it has none."""
    if end - start == 1:
        raise ValueError("the budget is less than the tokens of one character")
    middle = (start + end) // 2
    quarter = (start + middle) // 2
    space = max(text.rfind(" ", quarter, middle), text.rfind("\n", quarter, middle))
    cut = middle if space < 0 else space + 1
    return [(start, cut), (cut, end)]


def _pack(sizes: list[int], limit: int, overlap: int) -> list[tuple[int, int]]:
    """Pack parts greedily: the first part and one past the last part of each window."""
    packed: list[tuple[int, int]] = []
    first = 0
    while True:
        last, total = first, 0
        while last < len(sizes) and (last == first or total + sizes[last] <= limit):
            total += sizes[last]
            last += 1
        packed.append((first, last))
        if last == len(sizes):
            return packed
        # Step back over the overlap as long as the next part still fits beside it; this window and
        # the next part together did not fit, so the step never reaches the window's own beginning.
        room = limit - sizes[last]
        first = last
        while first > last - overlap and sizes[first - 1] <= room:
            first -= 1
            room -= sizes[first]
