"""Batches of pairs by a budget of tokens, which is halved for good where memory does not suffice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from offline_judge.backends.batching import free_memory, is_out_of_memory

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class TokenBudget:
    """How many tokens, padding included, one batch may hold.

    Attributes:
        max_tokens: the budget; smaller after memory did not suffice.
        n_halved: how often that was.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.n_halved = 0

    def run(
        self,
        items: Sequence[_Item],
        n_tokens: Callable[[_Item], int],
        run_batch: Callable[[Sequence[_Item]], _Result],
        stop: threading.Event | None = None,
    ) -> Iterator[tuple[Sequence[_Item], _Result | None]]:
        """Run items in batches, longest first; yield each batch with its result.

        Neighbours in length share a batch, so little is padded, and the largest batch comes first:
        memory that does not suffice shows at once. The result is None for a single item that is too
        large for the memory. Once `stop` is set there are no further batches.
        """
        longest_first = sorted(items, key=n_tokens, reverse=True)
        start = 0
        while start < len(longest_first) and not (stop is not None and stop.is_set()):
            width = n_tokens(longest_first[start])
            batch = longest_first[start : start + max(1, self.max_tokens // width)]
            try:
                result: _Result | None = run_batch(batch)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                result = None
            if result is None:
                # Outside of `except`, whose traceback keeps the failed batch's tensors alive.
                free_memory()
                if len(batch) > 1:
                    self.max_tokens = max(width, len(batch) * width // 2)
                    self.n_halved += 1
                    continue
            yield batch, result
            start += len(batch)
