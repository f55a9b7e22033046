"""Precision at k: how many of the first chunks are useful?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_judge.engine.asks import Gather
from offline_judge.metrics.context_precision import useful_chunks
from offline_judge.metrics.edges import NO_REFERENCE_CLAIMS, blank
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded, precision_at_k
from offline_judge.schema import ScorableRow


@metric(source="Manning et al. 2008, Introduction to Information Retrieval, section 8.4", version=1)
@dataclass(frozen=True)
class PrecisionAtK:
    """Share of useful chunks among the first k, in [0, 1]; their order does not count.

    precision@k = mean of the first min(k, K) of the very verdicts of `context_precision`; k None
    takes all. 0.0 with the flag `no_contexts` where nothing was retrieved. Unscored
    `no_reference_claims` where the reference is blank.
    """

    needs = ("user_input", "retrieved_contexts", "reference")
    k: int | None = None
    threshold: float = 0.5

    def __post_init__(self) -> None:
        """Check k."""
        if self.k is not None and (not isinstance(self.k, int) or self.k < 1):
            raise ValueError(f"k must be 1 or more, or none for all chunks, not {self.k!r}")

    def gather(self, row: ScorableRow) -> Gather:
        """Ask of each chunk whether it was useful in arriving at the reference."""
        if blank(row.reference):
            return NO_REFERENCE_CLAIMS
        return (yield from useful_chunks(row, row.reference))

    def score(self, p_useful: Padded) -> Tensor:
        """(B, K) verdicts in rank order to (B,)."""
        return precision_at_k(*p_useful, k=self.k)
