from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from offline_judge.numeric import average_precision, pad, precision_at_k

hard_rows = st.lists(st.lists(st.integers(0, 1), max_size=12), min_size=1, max_size=6)
soft_rows = st.lists(st.lists(st.floats(0, 1), max_size=12), min_size=1, max_size=6)


def plain_average_precision(verdicts):
    """The definition, one rank after the other."""
    seen, total = 0.0, 0.0
    for k, v in enumerate(verdicts, start=1):
        seen += v
        total += seen / k * v
    return total / seen if seen else 0.0


def test_the_useful_chunk_second():
    # P@2 = 1/2 counts, P@1 does not: AP = 1/2; order does not count for precision@2 = 1/2
    padded = pad([[0, 1]], ndim=1)
    assert average_precision(*padded).item() == 0.5
    assert precision_at_k(*padded, k=2).item() == 0.5


def test_useful_first_and_third():
    # (P@1 + P@3) / 2 = (1 + 2/3) / 2 = 5/6
    assert average_precision(*pad([[1, 0, 1, 0]], ndim=1)).item() == pytest.approx(5 / 6, abs=1e-15)


def test_probabilities_use_the_same_formula():
    # V = 0.5, 1: P@1 = 0.5, P@2 = 0.75; (0.5 * 0.5 + 0.75 * 1) / 1.5 = 2/3
    assert average_precision(*pad([[0.5, 1.0]], ndim=1)).item() == pytest.approx(2 / 3, abs=1e-15)


def test_none_useful_or_none_retrieved_is_0():
    padded = pad([[0, 0, 0], []], ndim=1)
    assert average_precision(*padded).tolist() == [0.0, 0.0]
    assert precision_at_k(*padded).tolist() == [0.0, 0.0]
    assert average_precision(*pad([[], []], ndim=1)).tolist() == [0.0, 0.0]
    assert average_precision(*pad([], ndim=1)).shape == (0,)


@given(st.integers(1, 300), st.integers(0, 50))
def test_all_useful_first_is_exactly_1(n_useful, n_rest):
    assert average_precision(*pad([[1] * n_useful + [0] * n_rest], ndim=1)).item() == 1.0
    assert precision_at_k(*pad([[1] * n_useful], ndim=1)).item() == 1.0


@given(soft_rows)
def test_average_precision_against_plain_python(rows):
    scores = average_precision(*pad(rows, ndim=1))
    assert scores.tolist() == pytest.approx([plain_average_precision(row) for row in rows], abs=1e-12)


@given(hard_rows)
def test_average_precision_against_sklearn(rows):
    # scikit-learn divides by the positives it is shown, as we do; without a positive it warns.
    rows = [row for row in rows if any(row)]
    wanted = [average_precision_score(row, [-rank for rank in range(len(row))]) for row in rows]
    assert average_precision(*pad(rows, ndim=1)).tolist() == pytest.approx(wanted, abs=1e-12)


@given(soft_rows, st.none() | st.integers(1, 15))
def test_precision_at_k_against_plain_python(rows, k):
    wanted = [math.fsum(row[:k]) / len(row[:k]) if row else 0.0 for row in rows]
    assert precision_at_k(*pad(rows, ndim=1), k=k).tolist() == pytest.approx(wanted, abs=1e-12)


def test_a_verdict_of_nan_is_not_hidden():
    assert average_precision(torch.tensor([[1.0, math.nan]]), torch.tensor([[True, True]])).isnan().all()


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_checked(k):
    with pytest.raises(ValueError, match="at least 1"):
        precision_at_k(*pad([[1]], ndim=1), k=k)
