"""A judge on plain transformers, for a machine without vLLM.

Two things make it usable: a read-out of probabilities costs one forward pass and no generation, and
prompts that begin alike run behind one key-value cache of their common prefix.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offline_judge.backends.chat import CHAT_VERSION, Chat, Prompt
from offline_judge.backends.json_constraint import Constraint, constraint_factory
from offline_judge.backends.model_folder import (
    cannot_load,
    combine_fingerprint,
    find_context_length,
    package_versions,
)
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.prefix_groups import PrefixGroup, common_prefix_length, prefix_groups
from offline_judge.backends.protocol import (
    Answer,
    Call,
    ChooseCall,
    Chosen,
    Failed,
    GenerateCall,
    Generated,
    TokenCount,
)

#: Rows of one batch, and the tokens whose keys and values it holds at once (prompt, prefix, output).
_MAX_ROWS = {"cuda": 64, "cpu": 16}
_MAX_TOKENS = {"cuda": 65536, "cpu": 16384}

_Results = list[tuple[int, Answer]]


class TransformersJudge:
    """An instruct model of a local folder, run by transformers."""

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        fingerprint: str,
        context_length: int | None = None,
        device: str | None = None,
        structured_backend: str = "guidance",
    ) -> None:
        """Load the model: bfloat16 on a GPU, float32 on the CPU.

        Raises:
            UserError: where the folder is no model, or no model that may be loaded.
        """
        set_offline_env()
        from transformers import AutoModelForCausalLM

        self.name = name
        self.context_length = find_context_length(path, context_length)
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        # On the CPU float32 is the faster one (README of the backends' tests: 3 times on 2 cores),
        # and what else is in a batch then moves a logit by 1e-5, not by 1e-1.
        self._dtype = torch.float32 if self._device.type == "cpu" else torch.bfloat16
        self._chat = Chat.load(path)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(path),
                dtype=self._dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise cannot_load(path, error) from error
        self._model = model.to(self._device).eval()
        self._end_ids = _end_ids(model, self._chat.tokenizer)
        self._constrain = constraint_factory(
            structured_backend, self._chat.tokenizer, model.get_output_embeddings().weight.shape[0]
        )
        self._settings: dict[str, object] = {
            "backend": "transformers",
            "versions": package_versions("torch", "transformers", "llguidance", "outlines_core"),
            "dtype": str(self._dtype).removeprefix("torch."),
            "device": self._device.type,
            "structured_backend": structured_backend,
            "chat_version": CHAT_VERSION,
        }
        self.fingerprint = combine_fingerprint(fingerprint, self._settings)

    def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        """Yield (position, answer) once for every call: read-outs first, then generations by length."""
        choices: list[Prompt] = []
        generations: list[tuple[Prompt, Constraint]] = []
        for position, call in enumerate(calls):
            prompt = self._chat.prepare(position, call, self.context_length)
            if isinstance(prompt, Failed):
                yield position, prompt
            elif isinstance(call, GenerateCall):
                try:
                    generations.append((prompt, self._constrain(call.schema)))
                except ValueError as error:
                    yield position, Failed("judge_error", type(error).__name__)
            else:
                choices.append(prompt)
        yield from self._choose_all(choices)
        yield from self._generate_all(generations)

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without a chat template."""
        return self._chat.n_tokens(texts)

    def describe(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return {**self._settings, "context_length": self.context_length}

    def close(self) -> None:
        """Free the model's memory."""
        del self._model
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    # Read-outs ----------------------------------------------------------------------------------

    def _choose_all(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Answer]]:
        prefix_cache = _PrefixCache(self._model, self._device)
        for group in prefix_groups([prompt.ids for prompt in prompts]):
            n_reused = prefix_cache.set(prompts[group.start].ids[: group.n_prefix])
            for batch in self._choice_batches(prompts, group):
                yield from _halve_on_out_of_memory(
                    lambda part, n=group.n_prefix: self._choose(part, prefix_cache, n),  # type: ignore[misc]
                    batch,
                )
        del n_reused

    def _choose(self, batch: Sequence[Prompt]) -> _Results:
        raise NotImplementedError
