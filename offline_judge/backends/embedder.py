"""An embedder on sentence-transformers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from offline_judge.backends.batching import free_memory, is_out_of_memory
from offline_judge.backends.model_folder import cannot_load, combine_fingerprint, package_versions
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_BATCH_SIZE = 64


class SentenceTransformerEmbedder:
    """A sentence-transformers model of a local folder: float32 on the CPU, bfloat16 on a GPU.

    Attributes:
        n_truncated: texts embedded so far that were longer than the model reads; their tail is
            not in their vector.
    """

    def __init__(self, path: Path, *, name: str, fingerprint: str, device: str | None = None) -> None:
        """Load the model.

        Raises:
            UserError: where the folder holds no model, or none that may be loaded.
        """
        set_offline_env()
        from sentence_transformers import SentenceTransformer

        # It announces the default prompt at every load; the run record names it.
        logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
        if not any(path.rglob("*.safetensors")):
            raise UserError(f"no safetensors weights in {path}", {"looked for": str(path / "*.safetensors")})
        self.name = name
        self.n_truncated = 0
        self._batch_size = _BATCH_SIZE
        found = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = torch.float32 if found.type == "cpu" else torch.bfloat16
        try:
            self._model = SentenceTransformer(
                str(path),
                device=str(found),
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True, "dtype": dtype},
            ).eval()
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise cannot_load(path, error) from error
        self._n_dimensions = self._encode([""]).shape[-1]
        prompt_name = self._model.default_prompt_name
        self._prompt: str = self._model.prompts.get(prompt_name, "") if prompt_name else ""
        self._settings: dict[str, object] = {
            "backend": "sentence-transformers",
            "versions": package_versions("torch", "transformers", "sentence-transformers"),
            "dtype": str(dtype).removeprefix("torch."),
            "device": self._model.device.type,
            "prompt": self._prompt,
            "max_tokens": self._model.max_seq_length,
        }
        self.fingerprint = combine_fingerprint(fingerprint, self._settings)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embed each text behind the model's default prompt.

        Returns:
            (N, D) float32 on the embedder's device, in the order of `texts`, as the model gives
            them: normalised only where the model itself does it. N = 0 gives (0, D).

        Raises:
            UserError: where the model returns another shape, or values that are not finite.
        """
        if not texts:
            return torch.empty(0, self._n_dimensions, device=self._model.device)
        self.n_truncated += self._count_too_long(texts)
        return check_vectors(self._encode(texts), (len(texts), self._n_dimensions), self.name)

    def describe(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return {**self._settings, "n_truncated": self.n_truncated}

    def close(self) -> None:
        """Free the model's memory."""
        del self._model
        free_memory()

    def _encode(self, texts: Sequence[str]) -> Tensor:
        """Embed in batches, halved for good where memory does not suffice; one text alone raises."""
        while True:
            try:
                vectors: Tensor = self._model.encode(
                    list(texts),
                    batch_size=self._batch_size,
                    show_progress_bar=False,
                    convert_to_tensor=True,
                    normalize_embeddings=False,
                )
                return vectors.float()
            except (MemoryError, RuntimeError) as error:
                if self._batch_size == 1 or not is_out_of_memory(error):
                    raise
            # Outside of `except`, whose traceback keeps the failed batch's tensors alive.
            self._batch_size //= 2
            free_memory()

    def _count_too_long(self, texts: Sequence[str]) -> int:
        limit = self._model.max_seq_length
        if limit is None:
            return 0
        encoded = self._model.tokenizer([self._prompt + text for text in texts], truncation=False)
        return sum(len(ids) > limit for ids in encoded["input_ids"])


def check_vectors(vectors: Tensor, shape: tuple[int, int], name: str) -> Tensor:
    """Return `vectors` where they are finite numbers of the (N, D) shape.

    Raises:
        UserError: naming the expected and the found shape, or how many vectors are not finite.
    """
    if tuple(vectors.shape) != shape:
        raise UserError(
            f"embedder {name!r} returned vectors of the wrong shape",
            {"expected": str(shape), "found": str(tuple(vectors.shape))},
        )
    broken = (~vectors.isfinite().all(dim=1)).nonzero()[:, 0].tolist()
    if broken:
        raise UserError(
            f"embedder {name!r} returned values that are not finite",
            {"texts": f"{len(broken)} of {shape[0]}, the first is number {broken[0] + 1}"},
        )
    return vectors
