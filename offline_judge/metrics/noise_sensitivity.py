"""Noise sensitivity: does retrieved text lead the response into wrong claims?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from offline_judge.engine.asks import Claims, Evidence, Gather, Support
from offline_judge.metrics.edges import NO_CLAIMS, NO_REFERENCE_CLAIMS, checks, grid, no_contexts
from offline_judge.metrics.registry import metric, one_of
from offline_judge.numeric import Padded, noise_sensitivity
from offline_judge.schema import ScorableRow


@metric(
    source="Ru et al. 2024, RAGChecker, arXiv:2408.08067; RAGAS 0.4 documentation",
    version=1,
    better="lower",
    uses=("verifier",),
)
@dataclass(frozen=True)
class NoiseSensitivity:
    """Share of the response's claims that are wrong and come from a retrieved chunk; lower is better.

    With R[g, k] reference claim g in chunk k, A[c, k] response claim c in chunk k, and correct[c]
    response claim c supported by the reference:

        relevant_k   = any_g R[g, k]
        from_rel_c   = any_k (relevant_k  & A[c, k])
        from_irrel_c = any_k (~relevant_k & A[c, k])
        relevant     = mean_c (from_rel_c & ~correct_c)
        irrelevant   = mean_c (from_irrel_c & ~from_rel_c & ~correct_c)

    `mode` chooses one of the two. Unscored `no_claims` or `no_reference_claims` where response or
    reference states nothing; 0.0 with the flag `no_contexts` where nothing was retrieved.
    """

    needs = ("user_input", "response", "reference", "retrieved_contexts")
    mode: Literal["relevant", "irrelevant"] = "relevant"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        """Check the mode."""
        one_of("mode", self.mode, ("relevant", "irrelevant"))

    def gather(self, row: ScorableRow) -> Gather:
        """Ask what both texts claim, then where each claim stands: in which chunk, in the reference."""
        chunks = row.retrieved_contexts
        ours, theirs = yield [Claims(row.response, row.user_input), Claims(row.reference, row.user_input)]
        if not ours:
            return NO_CLAIMS
        if not theirs:
            return NO_REFERENCE_CLAIMS
        p = yield [
            *(Support(chunk, claim) for claim in (*theirs, *ours) for chunk in chunks),
            *(Support(row.reference, claim) for claim in ours),
        ]
        n_pairs = (len(theirs) + len(ours)) * len(chunks)
        in_chunks = grid(p[:n_pairs], len(theirs) + len(ours), len(chunks))
        return Evidence(
            {
                "p_reference_in_chunk": in_chunks[: len(theirs)],
                "p_response_in_chunk": in_chunks[len(theirs) :],
                "p_correct": p[n_pairs:],
            },
            {"response_claims": ours, "reference_claims": theirs, "chunks": chunks},
            no_contexts(row),
            checks("reference", ours, p[n_pairs:]),
        )

    def score(self, p_reference_in_chunk: Padded, p_response_in_chunk: Padded, p_correct: Padded) -> Tensor:
        """(B, G, K), (B, C, K) and (B, C) verdicts to (B,)."""
        return noise_sensitivity(p_reference_in_chunk, p_response_in_chunk, p_correct, mode=self.mode)
