from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity

from offline_judge.numeric import cosine, pad, response_relevancy

components = st.floats(-100, 100).map(lambda x: x if abs(x) > 1e-6 else 0.0)
rows_of_questions = st.lists(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=5), min_size=1, max_size=5
)


def relevancy(cosines, noncommittal, rule="all"):
    padded = pad(cosines, ndim=1)
    return response_relevancy(
        padded.values, pad(noncommittal, ndim=1).values, padded.mask, rule=rule
    ).tolist()


def test_by_hand():
    # (3, 4)·(4, 3) / (5 * 5) = 24/25; orthogonal 0; opposite -1
    a = torch.tensor([3.0, 4.0])
    assert cosine(a, torch.tensor([[4.0, 3.0], [-4.0, 3.0], [-3.0, -4.0]])).tolist() == [24 / 25, 0.0, -1.0]
    assert cosine(a, a).shape == ()


@given(
    st.integers(1, 8).flatmap(lambda d: st.lists(st.lists(components, min_size=d, max_size=d), min_size=2))
)
def test_against_plain_python_and_sklearn(vectors):
    x = torch.tensor(vectors, dtype=torch.float64)
    found = cosine(x[:, None], x[None])
    everything = cosine_similarity(x.numpy())
    for i, a in enumerate(vectors):
        for j, b in enumerate(vectors):
            norms = math.hypot(*a) * math.hypot(*b)
            if norms == 0:
                assert math.isnan(found[i, j])
            else:
                dot = math.fsum(p * q for p, q in zip(a, b, strict=True))
                assert found[i, j].item() == pytest.approx(dot / norms, abs=1e-12)
                assert found[i, j].item() == pytest.approx(everything[i, j], abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n_components", [1, 2, 3, 7, 31, 384, 385, 1024])
def test_a_vector_with_itself_is_exactly_1(dtype, n_components):
    x = torch.randn(50, n_components, generator=torch.Generator().manual_seed(n_components)).to(dtype)
    x[x == 0] = 1
    assert (cosine(x, x) == 1).all()
    assert (cosine(x[:, None], torch.stack([x, -x, x], dim=1)) == torch.tensor([1, -1, 1])).all()
    assert (cosine(x.T.contiguous().T, x) == 1).all()


@given(st.integers(0, 10_000))
def test_never_outside_by_rounding(seed):
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert (cosine(x, x * 3.3).abs() <= 1).all()
    assert cosine(x, x * 3.3).tolist() == pytest.approx([1.0] * 20, abs=1e-15)


def test_a_zero_vector_is_undefined_in_every_dtype():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        found = cosine(torch.tensor([0.0, 0.0]).to(dtype), torch.tensor([[1.0, 0.0], [0.0, 0.0]]).to(dtype))
        assert found.isnan().all()


def test_extreme_lengths():
    # (1, 1)·(1, 0) / sqrt(2) whatever the lengths, though the squares of 1e-200 and 1e200 are not float64
    a = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    b = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for scale in (1e-200, 1e200):
        assert cosine(a * scale, b * scale).item() == pytest.approx(math.sqrt(0.5), abs=1e-15)
    # The smallest and a large float32.
    assert cosine(torch.full((3,), 1e-45), torch.full((3,), 3e38)).item() == 1.0


def test_accumulates_in_float64():
    # In float32 the ones vanish beside 1e14: the dot product 1e14 + 2 - 1e14 would be 0. In float64 it is 2.
    a = torch.tensor([1e7, 1.0, 1.0, 1e7])
    b = torch.tensor([1e7, 1.0, 1.0, -1e7])
    assert cosine(a, b).item() == pytest.approx(2 / (2e14 + 2), rel=1e-15)


def test_broadcasting_and_blocks_agree_with_row_by_row():
    # Large enough to be cut into several blocks, with a last one that is not full.
    generator = torch.Generator().manual_seed(0)
    questions, generated = (
        torch.randn(1001, 64, generator=generator),
        torch.randn(1001, 3, 64, generator=generator),
    )
    found = cosine(questions[:, None], generated)
    assert found.shape == (1001, 3)
    for i in (0, 500, 1000):
        assert torch.equal(found[i], cosine(questions[i], generated[i]))
    assert cosine(questions[0], generated).shape == (1001, 3)
    assert cosine(questions[:7, None], questions[None, :5]).shape == (7, 5)
    assert cosine(questions[:0], questions[:0]).shape == (0,)


def test_shapes_are_checked():
    for a, b in [((3,), (4,)), ((0,), (0,)), ((2, 3), (5, 3))]:
        with pytest.raises(ValueError, match=r"length|broadcast"):
            cosine(torch.ones(a), torch.ones(b))


def test_relevancy_is_the_mean_cosine():
    # (0.95 + 0.90 + 0.85) / 3 = 0.90
    assert relevancy([[0.95, 0.90, 0.85]], [[0, 0, 0]]) == pytest.approx([0.90], abs=1e-15)


def test_the_two_rules():
    cosines = [[0.95, 0.90, 0.85]] * 2
    noncommittal = [[1, 1, 1], [0, 1, 0]]
    assert relevancy(cosines, noncommittal, "all") == pytest.approx([0.0, 0.90], abs=1e-15)
    assert relevancy(cosines, noncommittal, "any") == [0.0, 0.0]


def test_three_perfect_questions_are_exactly_1():
    assert relevancy([[1.0, 1.0, 1.0]], [[0, 0, 0]]) == [1.0]


def test_never_the_negative_zero():
    assert math.copysign(1, relevancy([[-0.5]], [[1]])[0]) == 1
    assert math.copysign(1, relevancy([[-0.0]], [[0]])[0]) == 1


def test_no_question_and_a_zero_vector_are_undefined():
    assert np.isnan(relevancy([[], [0.5, math.nan]], [[], [0, 0]])).all()


@pytest.mark.parametrize("rule", ["all", "any"])
@given(rows=rows_of_questions)
def test_relevancy_against_plain_python(rule, rows):
    cosines = [[c for c, _ in row] for row in rows]
    noncommittal = [[p for _, p in row] for row in rows]
    evasive = [math.prod(row) if rule == "all" else max(row) for row in noncommittal]
    wanted = [math.fsum(row) / len(row) * (1 - e) for row, e in zip(cosines, evasive, strict=True)]
    assert relevancy(cosines, noncommittal, rule) == pytest.approx(wanted, abs=1e-12)


def test_rule_is_checked():
    with pytest.raises(ValueError, match="any"):
        relevancy([[1.0]], [[0]], "most")
