"""Context relevance: how much of the retrieved text is needed?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_judge.engine.asks import Choose, Evidence, Gather
from offline_judge.metrics.edges import no_contexts
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded, masked_mean
from offline_judge.schema import ScorableRow
from offline_judge.text import split_sentences


@metric(source="Es et al. 2024, arXiv:2309.15217, section 3", version=1)
@dataclass(frozen=True)
class ContextRelevance:
    """Share of the retrieved sentences that are needed to answer the question, in [0, 1].

    context_relevance = needed sentences / sentences of the joined chunks. 0.0 with the flag
    `no_contexts` where nothing was retrieved. Each sentence is judged within its chunk.
    """

    needs = ("user_input", "retrieved_contexts")
    threshold: float = 0.5

    def gather(self, row: ScorableRow) -> Gather:
        """Ask of each sentence whether it is needed."""
        pairs = [
            (chunk, sentence.text) for chunk in row.retrieved_contexts for sentence in split_sentences(chunk)
        ]
        p = yield [
            Choose("sentence_needed", (chunk, row.user_input, sentence), windowed="context")
            for chunk, sentence in pairs
        ]
        return Evidence({"p_needed": p}, {"sentences": [sentence for _, sentence in pairs]}, no_contexts(row))

    def score(self, p_needed: Padded) -> Tensor:
        """(B, S) verdicts to (B,); no sentence at all is 0."""
        return masked_mean(*p_needed, empty=0.0)
