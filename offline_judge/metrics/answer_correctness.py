"""Answer correctness: the right facts, and the right meaning."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from offline_judge.engine.asks import Evidence, Gather, Similar
from offline_judge.metrics.edges import blank
from offline_judge.metrics.factual_correctness import claim_precision_recall, compare_claims
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded, f_beta
from offline_judge.schema import ScorableRow


@metric(
    source="RAGAS 0.4 documentation, answer correctness",
    version=1,
    range="[-0.25, 1]",
    uses=("verifier", "embedder"),
)
@dataclass(frozen=True)
class AnswerCorrectness:
    """Weighted mean of claim F_beta and semantic similarity.

    answer_correctness = (w_0 F_beta + w_1 cosine) / (w_0 + w_1), with F_beta of the claims as in
    `factual_correctness` and the cosine of response and reference. The cosine is not clamped, so
    with the default weights the range is [-0.25, 1]. Both parts are 0.0 where the response is
    blank; unscored `no_reference_claims` where the reference states nothing.
    """

    needs = ("user_input", "response", "reference")
    weights: tuple[float, float] = (0.75, 0.25)
    beta: float = 1.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        """Check the settings."""
        if len(self.weights) != 2 or min(self.weights) < 0 or not sum(self.weights) > 0:
            raise ValueError(f"weights must be two numbers of 0 or more, not both 0, not {self.weights!r}")
        if not self.beta > 0:
            raise ValueError(f"beta must be above 0, not {self.beta!r}")

    def gather(self, row: ScorableRow) -> Gather:
        """Ask for the claims of both texts, their support in the other text, and the cosine."""
        evidence = yield from compare_claims(row)
        if not isinstance(evidence, Evidence):
            return evidence
        cosine = 0.0
        if not blank(row.response):
            (cosine,) = yield [Similar(row.response, row.reference)]
        return replace(evidence, values={**evidence.values, "cosine": cosine})

    def score(self, p_response: Padded, p_reference: Padded, cosine: Padded) -> Tensor:
        """(B, C) and (B, G) verdicts and (B,) cosines to (B,)."""
        claims = f_beta(*claim_precision_recall(p_response, p_reference), self.beta)
        of_claims, of_similarity = self.weights
        return (of_claims * claims + of_similarity * cosine.values) / (of_claims + of_similarity)
