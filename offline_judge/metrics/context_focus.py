"""Context focus: how closely does the retrieved text keep to the question?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_judge.engine.asks import Evidence, Gather, Similar, Unscored
from offline_judge.metrics.edges import blank, no_contexts
from offline_judge.metrics.registry import metric
from offline_judge.numeric import Padded, masked_mean
from offline_judge.schema import ScorableRow
from offline_judge.text import split_sentences


@metric(
    source="benchmarks/RESULTS.md, context relevance; after Es et al. 2024, arXiv:2309.15217, section 3",
    version=1,
    uses=("embedder",),
)
@dataclass(frozen=True)
class ContextFocus:
    """Mean squared cosine between the question and each retrieved sentence, in [0, 1].

    context_focus = mean over the sentences s of all chunks of max(0, cos(question, s))^2. It asks what
    `context_relevance` asks, how much of the retrieved text belongs to the question, and needs no judge.
    The square lets a sentence count by what it shares with the question: two that are halfway there do not
    stand for one that is. Text that stands twice leaves the score as it is, so length alone neither helps
    nor harms. Compare systems with it under one embedder: its size says nothing. 0.0 with the flag
    `no_contexts` where nothing was retrieved; unscored `blank_user_input` where the question is blank.
    """

    needs = ("user_input", "retrieved_contexts")

    def gather(self, row: ScorableRow) -> Gather:
        """Ask for the likeness of the question to every sentence."""
        if blank(row.user_input):
            return Unscored("blank_user_input")
        sentences = [sentence.text for chunk in row.retrieved_contexts for sentence in split_sentences(chunk)]
        cosines = yield [Similar(row.user_input, sentence) for sentence in sentences]
        return Evidence({"cosine": cosines}, {"sentences": sentences}, no_contexts(row))

    def score(self, cosine: Padded) -> Tensor:
        """(B, S) cosines to (B,); no sentence at all is 0."""
        return masked_mean(cosine.values.clamp(min=0).square(), cosine.mask, empty=0.0)
