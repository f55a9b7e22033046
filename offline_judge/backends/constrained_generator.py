"""Generate JSON that holds to each row's own schema, greedily or sampled, in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from offline_judge.backends.batching import batches, halve_when_out_of_memory
from offline_judge.backends.chat import THINK_CLOSE, Prompt
from offline_judge.backends.json_constraint import Constraint
from offline_judge.backends.protocol import Answer, Failed, GenerateCall, Generated, TokenCount


@dataclass
class _Row:
    """One generation under way."""

    prompt: Prompt
    call: GenerateCall
    constraint: Constraint
    #: Of this row alone, so that its noise does not depend on what else is in the batch.
    noise: torch.Generator
    ids: list[int] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None


class ConstrainedGenerator:
    """Generates with a causal language model of transformers."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: torch.device,
        constrain: Callable[[str], Constraint],
        stop: threading.Event | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._device = device
        self._constrain = constrain
        self._stop = stop
        self._end_ids = _end_ids(model, tokenizer)

    def generate(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Answer]]:
        """Yield (position, `Generated`) for every prompt, the longest first, until `stop`."""
        for batch in batches(prompts, _n_tokens_at_most, self._device, self._stop):
            yield from halve_when_out_of_memory(self._run, batch)

    def _run(self, batch: Sequence[Prompt]) -> list[Answer]:
        started = [self._start(prompt) for prompt in batch]
        rows = [row for row in started if isinstance(row, _Row)]
        if rows:
            self._finish(rows)
        return [self._answer(row) if isinstance(row, _Row) else row for row in started]

    def _start(self, prompt: Prompt) -> _Row | Failed:
        call = prompt.call
        assert isinstance(call, GenerateCall)
        constraint: Constraint
        try:
            constraint = _ThinkBlock(self._tokenizer) if prompt.thinks else self._constrain(call.schema)
        except ValueError as error:
            return Failed("judge_error", type(error).__name__)
        return _Row(prompt, call, constraint, torch.Generator().manual_seed(call.seed))

    @torch.inference_mode()
    def _finish(self, rows: Sequence[_Row]) -> None:
        """Generate behind (B, T) prompts, padded on the left; finished rows leave the batch."""
        from transformers import DynamicCache

        width = max(len(row.prompt.ids) for row in rows)
        padding = [width - len(row.prompt.ids) for row in rows]
        inputs = torch.tensor(
            [[0] * n + row.prompt.ids for n, row in zip(padding, rows, strict=True)], device=self._device
        )
        attended = torch.arange(width)[None] >= torch.tensor(padding)[:, None]
        attended = attended.long().to(self._device)
        positions = (attended.cumsum(dim=1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        while True:
            logits = self._model(
                input_ids=inputs,
                attention_mask=attended,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            self._step(rows, logits.float())
            keep = [index for index, row in enumerate(rows) if row.finish is None]
            if not keep:
                return
            if len(keep) < len(rows):
                rows = [rows[index] for index in keep]
                kept = torch.tensor(keep, device=self._device)
                cache.batch_select_indices(kept)
                attended, positions = attended[kept], positions[kept]
            inputs = torch.tensor([[row.ids[-1]] for row in rows], device=self._device)
            attended = torch.cat([attended, attended.new_ones(len(rows), 1)], dim=1)
            positions = positions[:, -1:] + 1

    def _step(self, rows: Sequence[_Row], logits: Tensor) -> None:
        """Choose each row's next token from its (V,) logits and move its constraint on."""
        n_vocabulary = logits.shape[1]
        bitmask = torch.zeros(len(rows), (n_vocabulary + 31) // 32, dtype=torch.int32)
        for index, row in enumerate(rows):
            row.constraint.write_mask(bitmask, index)
            if row.call.temperature > 0:
                # The Gumbel-max trick: argmax(logits / temperature + noise) is an exact sample.
                gumbel = -torch.empty(n_vocabulary).exponential_(generator=row.noise).log()
                logits[index] = logits[index] / row.call.temperature + gumbel.to(logits.device)
        logits.masked_fill_(~_unpack(bitmask.to(logits.device), n_vocabulary), -torch.inf)
        for row, token_id in zip(rows, logits.argmax(dim=1).tolist(), strict=True):
            if token_id in self._end_ids:
                row.finish = "stop"
                continue
            row.ids.append(token_id)
            if row.constraint.accept(token_id):
                row.finish = "stop"
            elif len(row.ids) == row.call.max_tokens:
                row.finish = "length"

    def _answer(self, row: _Row) -> Answer:
        assert row.finish is not None
        text = self._tokenizer.decode(
            row.ids, skip_special_tokens=not row.prompt.thinks, clean_up_tokenization_spaces=False
        )
        return Generated(text, row.finish, TokenCount(len(row.prompt.ids), 0, len(row.ids)))


class _ThinkBlock:
    """Any token, until the think block is closed."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._last_ids: list[int] = []

    def write_mask(self, bitmask: Tensor, row: int) -> None:
        bitmask[row] = -1

    def accept(self, token_id: int) -> bool:
        # The mark can be one token or several, and no token is shorter than a byte.
        self._last_ids = [*self._last_ids, token_id][-len(THINK_CLOSE) :]
        return THINK_CLOSE in self._tokenizer.decode(self._last_ids)


def _n_tokens_at_most(prompt: Prompt) -> int:
    assert isinstance(prompt.call, GenerateCall)
    return len(prompt.ids) + prompt.call.max_tokens


def _unpack(bitmask: Tensor, n_vocabulary: int) -> Tensor:
    """(B, W) int32 words of 32 bits, lowest bit first, to (B, V) bool."""
    bits = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    return ((bitmask[:, :, None] >> bits) & 1).bool().flatten(1)[:, :n_vocabulary]


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    ends = [configured] if isinstance(configured, int) else list(configured or [])
    return frozenset([*ends, tokenizer.eos_token_id])
