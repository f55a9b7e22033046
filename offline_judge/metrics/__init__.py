"""The metrics: one file each. Importing this package registers all of them."""

from offline_judge.metrics.answer_correctness import AnswerCorrectness
from offline_judge.metrics.context_focus import ContextFocus
from offline_judge.metrics.context_precision import ContextPrecision, ContextPrecisionWithoutReference
from offline_judge.metrics.context_recall import ContextRecall
from offline_judge.metrics.context_relevance import ContextRelevance
from offline_judge.metrics.factual_correctness import FactualCorrectness
from offline_judge.metrics.faithfulness import Faithfulness
from offline_judge.metrics.noise_sensitivity import NoiseSensitivity
from offline_judge.metrics.precision_at_k import PrecisionAtK
from offline_judge.metrics.registry import Metric, build, label, metric, parse, registered
from offline_judge.metrics.response_relevancy import ResponseRelevancy
from offline_judge.metrics.responsiveness import Responsiveness
from offline_judge.metrics.semantic_similarity import SemanticSimilarity

#: The seven metrics that are scored where nobody says which, in the order of a report.
DEFAULT = (
    "context_precision",
    "precision_at_k",
    "context_recall",
    "faithfulness",
    "response_relevancy",
    "factual_correctness",
    "noise_sensitivity",
    "noise_sensitivity[mode=irrelevant]",
)

__all__ = [
    "DEFAULT",
    "AnswerCorrectness",
    "ContextFocus",
    "ContextPrecision",
    "ContextPrecisionWithoutReference",
    "ContextRecall",
    "ContextRelevance",
    "FactualCorrectness",
    "Faithfulness",
    "Metric",
    "NoiseSensitivity",
    "PrecisionAtK",
    "ResponseRelevancy",
    "Responsiveness",
    "SemanticSimilarity",
    "build",
    "label",
    "metric",
    "parse",
    "registered",
]
