"""Semantic similarity: do response and reference mean the same?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_judge.engine.asks import Evidence, Gather, Similar
from offline_judge.metrics.edges import NO_REFERENCE_CLAIMS, blank
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded
from offline_judge.schema import ScorableRow


@metric(
    source="Risch et al. 2021, arXiv:2108.06130",
    version=1,
    range="[-1, 1]",
    aliases=("answer_similarity",),
    uses=("embedder",),
)
@dataclass(frozen=True)
class SemanticSimilarity:
    """Cosine of the embeddings of response and reference, in [-1, 1].

    With a `threshold` the score is 1 where the cosine reaches it, else 0. Unscored `zero_vector`
    where an embedding has no length, `no_reference_claims` where the reference is blank; 0.0 with
    the flag `blank_response` where the response is.
    """

    needs = ("response", "reference")
    threshold: float | None = None

    def gather(self, row: ScorableRow) -> Gather:
        """Ask how close the two texts are."""
        if blank(row.reference):
            return NO_REFERENCE_CLAIMS
        if blank(row.response):
            return Evidence({"cosine": 0.0}, {}, ("blank_response",))
        (cosine,) = yield [Similar(row.response, row.reference)]
        return Evidence({"cosine": cosine}, {})

    def score(self, cosine: Padded) -> Tensor:
        """(B,) cosines to (B,)."""
        if self.threshold is None:
            return cosine.values
        return (cosine.values >= self.threshold).to(cosine.values.dtype)
