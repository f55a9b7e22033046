from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_judge.numeric import Padded, noise_sensitivity, pad


def score(rows, mode):
    """Rows of (reference in chunk, response in chunk, correct) to scores."""
    references, responses, corrects = zip(*rows, strict=True)
    return noise_sensitivity(
        pad(references, ndim=2), pad(responses, ndim=2), pad(corrects, ndim=1), mode=mode
    ).tolist()


def plain_booleans(reference, response, correct, mode):
    """The definition with any, and, not, mean."""
    chunks = range(len(response[0]))
    relevant = [any(claim[k] for claim in reference) for k in chunks]
    wrong = []
    for claim, right in zip(response, correct, strict=True):
        from_relevant = any(relevant[k] and claim[k] for k in chunks)
        from_irrelevant = any(not relevant[k] and claim[k] for k in chunks)
        source = from_relevant if mode == "relevant" else from_irrelevant and not from_relevant
        wrong.append(source and not right)
    return sum(wrong) / len(wrong)


def plain_probabilities(reference, response, correct, mode):
    """The definition with max, product, 1 - p, mean."""
    chunks = range(len(response[0]))
    relevant = [max((claim[k] for claim in reference), default=0) for k in chunks]
    wrong = []
    for claim, right in zip(response, correct, strict=True):
        from_relevant = max((relevant[k] * claim[k] for k in chunks), default=0)
        from_irrelevant = max(((1 - relevant[k]) * claim[k] for k in chunks), default=0)
        source = from_relevant if mode == "relevant" else from_irrelevant * (1 - from_relevant)
        wrong.append(source * (1 - right))
    return sum(wrong) / len(wrong)


def rows_of(verdict):
    @st.composite
    def draw_row(draw):
        n_chunks = draw(st.integers(0, 5))
        claim = st.lists(verdict, min_size=n_chunks, max_size=n_chunks)
        response = draw(st.lists(claim, min_size=1, max_size=5))
        correct = draw(st.lists(verdict, min_size=len(response), max_size=len(response)))
        return draw(st.lists(claim, min_size=1, max_size=4)), response, correct

    return st.lists(draw_row(), min_size=1, max_size=5)


def test_the_golden_example():
    # chunk 1 is relevant. Claim 1 from it and wrong; claim 2 from chunk 2 and wrong; claim 3
    # correct; claim 4 from both and wrong, which counts as relevant. 2 of 4 and 1 of 4.
    row = ([[1, 0]], [[1, 0], [0, 1], [0, 0], [1, 1]], [0, 0, 1, 0])
    assert score([row], "relevant") == [0.5]
    assert score([row], "irrelevant") == [0.25]


def test_the_receipt():
    # The reference says when a receipt is needed; chunk 1 says it too, chunk 2 is on annual leave.
    # The response repeats both: its first claim is right, its second is noise from chunk 2. 0 and 1 of 2.
    row = ([[1, 0]], [[1, 0], [0, 1]], [1, 0])
    assert score([row], "relevant") == [0.0]
    assert score([row], "irrelevant") == [0.5]


def test_probabilities_use_the_same_formula():
    # relevant = max(0.5, 0.25) = 0.5; from_rel = 0.5 * 0.8 = 0.4; from_irrel = 0.5 * 0.8 = 0.4
    # relevant: 0.4 * (1 - 0.5) = 0.2; irrelevant: 0.4 * 0.6 * 0.5 = 0.12
    row = ([[0.5], [0.25]], [[0.8]], [0.5])
    assert score([row], "relevant") == pytest.approx([0.2], abs=1e-15)
    assert score([row], "irrelevant") == pytest.approx([0.12], abs=1e-15)


@pytest.mark.parametrize("mode", ["relevant", "irrelevant"])
def test_no_chunks_is_0_and_no_claims_undefined(mode):
    without_chunks = ([[]], [[], []], [0, 0])
    without_claims = ([[1, 1]], [], [])
    assert score([without_chunks], mode) == [0.0]
    assert score([without_chunks, without_claims], mode) == pytest.approx([0.0, float("nan")], nan_ok=True)
    assert score([without_claims], mode) == pytest.approx([float("nan")], nan_ok=True)


def test_without_reference_claims_every_chunk_is_irrelevant():
    # one wrong claim from chunk 2, one unsupported claim: 0 and 1 of 2
    row = ([], [[0, 1], [0, 0]], [0, 0])
    assert score([row], "relevant") == [0.0]
    assert score([row], "irrelevant") == [0.5]


@pytest.mark.parametrize("mode", ["relevant", "irrelevant"])
@given(rows=rows_of(st.integers(0, 1)))
def test_verdicts_against_booleans(mode, rows):
    assert score(rows, mode) == [plain_booleans(*row, mode) for row in rows]


@pytest.mark.parametrize("mode", ["relevant", "irrelevant"])
@given(rows=rows_of(st.booleans()))
def test_verdicts_may_be_bool(mode, rows):
    padded = [pad(column, ndim=ndim) for column, ndim in zip(zip(*rows, strict=True), (2, 2, 1), strict=True)]
    hard = [Padded(values.bool(), mask) for values, mask in padded]
    assert noise_sensitivity(*hard, mode=mode).tolist() == [plain_booleans(*row, mode) for row in rows]


@pytest.mark.parametrize("mode", ["relevant", "irrelevant"])
@given(rows=rows_of(st.floats(0, 1)))
def test_probabilities_against_plain_python(mode, rows):
    assert score(rows, mode) == pytest.approx([plain_probabilities(*row, mode) for row in rows], abs=1e-12)


@pytest.mark.parametrize("mode", ["relevant", "irrelevant"])
@pytest.mark.parametrize("n_chunks", [24, 25, 51, 52, 53, 80])
def test_more_chunks_than_one_number_has_bits(mode, n_chunks):
    # Every chunk stands for itself: the last one is relevant and the one before it is not.
    reference = [[int(k == n_chunks - 1) for k in range(n_chunks)]]
    response = [[int(k == n_chunks - back) for k in range(n_chunks)] for back in (1, 2, 3)]
    row = (reference, response, [0, 0, 1])
    assert score([row], mode) == [plain_booleans(*row, mode)] == [1 / 3]


@pytest.mark.parametrize("mode", ["relevant", "irrelevant"])
def test_a_verdict_just_below_1_counts_as_1(mode):
    almost = 1 - 2**-53
    row = ([[almost, 0]], [[almost, 0], [0, almost]], [0, 0])
    assert score([row], mode) == pytest.approx([0.5], abs=1e-15)


def test_shapes_are_checked():
    one_claim = pad([[[1, 0]]], ndim=2)
    for n_rows, n_claims in ((1, 2), (2, 1)):
        with pytest.raises(ValueError, match="do not agree"):
            noise_sensitivity(one_claim, one_claim, pad([[0] * n_claims] * n_rows, ndim=1))


def test_mode_is_checked():
    padded = pad([[[1]]], ndim=2)
    with pytest.raises(ValueError, match="relevant"):
        noise_sensitivity(padded, padded, pad([[0]], ndim=1), mode="both")
