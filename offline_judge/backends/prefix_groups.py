"""Which neighbouring prompts are worth running behind one shared key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Below this many tokens a pass of its own costs more than it saves.
MIN_PREFIX = 64


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Prompts `start` to `stop` (exclusive) begin with the same `n_prefix` tokens."""

    start: int
    stop: int
    n_prefix: int


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two prompts share at their beginning."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def prefix_groups(prompts: Sequence[Sequence[int]]) -> list[PrefixGroup]:
    """Cut sorted prompts into runs that share a prefix, from left to right.

    The next prompt joins a run where the run's prefix would get no more than `MIN_PREFIX` tokens
    shorter over all its members together, and the prompt does not share clearly more with its own
    successor. Each prompt keeps at least its last token behind the prefix, and a prefix of fewer
    than `MIN_PREFIX` tokens counts as none: then the run is an ordinary batch.
    """
    shared = [
        min(common_prefix_length(left, right), len(left) - 1, len(right) - 1)
        for left, right in pairwise(prompts)
    ]
    shared = [length if length >= MIN_PREFIX else 0 for length in shared]
    groups = []
    start, n_prefix = 0, 0
    for following in range(1, len(prompts) + 1):
        if following < len(prompts):
            size = following - start
            joined = shared[start] if size == 1 else min(n_prefix, shared[following - 1])
            loss = 0 if size == 1 else size * (n_prefix - joined)
            with_successor = shared[following] if following < len(shared) else 0
            if loss <= MIN_PREFIX and with_successor - joined <= MIN_PREFIX:
                n_prefix = joined
                continue
        if prompts:
            groups.append(PrefixGroup(start, following, n_prefix if following - start > 1 else 0))
        start, n_prefix = following, 0
    return groups
