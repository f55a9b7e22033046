from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import fbeta_score, precision_score, recall_score

from offline_judge.numeric import f_beta, f_beta_from_counts, masked_mean, masked_sum, pad, precision_recall

probabilities = st.floats(0, 1)
counts = st.integers(0, 30)
betas = st.floats(0.05, 20)


def one(x):
    return torch.tensor([x], dtype=torch.float64)


def test_one_of_two_claims_supported():
    # (1 + 0) / 2 = 0.5; the second row's claims are all supported
    assert masked_mean(*pad([[1, 0], [1, 1]], ndim=1)).tolist() == [0.5, 1.0]


def test_a_row_without_a_value_is_undefined_unless_told_otherwise():
    padded = pad([[], [1]], ndim=1)
    assert math.isnan(masked_mean(*padded)[0])
    assert masked_mean(*padded, empty=0.0).tolist() == [0.0, 1.0]
    assert masked_sum(*padded).tolist() == [0.0, 1.0]
    assert masked_mean(*pad([[], []], ndim=1)).isnan().all()


@given(st.lists(st.lists(probabilities, max_size=6), min_size=1, max_size=5))
def test_masked_sum_and_mean_against_plain_python(rows):
    padded = pad(rows, ndim=1)
    assert masked_sum(*padded).tolist() == pytest.approx([math.fsum(row) for row in rows])
    means = [math.fsum(row) / len(row) if row else math.nan for row in rows]
    assert masked_mean(*padded).tolist() == pytest.approx(means, nan_ok=True)


def test_one_claim_of_each_kind():
    # TP = FP = FN = 1: P = 1/2, R = 1/2, F1 = 2 * 1/4 / 1 = 1/2
    precision, recall = precision_recall(one(1), one(1), one(1))
    assert (precision.item(), recall.item()) == (0.5, 0.5)
    assert f_beta(precision, recall).item() == 0.5
    assert f_beta_from_counts(one(1), one(1), one(1)).item() == 0.5


def test_beta_above_1_favours_recall():
    # P = 1/2, R = 1: F2 = 5 * 1/2 / (4 * 1/2 + 1) = 5/6; F0.5 = 1.25 * 1/2 / (0.25 * 1/2 + 1) = 5/9
    assert f_beta(one(0.5), one(1.0), beta=2).item() == pytest.approx(5 / 6, abs=1e-15)
    assert f_beta(one(0.5), one(1.0), beta=0.5).item() == pytest.approx(5 / 9, abs=1e-15)


def test_nothing_claimed_is_0_or_kept_apart():
    # no response claim, 2 reference claims missing: P = 0/0, R = 0/2, F = 0/2
    tp, fp, fn = one(0), one(0), one(2)
    assert [x.item() for x in precision_recall(tp, fp, fn)] == [0.0, 0.0]
    precision, recall = precision_recall(tp, fp, fn, empty=math.nan)
    assert math.isnan(precision)
    assert recall.item() == 0.0
    assert f_beta_from_counts(tp, fp, fn, empty=math.nan).item() == 0.0
    assert f_beta_from_counts(tp, fp, one(0)).item() == 0.0
    assert math.isnan(f_beta_from_counts(tp, fp, one(0), empty=math.nan))


def test_f_beta_is_0_where_both_are_0_and_undefined_where_one_is():
    assert f_beta(one(0.0), one(0.0)).item() == 0.0
    assert math.isnan(f_beta(one(math.nan), one(1.0)))


@given(counts, counts, counts, betas)
def test_precision_recall_f_beta_against_sklearn(tp, fp, fn, beta):
    truth = [1] * tp + [0] * fp + [1] * fn
    found = [1] * tp + [1] * fp + [0] * fn
    if not truth:
        return
    precision, recall = precision_recall(one(tp), one(fp), one(fn))
    assert precision.item() == pytest.approx(precision_score(truth, found, zero_division=0), abs=1e-12)
    assert recall.item() == pytest.approx(recall_score(truth, found, zero_division=0), abs=1e-12)
    wanted = pytest.approx(fbeta_score(truth, found, beta=beta, zero_division=0), abs=1e-12)
    assert f_beta_from_counts(one(tp), one(fp), one(fn), beta).item() == wanted
    assert f_beta(precision, recall, beta).item() == wanted


@given(probabilities, probabilities, betas)
def test_f_beta_against_plain_python(precision, recall, beta):
    # 1 / F is the weighted mean of 1 / P and 1 / R with weights 1 and beta².
    if min(precision, recall) < 1e-100:
        return
    harmonic = (1 + beta**2) / (1 / precision + beta**2 / recall)
    assert f_beta(one(precision), one(recall), beta).item() == pytest.approx(harmonic, rel=1e-12)


@given(st.integers(1, 10**6), betas)
def test_perfect_is_exactly_1(tp, beta):
    assert [x.item() for x in precision_recall(one(tp), one(0), one(0))] == [1.0, 1.0]
    assert f_beta_from_counts(one(tp), one(0), one(0), beta).item() == 1.0
    assert f_beta(one(1.0), one(1.0), beta).item() == 1.0


@pytest.mark.parametrize("beta", [0, -1, math.nan, math.inf])
def test_beta_is_checked(beta):
    with pytest.raises(ValueError, match="greater than 0"):
        f_beta(one(1.0), one(1.0), beta)
    with pytest.raises(ValueError, match="greater than 0"):
        f_beta_from_counts(one(1), one(1), one(1), beta)
