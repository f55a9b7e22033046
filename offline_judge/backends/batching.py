"""Cut work into batches that fit, and go on with half of a batch where one does not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from offline_judge.backends.chat import Prompt
from offline_judge.backends.protocol import Answer, Failed

#: Rows of one batch, and the tokens whose keys and values it may hold at once.
_MAX_ROWS = {"cuda": 64, "cpu": 16}
_MAX_TOKENS = {"cuda": 65536, "cpu": 16384}


def batches(
    prompts: Sequence[Prompt],
    n_tokens: Callable[[Prompt], int],
    device: torch.device,
    stop: threading.Event | None = None,
) -> Iterator[list[Prompt]]:
    """Cut prompts, longest first, into batches of rows that are padded to the first one's length.

    `n_tokens` says how many tokens a prompt's row holds in the end. Neighbours in length share a
    batch, so little is padded, and the largest batch comes first: memory that does not suffice shows
    at once. Once `stop` is set there are no further batches.
    """
    max_rows = _MAX_ROWS.get(device.type, _MAX_ROWS["cuda"])
    max_tokens = _MAX_TOKENS.get(device.type, _MAX_TOKENS["cuda"])
    longest_first = sorted(prompts, key=n_tokens, reverse=True)
    while longest_first and not (stop is not None and stop.is_set()):
        n_rows = max(1, min(max_rows, max_tokens // n_tokens(longest_first[0])))
        yield longest_first[:n_rows]
        longest_first = longest_first[n_rows:]


def halve_when_out_of_memory(
    run: Callable[[Sequence[Prompt]], list[Answer]], batch: Sequence[Prompt]
) -> Iterator[tuple[int, Answer]]:
    """Run a batch; where memory does not suffice, its halves; a single prompt then fails.

    Yields each prompt's position and answer; `judge_out_of_memory` names the prompt's tokens.
    """
    try:
        answers = run(batch)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        answers = None
    if answers is not None:
        yield from zip((prompt.position for prompt in batch), answers, strict=True)
        return
    # Outside of `except`, whose traceback keeps the failed batch's tensors alive.
    free_memory()
    if len(batch) == 1:
        yield batch[0].position, Failed("judge_out_of_memory", f"{len(batch[0].ids)} tokens")
        return
    middle = len(batch) // 2
    yield from halve_when_out_of_memory(run, batch[:middle])
    yield from halve_when_out_of_memory(run, batch[middle:])


def free_memory() -> None:
    """Give back what nothing refers to any more, to the system and, where there is a GPU, to that."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory did not suffice, on a GPU or on the CPU, where torch has no class for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
