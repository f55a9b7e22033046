"""Faithfulness: does the response say only what the retrieved chunks show?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_judge.engine.asks import Claims, Evidence, Gather, Support
from offline_judge.metrics.edges import NO_CLAIMS, checks, no_contexts
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded, masked_mean
from offline_judge.schema import ScorableRow


@metric(source="Es et al. 2024, arXiv:2309.15217, section 3", version=1, uses=("verifier",))
@dataclass(frozen=True)
class Faithfulness:
    """Share of the response's claims that the retrieved chunks support, in [0, 1].

    faithfulness = supported claims / claims. The reference is never read.
    Unscored `no_claims` where the response states nothing that could be checked; 0.0 with the
    flag `no_contexts` where nothing was retrieved.
    """

    needs = ("user_input", "response", "retrieved_contexts")
    threshold: float = 0.5

    def gather(self, row: ScorableRow) -> Gather:
        """Ask what the response claims, then whether the joined chunks support each claim."""
        (claims,) = yield [Claims(row.response, row.user_input)]
        if not claims:
            return NO_CLAIMS
        p = yield [Support(row.context, claim) for claim in claims]
        return Evidence(
            {"p_supported": p}, {"claims": claims}, no_contexts(row), checks("context", claims, p)
        )

    def score(self, p_supported: Padded) -> Tensor:
        """(B, C) verdicts to (B,)."""
        return masked_mean(*p_supported)
