"""Factual correctness: do response and reference state the same facts?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from offline_judge.engine.asks import Claims, Evidence, Gather, Level, Support
from offline_judge.metrics.edges import NO_REFERENCE_CLAIMS, checks
from offline_judge.metrics.registry import metric, one_of
from offline_judge.numeric import Padded, f_beta, masked_mean, masked_sum, precision_recall
from offline_judge.schema import ScorableRow


@metric(
    source="RAGAS 0.4 documentation, factual correctness",
    version=1,
    uses=("verifier",),
    asks_with=("atomicity", "coverage"),
)
@dataclass(frozen=True)
class FactualCorrectness:
    """Overlap of the facts of response and reference, in [0, 1].

    TP and FP are the response's claims with and without support in the reference, FN the
    reference's claims without support in the response. P = TP / (TP + FP), R = TP / (TP + FN) and
    F_beta = (1 + beta^2) P R / (beta^2 P + R); `mode` chooses one of them. With
    `recall_basis="reference"` R = supported reference claims / reference claims. Not rounded.
    0.0 where the response states nothing; unscored `no_reference_claims` where the reference does.
    """

    needs = ("response", "reference")
    mode: Literal["f1", "precision", "recall"] = "f1"
    beta: float = 1.0
    atomicity: Level = "high"
    coverage: Level = "high"
    recall_basis: Literal["response", "reference"] = "response"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        """Check the settings."""
        one_of("mode", self.mode, ("f1", "precision", "recall"))
        one_of("atomicity", self.atomicity, ("high", "low"))
        one_of("coverage", self.coverage, ("high", "low"))
        one_of("recall_basis", self.recall_basis, ("response", "reference"))
        if not self.beta > 0:
            raise ValueError(f"beta must be above 0, not {self.beta!r}")

    def gather(self, row: ScorableRow) -> Gather:
        """Ask what both texts claim, then for the support of each claim in the other text."""
        return (yield from compare_claims(row, self.atomicity, self.coverage))

    def score(self, p_response: Padded, p_reference: Padded) -> Tensor:
        """(B, C) verdicts on response claims and (B, G) on reference claims to (B,)."""
        precision, recall = claim_precision_recall(p_response, p_reference, self.recall_basis)
        if self.mode == "f1":
            return f_beta(precision, recall, self.beta)
        return precision if self.mode == "precision" else recall


def compare_claims(row: ScorableRow, atomicity: Level = "high", coverage: Level = "high") -> Gather:
    """Check the response's claims against the reference, and the reference's against the response."""
    question = row.user_input or ""
    ours, theirs = yield [
        Claims(row.response, question, atomicity, coverage),
        Claims(row.reference, question, atomicity, coverage),
    ]
    if not theirs:
        return NO_REFERENCE_CLAIMS
    p = yield [
        *(Support(row.reference, claim) for claim in ours),
        *(Support(row.response, claim) for claim in theirs),
    ]
    p_response, p_reference = p[: len(ours)], p[len(ours) :]
    return Evidence(
        {"p_response": p_response, "p_reference": p_reference},
        {"response_claims": ours, "reference_claims": theirs},
        checks=checks("reference", ours, p_response) + checks("response", theirs, p_reference),
    )


def claim_precision_recall(
    p_response: Padded, p_reference: Padded, recall_basis: str = "response"
) -> tuple[Tensor, Tensor]:
    """(B, C) and (B, G) verdicts to precision (B,) and recall (B,); see `FactualCorrectness`."""
    tp = masked_sum(*p_response)
    fp = masked_sum(1 - p_response.values, p_response.mask)
    fn = masked_sum(1 - p_reference.values, p_reference.mask)
    precision, recall = precision_recall(tp, fp, fn, empty=0.0)
    return precision, masked_mean(*p_reference) if recall_basis == "reference" else recall
