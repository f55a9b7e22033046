"""A tiny model with random weights: a real tokenizer and architecture, no knowledge, no waiting."""

from __future__ import annotations

import shutil

import pytest
import torch

from offline_judge.backends import open_judge


@pytest.fixture(scope="session")
def tiny_model(shelf_model, tmp_path_factory):
    """A folder with a two-layer Llama of random weights behind SmolLM2's tokenizer and template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    source = shelf_model("smollm2-135m-instruct")
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def vllm_in_process(shelf_model):
    """SmolLM2 on a vLLM engine in this process, with a context of 2048 tokens, in float32."""
    judge = open_judge(
        shelf_model("smollm2-135m-instruct"),
        name="smollm2",
        fingerprint="f",
        backend="vllm",
        context_length=2048,
        dtype="float32",
    )
    yield judge
    judge.close()
