from __future__ import annotations

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offline_judge.numeric import pad

numbers = st.floats(allow_nan=False, allow_infinity=False)
vectors = st.lists(numbers, max_size=5)


def unpad(padded, depth):
    """Back to lists, one element at a time: trailing empty lines of a matrix do not show in a mask."""
    values, mask = padded
    if depth == 0:
        return [v.item() for v, m in zip(values, mask, strict=True) if m]
    return [unpad(pair, depth - 1) for pair in zip(values, mask, strict=True)]


def test_scalars():
    values, mask = pad([0.5, True, 2], ndim=0)
    assert values.tolist() == [0.5, 1.0, 2.0]
    assert values.dtype == torch.float64
    assert mask.tolist() == [True, True, True]


def test_vectors_are_padded_with_zeros_at_the_end():
    values, mask = pad([[1, 2, 3], [], [4]], ndim=1)
    assert values.tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
    assert mask.tolist() == [[True, True, True], [False] * 3, [True, False, False]]


def test_matrices_and_one_without_lines():
    values, mask = pad([[[1, 2], [3]], [], [[4]]], ndim=2)
    assert values.tolist() == [[[1, 2], [3, 0]], [[0, 0], [0, 0]], [[4, 0], [0, 0]]]
    assert mask.tolist() == [[[True, True], [True, False]], [[False] * 2] * 2, [[True, False], [False] * 2]]


@pytest.mark.parametrize(
    ("rows", "ndim", "shape"),
    [
        ([], 0, (0,)),
        ([], 1, (0, 0)),
        ([], 2, (0, 0, 0)),
        ([[], []], 1, (2, 0)),
        ([[], []], 2, (2, 0, 0)),
        ([[[], []], []], 2, (2, 2, 0)),
    ],
)
def test_nothing_still_has_its_shape(rows, ndim, shape):
    padded = pad(rows, ndim=ndim)
    assert padded.values.shape == padded.mask.shape == shape
    assert padded.values.dtype == torch.float64
    assert padded.mask.dtype == torch.bool


@given(st.lists(vectors, max_size=6))
def test_vectors_come_back(rows):
    assert unpad(pad(rows, ndim=1), 1) == rows


@given(st.lists(st.lists(vectors, max_size=4), max_size=5))
def test_matrices_come_back(rows):
    values, mask = pad(rows, ndim=2)
    n_lines = max(map(len, rows), default=0)
    assert unpad((values, mask), 2) == [row + [[]] * (n_lines - len(row)) for row in rows]
    assert not values[~mask].any()


@pytest.mark.parametrize("rows", [[[1], 2], [[1], [[2]]], [["1a"]]])
def test_a_row_of_another_depth_is_refused(rows):
    with pytest.raises((TypeError, ValueError)):
        pad(rows, ndim=1)


def test_ndim_is_checked():
    with pytest.raises(ValueError, match="0, 1 or 2"):
        pad([[[[1]]]], ndim=3)


def test_a_nan_is_a_value():
    values, mask = pad([[math.nan]], ndim=1)
    assert mask.tolist() == [[True]]
    assert values.isnan().all()


def test_a_hundred_thousand_rows_are_padded_in_well_under_a_second():
    rows = [[0.5] * (i % 11) for i in range(100_000)]
    started = time.process_time()
    pad(rows, ndim=1)
    assert time.process_time() - started < 1
