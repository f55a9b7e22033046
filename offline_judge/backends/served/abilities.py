"""What a server can do, as its self-check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Abilities:
    """What one server really does; equal for all servers of a run.

    Attributes:
        model: the name that the server wants to hear.
        server: its kind and version, as far as it tells: "vllm 0.32.0".
        folder: the model's folder, where it lies on this machine; prompts are then sent as token ids.
        context_length: tokens of prompt and output together; None where the server does not say.
        probabilities: gives the log-probabilities of the next token.
        system_role: takes a system message.
        template_settings: takes settings of the chat template (`enable_thinking`).
        thinks: writes a think block before its answer.
        several_samples: honours `n` above 1.
        counts_cached_tokens: says how many prompt tokens came from its prefix cache.
        load_metrics: says how many requests wait (vLLM's `/metrics`).
    """

    model: str
    server: str
    folder: Path | None
    context_length: int | None
    probabilities: bool
    system_role: bool = True
    template_settings: bool = False
    thinks: bool = False
    several_samples: bool = False
    counts_cached_tokens: bool = False
    load_metrics: bool = False

    def to_json(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return {**asdict(self), "folder": None if self.folder is None else self.folder.name}
