"""Responsiveness: does the response give what the question asks for?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_judge.engine.asks import Choose, Evidence, Gather, Unscored
from offline_judge.metrics.edges import blank
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded, masked_mean
from offline_judge.schema import ScorableRow


@metric(source="benchmarks/RESULTS.md, answer relevance; the question asked of the judge itself", version=1)
@dataclass(frozen=True)
class Responsiveness:
    """Whether the response answers the whole question, in [0, 1].

    responsiveness = [p >= threshold], p = P(the response gives what the question asks for), read from one
    token. It asks what `response_relevancy` asks, in one call and without an embedder; whether the response
    is true plays no part. 0.0 with the flag `noncommittal` where the response is blank; unscored
    `blank_user_input` where the question is.
    """

    needs = ("user_input", "response")
    threshold: float = 0.5

    def gather(self, row: ScorableRow) -> Gather:
        """Ask once whether the response answers the question."""
        if blank(row.user_input):
            return Unscored("blank_user_input")
        if blank(row.response):
            return Evidence({"p_answers": [0.0]}, {"responses": [""]}, ("noncommittal",))
        p = yield [Choose("question_answered", (row.user_input, row.response), windowed="response")]
        return Evidence({"p_answers": p}, {"responses": [row.response]})

    def score(self, p_answers: Padded) -> Tensor:
        """(B, 1) verdicts to (B,)."""
        return masked_mean(*p_answers)
