"""Turn a GGUF file into an ordinary bfloat16 safetensors folder, which every engine can load.

vLLM on a CPU can't read GGUF, and outlines needs an ordinary tokenizer, so the weights are unpacked
once, here, and never at load.
"""

from __future__ import annotations

import functools
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from offline_judge.errors import UserError


def convert(gguf_path: Path, folder: Path) -> dict[str, str]:
    """Write the model and its tokenizer; return the versions of the packages that did it.

    Raises:
        UserError: gguf or accelerate is missing, or the chat template does not end a turn with the
            token that ends generation (the judge would never stop).
    """
    os.environ["TQDM_DISABLE"] = "1"  # before tqdm is imported: one progress line of our own is enough
    try:
        import accelerate  # type: ignore[import-untyped]  # noqa: F401 - transformers needs it
        import gguf
        import torch
        import transformers
    except ImportError as error:
        raise UserError(
            f"a GGUF file is converted with {error.name}, which is not installed",
            {"to fix": "pip install 'offline-judge[gguf]'"},
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    options: dict[str, object] = {}
    if hasattr(transformers, "GgufConfig"):
        # Without this the weights stay packed wherever a GGUF kernel is installed.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    source = {"pretrained_model_name_or_path": str(gguf_path.parent), "gguf_file": gguf_path.name}
    with patch.object(gguf, "GGUFReader", _fast_reader(gguf.GGUFReader)):
        model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**source)

    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.model_max_length = model.config.max_position_embeddings
    _check_end_of_turn(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {package: version(package) for package in ("transformers", "torch", "accelerate", "gguf")}


def _fast_reader(reader: Any) -> Any:
    """Make transformers parse the file once, not three times, and through a plain array.

    Slicing a numpy memmap is several times slower than slicing an array, and the reader does it for
    every token of the vocabulary. Measured on 2 cores with Qwen2.5-Coder-0.5B: 51 to 30 s, same bytes.
    """
    import numpy as np

    class PlainReader(reader):  # type: ignore[misc]
        @property
        def data(self) -> object:
            return self._data

        @data.setter
        def data(self, memmap: object) -> None:
            self._data = np.asarray(memmap)

    return functools.cache(PlainReader)


def _check_end_of_turn(model: Any, tokenizer: Any) -> None:
    """Check that generation ends with the token that ends a turn of the chat."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False) if tokenizer.chat_template else ""
    stops_at = model.generation_config.eos_token_id
    if stops_at != tokenizer.eos_token_id or not text.rstrip().endswith(tokenizer.eos_token):
        raise UserError(
            "this GGUF file is not of a chat model: nothing would end an answer",
            {
                "generation ends with": f"{tokenizer.eos_token} (token {stops_at})",
                "chat template": "ends a turn otherwise" if text else "none",
            },
        )
