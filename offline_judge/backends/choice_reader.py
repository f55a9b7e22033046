"""Probabilities of fixed options, read from the logits behind a prompt: no generation.

A group of prompts that begin alike is run behind the keys and values of their common prefix, which
are computed once. The next group's prefix starts from what it shares with the last one.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from offline_judge.backends.batching import batches, halve_when_out_of_memory
from offline_judge.backends.chat import Prompt
from offline_judge.backends.prefix_groups import common_prefix_length, prefix_groups
from offline_judge.backends.protocol import Answer, Chosen, TokenCount


class ChoiceReader:
    """Reads options' probabilities from a causal language model of transformers."""

    def __init__(self, model: Any, device: torch.device, stop: threading.Event | None = None) -> None:
        self._model = model
        self._device = device
        self._stop = stop
        self._prefix = _PrefixCache(model, device)

    def read(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Answer]]:
        """Yield (position, `Chosen`) for each prompt until `stop`. Those that begin alike stand together."""
        for group in prefix_groups([prompt.ids for prompt in prompts]):
            members = prompts[group.start : group.stop]
            prefix = members[0].ids[: group.n_prefix]

            def run(batch: Sequence[Prompt], prefix: list[int] = prefix) -> list[Answer]:
                try:
                    return self._run(batch, prefix)
                except BaseException:
                    # Where memory ran out half-way, some layers hold the prefix and others do not.
                    self._prefix.clear()
                    raise

            for batch in batches(members, lambda prompt: len(prompt.ids), self._device, self._stop):
                yield from halve_when_out_of_memory(run, batch)
        self._prefix.clear()

    @torch.inference_mode()
    def _run(self, batch: Sequence[Prompt], prefix: list[int]) -> list[Answer]:
        """One forward pass of what stands behind the prefix, (B, S) tokens padded on the right.

        No attention mask is needed: attention is causal, and padding stands behind every position
        that is read.
        """
        n_reused = self._prefix.move_to(prefix)
        suffixes = [prompt.ids[len(prefix) :] for prompt in batch]
        width = max(map(len, suffixes))
        inputs = torch.tensor([suffix + [0] * (width - len(suffix)) for suffix in suffixes])
        positions = torch.arange(len(prefix), len(prefix) + width).expand(len(batch), -1)
        ends = sorted({len(suffix) - 1 for suffix in suffixes})
        logits = self._model(
            input_ids=inputs.to(self._device),
            position_ids=positions.to(self._device),
            past_key_values=self._prefix.repeated(len(batch)),
            use_cache=bool(prefix),
            logits_to_keep=torch.tensor(ends, device=self._device),
        ).logits
        answers: list[Answer] = []
        for row, (prompt, suffix) in enumerate(zip(batch, suffixes, strict=True)):
            option_logits = logits[row, ends.index(len(suffix) - 1), list(prompt.option_ids)]
            probabilities = option_logits.double().softmax(dim=0).tolist()
            n_cached = len(prefix) if row else n_reused
            answers.append(Chosen(tuple(probabilities), TokenCount(len(prompt.ids), n_cached, 1)))
        return answers


class _PrefixCache:
    """Keys and values of one prefix, for a batch of one."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._ids: list[int] = []
        self._cache: Any = None

    def move_to(self, prefix: list[int]) -> int:
        """Hold the keys and values of `prefix`; return how many of its tokens were held already."""
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        n_shared = common_prefix_length(self._ids, prefix)
        n_surplus = len(self._ids) - n_shared
        if n_surplus and n_shared and all(type(layer) is DynamicLayer for layer in self._cache.layers):
            self._cache.crop(-n_surplus)
        elif n_surplus or self._cache is None:
            # A sliding window or a recurrent state can't go back.
            n_shared = 0
            self._cache = DynamicCache(config=self._model.config)
        self._ids = prefix[:n_shared]
        if len(prefix) > n_shared:
            self._model(
                input_ids=torch.tensor([prefix[n_shared:]], device=self._device),
                position_ids=torch.arange(n_shared, len(prefix), device=self._device)[None],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
            self._ids = prefix
        return n_shared

    def repeated(self, n_rows: int) -> Any:
        """Return a copy for a batch of `n_rows`, or None where the prefix is empty."""
        if not self._ids:
            return None
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(n_rows)
        return cache
