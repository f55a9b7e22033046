"""The worked examples: verdicts are given, the score is arithmetic that can be done by hand."""

from __future__ import annotations

import pytest
import torch

from offline_judge.engine.asks import Evidence
from offline_judge.metrics import build, parse
from offline_judge.scoring import score_batch


def score(metric: str, **values):
    return score_batch(parse(metric), [Evidence(values, {})])[0].hard


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        # order [0, 1]: P@2 = 1/2 at the only useful chunk
        ("context_precision", {"p_useful": [0, 1]}, 0.5),
        ("precision_at_k[k=2]", {"p_useful": [0, 1]}, 0.5),
        # (1/1 + 2/3) / 2
        ("context_precision", {"p_useful": [1, 0, 1, 0]}, (1 + 2 / 3) / 2),
        ("context_precision", {"p_useful": [1, 1, 1]}, 1.0),
        ("context_precision", {"p_useful": [0, 0, 0]}, 0.0),
        ("context_precision_without_reference", {"p_useful": [0, 1]}, 0.5),
        ("precision_at_k[k=1]", {"p_useful": [0, 1, 1]}, 0.0),
        ("precision_at_k", {"p_useful": [0, 1, 1, 0]}, 0.5),
        ("context_recall", {"p_supported": [1, 0]}, 0.5),
        ("faithfulness", {"p_supported": [1, 0]}, 0.5),
        ("context_relevance", {"p_needed": [1, 0, 0, 0]}, 0.25),
        # (0.36 + 0 + 0.04) / 3; what stands twice changes nothing
        ("context_focus", {"cosine": [0.6, -0.5, 0.2]}, 0.4 / 3),
        ("context_focus", {"cosine": [0.6, -0.5, 0.2, 0.6, -0.5, 0.2]}, 0.4 / 3),
        ("context_focus", {"cosine": []}, 0.0),
        ("responsiveness", {"p_answers": [0.7]}, 1.0),
        ("responsiveness", {"p_answers": [0.3]}, 0.0),
        ("responsiveness[threshold=0.2]", {"p_answers": [0.3]}, 1.0),
        ("response_relevancy", {"cosine": [0.95, 0.90, 0.85], "noncommittal": [0, 0, 0]}, 0.90),
        ("response_relevancy", {"cosine": [0.95, 0.90, 0.85], "noncommittal": [1, 1, 1]}, 0.0),
        ("response_relevancy", {"cosine": [0.95, 0.90, 0.85], "noncommittal": [1, 0, 0]}, 0.90),
        ("response_relevancy[noncommittal=any]", {"cosine": [0.9, 0.9, 0.9], "noncommittal": [1, 0, 0]}, 0.0),
        ("response_relevancy", {"cosine": [-0.2], "noncommittal": [0]}, -0.2),
        # TP 1, FP 1, FN 1
        ("factual_correctness[mode=precision]", {"p_response": [1, 0], "p_reference": [1, 0]}, 0.5),
        ("factual_correctness[mode=recall]", {"p_response": [1, 0], "p_reference": [1, 0]}, 0.5),
        ("factual_correctness", {"p_response": [1, 0], "p_reference": [1, 0]}, 0.5),
        # TP 2, FN 2 of 3 reference claims: recall 2/4, on reference claims alone 1/3
        ("factual_correctness[mode=recall]", {"p_response": [1, 1], "p_reference": [1, 0, 0]}, 0.5),
        (
            "factual_correctness[mode=recall, recall_basis=reference]",
            {"p_response": [1, 1], "p_reference": [1, 0, 0]},
            1 / 3,
        ),
        # P 1/2, R 1/4: F_2 = 5 * 1/8 / (4 * 1/2 + 1/4) = (5/8) / (9/4)
        ("factual_correctness[beta=2]", {"p_response": [1, 0], "p_reference": [0, 0, 0]}, (5 / 8) / (9 / 4)),
        ("factual_correctness", {"p_response": [], "p_reference": [0, 0]}, 0.0),
        # 0.75 * 0.5 + 0.25 * 0.8
        ("answer_correctness", {"p_response": [1, 0], "p_reference": [1, 0], "cosine": 0.8}, 0.575),
        ("answer_correctness[weights=(0, 1)]", {"p_response": [1], "p_reference": [1], "cosine": 0.8}, 0.8),
        ("semantic_similarity", {"cosine": 0.8}, 0.8),
        ("semantic_similarity[threshold=0.9]", {"cosine": 0.8}, 0.0),
    ],
)
def test_score(metric, values, expected):
    assert score(metric, **values) == pytest.approx(expected, abs=1e-12)


NOISE = {
    "p_reference_in_chunk": [[1, 0]],
    "p_response_in_chunk": [[1, 0], [0, 1], [0, 0], [1, 1]],
    "p_correct": [0, 0, 1, 0],
}
# Chunks: receipts above 100,000 won, annual leave. The answer repeats both; the first part is right.
RECEIPTS = {"p_reference_in_chunk": [[1, 0]], "p_response_in_chunk": [[1, 0], [0, 1]], "p_correct": [1, 0]}


@pytest.mark.parametrize(
    ("values", "relevant", "irrelevant"),
    [(NOISE, 0.5, 0.25), (RECEIPTS, 0.0, 0.5)],
    ids=["golden", "receipts"],
)
def test_noise_sensitivity(values, relevant, irrelevant):
    assert score("noise_sensitivity", **values) == relevant
    assert score("noise_sensitivity[mode=irrelevant]", **values) == irrelevant


def test_a_probability_is_a_verdict_at_the_threshold_and_itself_in_the_soft_score():
    evidence = [Evidence({"p_supported": [0.9, 0.5, 0.1]}, {})]
    assert score_batch(build("faithfulness"), evidence) == [(pytest.approx(2 / 3), pytest.approx(0.5))]
    assert score_batch(build("faithfulness", {"threshold": 0.6}), evidence)[0].hard == pytest.approx(1 / 3)


def test_rows_of_different_length_score_as_they_do_alone():
    lists = [[1.0, 0.2], [0.7], [], [0.0, 1.0, 1.0, 0.4]]
    together = score_batch(build("context_precision"), [Evidence({"p_useful": one}, {}) for one in lists])
    alone = [score_batch(build("context_precision"), [Evidence({"p_useful": one}, {})])[0] for one in lists]
    assert together == alone


def test_matrices_without_rows_or_columns():
    empty = Evidence({"p_reference_in_chunk": [[]], "p_response_in_chunk": [[], []], "p_correct": [0, 1]}, {})
    full = Evidence(NOISE, {})
    assert [s.hard for s in score_batch(build("noise_sensitivity"), [empty, full, empty])] == [0.0, 0.5, 0.0]


def test_scores_are_float64_and_perfect_is_one():
    metric = build("faithfulness")
    from offline_judge.numeric import pad

    assert metric.score(pad([[1.0] * 7], ndim=1)).dtype == torch.float64
    assert score("faithfulness", p_supported=[1.0] * 7) == 1.0
