"""What can be known of a model folder before anything heavy is imported."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from offline_judge.errors import UserError

#: Longer contexts cost key-value memory that a judge's prompts never use.
DEFAULT_CONTEXT_LENGTH = 8192


def read_model_config(path: Path) -> dict[str, Any]:
    """Read `config.json` of a model folder.

    Raises:
        UserError: where the folder, the file or the safetensors weights are missing.
    """
    config_file = path / "config.json"
    if not config_file.is_file():
        raise UserError(f"{path} is no model folder", {"looked for": str(config_file)})
    if not any(path.rglob("*.safetensors")):
        raise UserError(
            f"model folder {path} has no safetensors weights",
            {
                "looked for": str(path / "*.safetensors"),
                "why": "other weight files are pickles, and loading a pickle runs the code in it",
                "to fix": "save the model again with save_pretrained(folder)",
            },
        )
    config: dict[str, Any] = json.loads(config_file.read_text(encoding="utf-8"))
    return config


def find_context_length(path: Path, requested: int | None) -> int:
    """Return the tokens of prompt and output together: as requested, or the model's, at most 8192.

    Raises:
        UserError: where more is requested than the model was trained for.
    """
    config = read_model_config(path)
    text_config = config.get("text_config", config)
    model_length: int | None = text_config.get("max_position_embeddings")
    return choose_context_length(requested, model_length, "model", str(path / "config.json"))


def choose_context_length(requested: int | None, available: int | None, owner: str, source: str) -> int:
    """Return the tokens of prompt and output together: as requested, or what there is, at most 8192.

    Args:
        requested: None where the user named none.
        available: None where it is not known.
        owner: whose length it is, "model" or "server".
        source: where it was read.

    Raises:
        UserError: where more is requested than there is.
    """
    if requested is None:
        return min(available or DEFAULT_CONTEXT_LENGTH, DEFAULT_CONTEXT_LENGTH)
    if available is not None and requested > available:
        raise UserError(
            f"context_length {requested} is more than the {owner} has",
            {f"{owner} has": f"{available} tokens ({source})"},
        )
    return requested


def package_versions(*packages: str) -> dict[str, str]:
    """Versions of those distributions that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def combine_fingerprint(model_fingerprint: str, settings: dict[str, object]) -> str:
    """Hash a model's content hash together with every setting that could change an answer.

    Returns 64 hexadecimal digits (SHA-256). The order of `settings` does not matter.
    """
    text = json.dumps({"model": model_fingerprint, **settings}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cannot_load(path: Path, error: Exception) -> UserError:
    """Say that a library could not load the model, with the first line of its own message."""
    message = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(
        f"the model in {path} can't be loaded",
        {
            "reason": message,
            "note": "models that bring their own code (trust_remote_code) are never loaded",
        },
    )
