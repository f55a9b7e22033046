"""How often the models are asked: the promise is a handful of generations and one batch per round."""

from __future__ import annotations

import itertools

import pytest
from stub_models import StubEmbedder, StubJudge, fields_of

import offline_judge
from offline_judge.metrics import DEFAULT

# 5 chunks, 4 claims on either side, no two texts alike.
ROW = {
    "id": "r",
    "user_input": "What do the four towns make?",
    "response": "Aldon makes bells. Birch makes boats. Corvin makes clocks. Denby makes drums.",
    "reference": "Aldon makes ropes. Birch makes sails. Corvin makes tiles. Denby makes glass.",
    "retrieved_contexts": [f"Chunk {n} speaks of town {n} at length." for n in range(5)],
}


@pytest.fixture
def judge(tmp_path):
    judge = StubJudge()
    offline_judge.evaluate(
        [ROW], list(DEFAULT), judge=judge, embedder=StubEmbedder(), out=tmp_path, name="run"
    )
    return judge


def test_at_most_six_generated_answers(judge):
    # claims of the response, claims of the reference, 3 questions, 1 for all written reasons
    assert len(judge.generated) == 6


def test_at_most_three_rounds(judge, tmp_path):
    assert len(judge.batches) == 3
    assert offline_judge.Result.load(tmp_path / "run").record["usage"]["rounds"] == 3


def test_every_question_is_asked_once(judge):
    assert len(set(judge.calls)) == len(judge.calls)


def test_no_support_question_is_left_out_or_added(judge):
    support = [call for call in judge.chosen if "statement" in fields_of(call)]
    # joined chunks x (4 + 4) claims, each of 5 chunks x (4 + 4), reference x 4, response x 4
    assert len(support) == 8 + 40 + 4 + 4
    # joined chunks, 5 chunks, reference, response, and the neutral text: the control of each is asked once,
    # and each of the 4 + 4 claims once of the neutral text
    controls = [call for call in judge.controls if "statement" in fields_of(call)]
    assert len(controls) == (1 + 5 + 1 + 1 + 1) + 8
    # each of the 5 chunks is judged useful or not once, for context precision and precision@k together
    assert len(judge.chosen) - len(support) == 5
    assert len(judge.controls) - len(controls) == 5 + 1


def test_prompts_with_one_premise_are_neighbours(judge):
    premises = [fields_of(call)["document"] for call in judge.chosen if "statement" in fields_of(call)]
    runs = 1 + sum(a != b for a, b in itertools.pairwise(premises))
    assert runs == len(set(premises))
