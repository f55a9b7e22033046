from __future__ import annotations

import pytest

from offline_judge.doctor.model_memory import memory_need
from offline_judge.shelf import FolderSource, Manifest


def manifest(**changes) -> Manifest:
    given = {
        "name": "m",
        "role": "judge",
        "description": "d",
        "licence": "MIT",
        "languages": ("en",),
        "parameters": 7_000_000_000,
        "context_length": 32_768,
        "source": FolderSource("m"),
    }
    return Manifest(**(given | changes))


def test_by_hand():
    # 28 layers of 4 key-value heads of 128 numbers, keys and values, 2 bytes: 57,344 bytes a token.
    config = {
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "hidden_size": 3584,
    }
    need = memory_need(manifest(), config, bytes_per_number=2, context_length=8192)
    assert need.weights_bytes == 14e9
    assert need.cache_bytes == 57_344 * 8192
    # 24 GB less 14 GB of weights, by 0.47 GB a prompt
    assert need.n_prompts(24e9) == 21
    assert need.n_prompts(14e9) == 0
    assert need.n_prompts(1e9) == 0


def test_a_head_size_of_its_own_and_a_nested_config():
    config = {
        "text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64, "hidden_size": 8}
    }
    need = memory_need(manifest(), config, bytes_per_number=4, context_length=1)
    assert need.cache_bytes == 2 * 2 * 4 * 64 * 4


def test_a_model_is_not_asked_for_more_tokens_than_it_has():
    need = memory_need(manifest(context_length=512), None, bytes_per_number=2, context_length=8192)
    assert need.context_length == 512


def test_without_a_config_the_cache_is_an_upper_estimate():
    need = memory_need(manifest(), None, bytes_per_number=2, context_length=8192)
    assert need.cache_bytes == pytest.approx(2e-5 * 7e9 * 8192)


def test_an_encoder_keeps_no_cache():
    need = memory_need(manifest(role="embedder"), None, bytes_per_number=4, context_length=8192)
    assert need.cache_bytes == 0
    assert need.n_prompts(28e9) == 1
    assert need.n_prompts(27e9) == 0
