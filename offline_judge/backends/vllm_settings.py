"""The settings of a vLLM engine, in process and served: one place, so that both give the same answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

#: Share of the GPU's memory; verifier and embedder live in the rest.
GPU_MEMORY_SHARE = 0.85
#: vLLM's CPU backend takes blocks of 128 tokens unless told otherwise, and shares whole blocks only.
_CPU_BLOCK_TOKENS = 32


def engine_settings(
    folder: Path,
    *,
    on_cpu: bool,
    context_length: int,
    structured_backend: str,
    dtype: str = "auto",
    seed: int = 0,
) -> dict[str, object]:
    """Return vLLM's engine arguments by name, with prefix caching on and remote code off.

    `dtype` "auto" is bfloat16 on a GPU, and on a processor the faster one (`cpu_dtype`).
    """
    if dtype == "auto":
        dtype = cpu_dtype() if on_cpu else "bfloat16"
    structured: dict[str, object] = {"backend": structured_backend}
    if structured_backend != "outlines":
        structured["disable_any_whitespace"] = True
    settings: dict[str, object] = {
        "model": str(folder),
        "tokenizer": str(folder),
        "trust_remote_code": False,
        "load_format": "safetensors",
        "dtype": dtype,
        "max_model_len": context_length,
        "enable_prefix_caching": True,
        # Read-outs then come renormalised over the allowed tokens.
        "logprobs_mode": "processed_logprobs",
        "structured_outputs_config": structured,
        "seed": seed,
    }
    if not on_cpu:
        return {**settings, "gpu_memory_utilization": GPU_MEMORY_SHARE}
    return {
        **settings,
        "enforce_eager": True,
        "block_size": _CPU_BLOCK_TOKENS,
        # vLLM winds back the random generator of a seeded request whose prompt was computed in part,
        # and a generator on the CPU can't be wound back: "CPU Generator does not use offset".
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(context_length, 8192),
    }


def command_line(settings: Mapping[str, object]) -> list[str]:
    """Write engine arguments as flags of vLLM's command line."""
    flags: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            flags += [f"--{flag}", json.dumps(value, separators=(",", ":"))]
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def cpu_dtype() -> str:
    """Return the faster type of the processor.

    Measured on 2 cores with AVX-512 and its bfloat16, but without AMX, Qwen2.5-Coder-1.5B: 16
    read-outs took 12.1 s in float32 and 17.2 s in bfloat16, 8 generations as long in both.
    """
    import torch

    return "bfloat16" if torch.cpu._is_amx_tile_supported() else "float32"
