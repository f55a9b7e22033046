"""Response relevancy: does the response answer the question that was asked?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from offline_judge.engine.asks import Evidence, Gather, Questions, Similar, Unscored
from offline_judge.metrics.edges import blank
from offline_judge.metrics.registry import metric, one_of
from offline_judge.numeric import Padded, response_relevancy
from offline_judge.schema import ScorableRow


@metric(
    source="Es et al. 2024, arXiv:2309.15217, section 3 (answer relevance)",
    version=1,
    range="[-1, 1]",
    aliases=("answer_relevancy",),
    uses=("judge", "embedder"),
    asks_with=("strictness",),
)
@dataclass(frozen=True)
class ResponseRelevancy:
    """Mean cosine between the question and questions generated from the response alone, in [-1, 1].

    N = strictness questions are generated from N different seeds. The mean is multiplied by 0 if
    all of them call the response noncommittal (`noncommittal="all"`), or if any does ("any").
    Negative values are kept as they are. 0.0 with the flag `noncommittal` where the response is
    blank. The flag `repeated_questions` says that fewer than N distinct questions came back.
    """

    needs = ("user_input", "response")
    strictness: int = 3
    noncommittal: Literal["all", "any"] = "all"

    def __post_init__(self) -> None:
        """Check the settings."""
        one_of("noncommittal", self.noncommittal, ("all", "any"))
        if not isinstance(self.strictness, int) or self.strictness < 1:
            raise ValueError(f"strictness must be 1 or more, not {self.strictness!r}")

    def gather(self, row: ScorableRow) -> Gather:
        """Ask for questions that the response could answer, then for their likeness to the question."""
        if blank(row.user_input):
            return Unscored("blank_user_input")
        if blank(row.response):
            return Evidence({"cosine": [0.0], "noncommittal": [1]}, {"questions": [""]}, ("noncommittal",))
        (questions,) = yield [Questions(row.response, self.strictness)]
        cosines = yield [Similar(row.user_input, question.text) for question in questions]
        texts = [question.text for question in questions]
        verdicts = [question.noncommittal for question in questions]
        flags = ("noncommittal",) * all(verdicts) + ("repeated_questions",) * (len(set(texts)) < len(texts))
        return Evidence({"cosine": cosines, "noncommittal": verdicts}, {"questions": texts}, flags)

    def score(self, cosine: Padded, noncommittal: Padded) -> Tensor:
        """(B, N) cosines and (B, N) verdicts to (B,)."""
        return response_relevancy(cosine.values, noncommittal.values, cosine.mask, rule=self.noncommittal)
