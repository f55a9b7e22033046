"""Context precision: are the useful chunks ranked first?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_judge.engine.asks import Choose, Evidence, Gather
from offline_judge.metrics.edges import NO_CLAIMS, NO_REFERENCE_CLAIMS, blank, no_contexts
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded, average_precision
from offline_judge.schema import ScorableRow


def useful_chunks(row: ScorableRow, answer: str) -> Gather:
    """Ask of each chunk whether it was useful in arriving at `answer`; a blank chunk keeps its rank."""
    chunks = row.retrieved_contexts
    p = yield [Choose("chunk_useful", (row.user_input, answer, chunk), windowed="chunk") for chunk in chunks]
    return Evidence({"p_useful": p}, {"chunks": chunks}, no_contexts(row))


@metric(source="RAGAS 0.4 documentation, context precision", version=1)
@dataclass(frozen=True)
class ContextPrecision:
    """Average precision of the ranking of chunks, in [0, 1].

    With V_k = 1 where chunk k was useful in arriving at the reference, and P@k the mean of the
    first k verdicts: context_precision = sum_k P@k V_k / sum_k V_k. Normalised by the relevant
    chunks *retrieved*, not by all relevant ones as in TREC. 0.0 where no chunk is useful, or with
    the flag `no_contexts` where nothing was retrieved. Unscored `no_reference_claims` where the
    reference is blank.
    """

    needs = ("user_input", "retrieved_contexts", "reference")
    threshold: float = 0.5

    def gather(self, row: ScorableRow) -> Gather:
        """Ask of each chunk whether it was useful in arriving at the reference."""
        if blank(row.reference):
            return NO_REFERENCE_CLAIMS
        return (yield from useful_chunks(row, row.reference))

    def score(self, p_useful: Padded) -> Tensor:
        """(B, K) verdicts in rank order to (B,)."""
        return average_precision(*p_useful)


@metric(source="RAGAS 0.4 documentation, context utilization", version=1, aliases=("context_utilization",))
@dataclass(frozen=True)
class ContextPrecisionWithoutReference:
    """Average precision of the ranking of chunks, judged by the response, in [0, 1].

    As `context_precision`, with the response in the reference's place. Unscored `no_claims`
    where the response is blank.
    """

    needs = ("user_input", "retrieved_contexts", "response")
    threshold: float = 0.5

    def gather(self, row: ScorableRow) -> Gather:
        """Ask of each chunk whether it was useful in arriving at the response."""
        if blank(row.response):
            return NO_CLAIMS
        return (yield from useful_chunks(row, row.response))

    def score(self, p_useful: Padded) -> Tensor:
        """(B, K) verdicts in rank order to (B,)."""
        return average_precision(*p_useful)
