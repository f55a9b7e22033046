"""Context recall: did retrieval find everything that the reference says?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_judge.engine.asks import Claims, Evidence, Gather, Support
from offline_judge.metrics.edges import NO_REFERENCE_CLAIMS, checks, no_contexts
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded, masked_mean
from offline_judge.schema import ScorableRow


@metric(source="RAGAS 0.4 documentation, LLM-based context recall", version=1, uses=("verifier",))
@dataclass(frozen=True)
class ContextRecall:
    """Share of the reference's claims that the retrieved chunks support, in [0, 1].

    context_recall = reference claims supported by the joined chunks / reference claims.
    Unscored `no_reference_claims` where the reference states nothing; 0.0 with the flag
    `no_contexts` where nothing was retrieved.
    """

    needs = ("user_input", "retrieved_contexts", "reference")
    threshold: float = 0.5

    def gather(self, row: ScorableRow) -> Gather:
        """Ask what the reference claims, then whether the joined chunks support each claim."""
        (claims,) = yield [Claims(row.reference, row.user_input)]
        if not claims:
            return NO_REFERENCE_CLAIMS
        p = yield [Support(row.context, claim) for claim in claims]
        return Evidence(
            {"p_supported": p}, {"claims": claims}, no_contexts(row), checks("context", claims, p)
        )

    def score(self, p_supported: Padded) -> Tensor:
        """(B, G) verdicts to (B,)."""
        return masked_mean(*p_supported)
