"""A judge on plain transformers, for a machine without vLLM."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from offline_judge.backends.batching import free_memory, is_out_of_memory
from offline_judge.backends.chat import CHAT_VERSION, Chat, Prompt
from offline_judge.backends.choice_reader import ChoiceReader
from offline_judge.backends.constrained_generator import ConstrainedGenerator
from offline_judge.backends.json_constraint import constraint_factory
from offline_judge.backends.model_folder import (
    cannot_load,
    combine_fingerprint,
    find_context_length,
    package_versions,
)
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.protocol import (
    Answer,
    Call,
    ChooseCall,
    Failed,
    GenerateCall,
    Generated,
    TokenCount,
)


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
        dtype: str = "auto",
        structured_backend: str = "guidance",
        thinking_tokens: int = 0,
    ) -> None:
        """Read the tokenizer; the model is loaded with the first call that needs it.

        Raises:
            UserError: where the folder holds no model.
        """
        set_offline_env()
        self.name = name
        self._context_length = find_context_length(path, context_length)
        self.context_length = self._context_length - thinking_tokens
        self._path = path
        self._structured_backend = structured_backend
        self._chat = Chat.load(path, thinking_tokens)
        self._stop = threading.Event()
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        # On the CPU, what else is in a batch moves a float32 logit by 1e-5 and a bfloat16 one by 1e-1.
        if dtype == "auto":
            dtype = "float32" if self._device.type == "cpu" else "bfloat16"
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._settings: dict[str, object] = {
            "backend": "transformers",
            "versions": package_versions("torch", "transformers", "llguidance", "outlines_core"),
            "dtype": dtype,
            "device": self._device.type,
            "structured_backend": structured_backend,
            "chat_version": CHAT_VERSION,
            **({"thinking_tokens": thinking_tokens} if thinking_tokens else {}),
        }
        self.fingerprint = combine_fingerprint(fingerprint, self._settings)

    @cached_property
    def _model(self) -> tuple[ChoiceReader, ConstrainedGenerator]:
        """Load the weights.

        Raises:
            UserError: where the folder holds no weights that may be loaded.
        """
        from transformers import AutoModelForCausalLM

        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(self._path),
                dtype=self._dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
            model = model.to(self._device).eval()
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise cannot_load(self._path, error) from error
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise cannot_load(self._path, error) from error
        n_vocabulary = model.get_output_embeddings().weight.shape[0]
        constrain = constraint_factory(self._structured_backend, self._chat.tokenizer, n_vocabulary)
        return (
            ChoiceReader(model, self._device, self._stop),
            ConstrainedGenerator(model, self._chat.tokenizer, self._device, constrain, self._stop),
        )

    def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        """Yield (position, answer) once for every call: read-outs first, then generations."""
        self._stop.clear()
        prompts: list[Prompt] = []
        for position, call in enumerate(calls):
            prompt = self._chat.prepare(position, call, self._context_length)
            if isinstance(prompt, Failed):
                yield position, prompt
            else:
                prompts.append(prompt)
        thought: dict[int, TokenCount] = {}
        if self._chat.thinking_tokens:
            prompts, thought = self._think(prompts)
        choices = [prompt for prompt in prompts if isinstance(prompt.call, ChooseCall)]
        generations = [prompt for prompt in prompts if isinstance(prompt.call, GenerateCall)]
        for position, answer in self._read_and_generate(choices, generations):
            before = thought.get(position)
            if before is not None and not isinstance(answer, Failed):
                n_output = before.output + answer.tokens.output
                answer = replace(answer, tokens=replace(before, output=n_output))
            yield position, answer

    def _read_and_generate(
        self, choices: Sequence[Prompt], generations: Sequence[Prompt]
    ) -> Iterator[tuple[int, Answer]]:
        if choices and not self._stop.is_set():
            yield from self._model[0].read(choices)
        if generations and not self._stop.is_set():
            yield from self._model[1].generate(generations)

    def _think(self, prompts: Sequence[Prompt]) -> tuple[list[Prompt], dict[int, TokenCount]]:
        """Let the model fill each prompt's think block; return the prompts of the answers, and the cost."""
        thinking = []
        for prompt in prompts:
            call, n_tokens = prompt.call, self._chat.thinking_tokens
            if isinstance(call, GenerateCall):
                call = replace(call, max_tokens=n_tokens)
            else:
                call = GenerateCall(call.messages, "", n_tokens)
            thinking.append(replace(prompt, call=call))
        by_position = {prompt.position: prompt for prompt in prompts}
        answering, tokens = [], {}
        for position, thought in self._model[1].generate(thinking):
            assert isinstance(thought, Generated)
            answering.append(self._chat.after_thinking(by_position[position], thought.text))
            tokens[position] = thought.tokens
        answering.sort(key=lambda prompt: prompt.position)  # neighbours share a prefix
        return answering, tokens

    def stop(self) -> None:
        """Let `answer` end after the batch that is being computed."""
        self._stop.set()

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without a chat template."""
        return self._chat.n_tokens(texts)

    def describe(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return {**self._settings, "context_length": self._context_length}

    def close(self) -> None:
        """Free the model's memory."""
        self.__dict__.pop("_model", None)
        free_memory()
