"""Metrics of one ask a row, for labels that people gave to a whole claim, a set of passages, or an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_judge import Choose, Evidence, Gather, Similar, Support, metric
from offline_judge.numeric import Padded, masked_mean
from offline_judge.text import prompt_language

_PROMPTS = Path(__file__).parent / "prompts"


@metric(source="benchmarks: one label for a whole claim", version=1, uses=("verifier",))
@dataclass(frozen=True)
class ClaimSupported:
    """P(the chunks support the response, taken as one claim), in [0, 1]."""

    needs = ("response", "retrieved_contexts")
    threshold: float = 0.5

    def gather(self, row: Any) -> Gather:
        """Ask once."""
        p = yield [Support(row.context, row.response)]
        return Evidence({"p_supported": p}, {"claims": [row.response]})

    def score(self, p_supported: Padded) -> Any:
        """(B, 1) to (B,)."""
        return masked_mean(*p_supported)


@metric(source="benchmarks: one label for an answer", version=1, uses=("verifier",))
@dataclass(frozen=True)
class AnswerSupported:
    """P(the reference answer shows the response to be true of the question), in [0, 1]."""

    needs = ("user_input", "response", "reference")
    threshold: float = 0.5

    def gather(self, row: Any) -> Gather:
        """Ask once, with the question before both."""
        question = f"{row.user_input.strip().rstrip('?')}? "
        p = yield [Support(question + row.reference, question + row.response)]
        return Evidence({"p_supported": p}, {"claims": [row.response]})

    def score(self, p_supported: Padded) -> Any:
        """(B, 1) to (B,)."""
        return masked_mean(*p_supported)


@metric(source="benchmarks: one label for a set of passages", version=1)
@dataclass(frozen=True)
class PassagesAnswer:
    """Largest P(this passage answers the question) over the passages, in [0, 1]."""

    needs = ("user_input", "retrieved_contexts")
    threshold: float = 0.5

    def gather(self, row: Any) -> Gather:
        """Ask of each passage."""
        prompt = str(_PROMPTS / f"passage_answers_{prompt_language(row.user_input)}.toml")
        chunks = row.retrieved_contexts
        p = yield [Choose(prompt, (row.user_input, chunk), windowed="passage") for chunk in chunks]
        return Evidence({"p_answers": p}, {"chunks": chunks})

    def score(self, p_answers: Padded) -> Any:
        """(B, K) to (B,)."""
        return p_answers.values.masked_fill(~p_answers.mask, 0).amax(dim=1)


@metric(source="benchmarks: one label for a set of passages", version=1, uses=("embedder",))
@dataclass(frozen=True)
class NearestPassage:
    """Largest cosine of the question with a passage, in [-1, 1]; -1 without a passage."""

    needs = ("user_input", "retrieved_contexts")

    def gather(self, row: Any) -> Gather:
        """Ask for the likeness of each passage."""
        cosines = yield [Similar(row.user_input, chunk) for chunk in row.retrieved_contexts]
        return Evidence({"cosine": cosines}, {"chunks": row.retrieved_contexts})

    def score(self, cosine: Padded) -> Any:
        """(B, K) to (B,)."""
        return cosine.values.double().masked_fill(~cosine.mask, -1).amax(dim=1)
