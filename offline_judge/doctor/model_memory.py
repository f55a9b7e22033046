"""How much memory a model needs, roughly, and what therefore fits.

    weights = parameters x bytes per parameter
    cache   = 2 x layers x key-value heads x head size x bytes per number, for each token
    needed  = weights + cache x context length

A judge in bfloat16 has 2 bytes per parameter and number, in float32 (CPU, encoders) 4. Encoders keep no
cache. Of a GPU a judge may use 85 %, what vLLM is given here; of a machine without one, the free main
memory. Activations, CUDA graphs and the libraries themselves come on top and are not counted: read the
result as "surely too large" or "probably fits".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offline_judge.shelf import Manifest

#: Cache bytes per token and parameter in bfloat16 where config.json is not at hand: above those of judges
#: of 7 to 32 billion parameters, whose published configurations give 0.7e-5 to 1.9e-5.
_UNKNOWN_CACHE = 2e-5


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of the weights, and of the key-value cache of one prompt of `context_length` tokens."""

    weights_bytes: float
    cache_bytes: float
    context_length: int

    def n_prompts(self, available_bytes: float) -> int:
        """Prompts of full length that can be in memory at a time; 0 means that it does not fit."""
        left = available_bytes - self.weights_bytes
        if self.cache_bytes == 0:
            return int(left >= 0)
        return max(0, int(left // self.cache_bytes))


def memory_need(
    manifest: Manifest, config: Mapping[str, Any] | None, *, bytes_per_number: int, context_length: int
) -> MemoryNeed:
    """Apply the formula to a model.

    Args:
        manifest: gives parameters, role and the longest context.
        config: content of config.json, where the model lies on the shelf.
        bytes_per_number: 2 for bfloat16, 4 for float32.
        context_length: tokens of prompt and output together; a model with less has its own.
    """
    length = min(context_length, manifest.context_length)
    weights = manifest.parameters * bytes_per_number
    if manifest.role != "judge":
        return MemoryNeed(weights, 0, length)
    per_token = _cache_numbers(config)
    if per_token is None:
        return MemoryNeed(
            weights, _UNKNOWN_CACHE / 2 * manifest.parameters * bytes_per_number * length, length
        )
    return MemoryNeed(weights, per_token * bytes_per_number * length, length)


def _cache_numbers(config: Mapping[str, Any] | None) -> int | None:
    """Numbers that one token leaves in the cache: keys and values of every layer."""
    config = (config or {}).get("text_config", config or {})
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not layers or not heads:
        return None
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * head_size)
