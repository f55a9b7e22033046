"""Against values of the reference implementation (ragas 0.4.3); each file's `note` says where it differs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from offline_judge.numeric import (
    average_precision,
    cosine,
    f_beta,
    f_beta_from_counts,
    noise_sensitivity,
    pad,
    precision_recall,
    response_relevancy,
)

GOLDEN = Path(__file__).parents[1] / "golden"


def cases(name):
    found = [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()]
    assert len(found) >= 40
    return found


def column(found, name):
    return [case[name] for case in found]


def test_average_precision():
    found = cases("average_precision.jsonl")
    scores = average_precision(*pad(column(found, "verdicts"), ndim=1)).tolist()
    assert scores == pytest.approx(column(found, "exact"), abs=1e-12)
    # ragas adds 1e-10 to a denominator of at least 1.
    assert scores == pytest.approx(column(found, "ragas"), abs=1e-9)


@pytest.mark.parametrize("mode", ["relevant", "irrelevant"])
def test_noise_sensitivity(mode):
    found = cases("noise_sensitivity.jsonl")
    reference, response = (
        pad(column(found, name), ndim=2) for name in ("reference_in_chunk", "response_in_chunk")
    )
    correct = pad(column(found, "correct"), ndim=1)
    assert noise_sensitivity(reference, response, correct, mode=mode).tolist() == column(found, mode)


def test_factual_correctness():
    found = cases("factual_correctness.jsonl")
    counts = [torch.tensor(column(found, name)) for name in ("tp", "fp", "fn")]
    apart = precision_recall(*counts, empty=math.nan)
    for side, scores, kept in zip(("precision", "recall"), precision_recall(*counts), apart, strict=True):
        # null where the formula is 0/0
        exact = [math.nan if value is None else value for value in column(found, f"exact_{side}")]
        assert kept.tolist() == pytest.approx(exact, abs=1e-12, nan_ok=True)
        # ragas adds 1e-8 to a denominator of at least 1, and so has 0 for 0/0.
        assert scores.tolist() == pytest.approx(column(found, f"ragas_{side}"), abs=1.1e-8)
    precision, recall = precision_recall(*counts)
    for i, case in enumerate(found):
        one = slice(i, i + 1)
        # unrounded in the file
        wanted = pytest.approx(case["ragas_f"], abs=1e-9)
        assert f_beta(precision[one], recall[one], case["beta"]).item() == wanted
        assert f_beta_from_counts(*(n[one] for n in counts), case["beta"]).item() == wanted


@pytest.mark.parametrize("rule", ["all", "any"])
def test_response_relevancy(rule):
    found = cases("response_relevancy.jsonl")
    cosines = [cosine(torch.tensor(c["question"]), torch.tensor(c["generated"])).tolist() for c in found]
    values, mask = pad(cosines, ndim=1)
    noncommittal = pad(column(found, "noncommittal"), ndim=1).values
    scores = response_relevancy(values, noncommittal, mask, rule=rule).tolist()
    # The vectors were rounded after the score was taken.
    assert scores == pytest.approx(column(found, f"{rule}_rule"), abs=1e-4)
