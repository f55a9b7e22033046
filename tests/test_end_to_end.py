"""Real rows, real models, every metric: what a user does, with a judge too small to be right."""

from __future__ import annotations

import itertools
import json

import pytest

import offline_judge
from offline_judge.examples import ROWS
from offline_judge.metrics import registered

METRICS = [
    *(name for name, cls in registered().items() if cls.__module__.startswith("offline_judge.")),
    "noise_sensitivity[mode=irrelevant]",
]


@pytest.fixture(scope="module")
def rows():
    """The first English and the first Korean row."""
    lines = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    return [next(line for line in lines if line["id"].startswith(language)) for language in ("en-", "ko-")]


@pytest.fixture(scope="module")
def run(rows, shelf_model, tmp_path_factory):
    names = itertools.count()

    def run():
        out = tmp_path_factory.mktemp("runs")  # a store of its own each time: everything is asked anew
        return offline_judge.evaluate(
            rows,
            METRICS,
            judge=shelf_model("smollm2-135m-instruct"),
            embedder=shelf_model("all-minilm-l6-v2"),
            backend="transformers",
            out=out,
            name=f"run{next(names)}",
        )

    return run


@pytest.fixture(scope="module")
def result(run):
    return run()


def test_the_judge_never_breaks_a_schema(result):
    reasons = {reason for one in result.summary.values() for reason in one["unscored"]}
    assert not reasons & {"judge_not_json", "judge_schema", "judge_error", "judge_prompt_too_long"}
    assert not {reason for reason in reasons if reason.startswith("metric_error")}


def test_scores_are_within_the_range_that_their_metric_states(result):
    for name, scores in ((name, result[name]) for name in result.metrics):
        low, high = json.loads(registered()[name.partition("[")[0]].range)
        assert all(score is None or low <= score <= high for score in scores), name


def test_claims_and_questions_stay_in_the_language_of_the_row(result, rows):
    from offline_judge.text import same_script

    for row in rows:
        texts = result.evidence(row["id"])["faithfulness"]["texts"]
        assert all(same_script(row["response"], claim) for claim in texts.get("claims", ()))


def test_tokens_are_counted(result):
    usage = result.record["usage"]
    assert usage["output_tokens"] >= usage["generated"] > 0
    assert usage["prompt_tokens"] > usage["cached_tokens"] > 0


def test_two_runs_agree_to_the_byte(result, run):
    again = run()
    for file in ("scores.jsonl", "evidence.jsonl"):
        assert (again.folder / file).read_bytes() == (result.folder / file).read_bytes()
