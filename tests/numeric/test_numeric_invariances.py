"""What must not change a score: padding, row order, dtype, device, the size of the batch."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch.nn.functional import pad as widen

from offline_judge.numeric import (
    Padded,
    average_precision,
    f_beta_from_counts,
    masked_mean,
    masked_sum,
    noise_sensitivity,
    pad,
    precision_at_k,
    precision_recall,
    response_relevancy,
)

#: Every score of the core, over a row's: ranking verdicts (K), R (G, K), A (C, K), correct (C).
SCORES = {
    "masked_sum": lambda useful, *_: masked_sum(*useful),
    "masked_mean": lambda useful, *_: masked_mean(*useful),
    "average_precision": lambda useful, *_: average_precision(*useful),
    "precision_at_k": lambda useful, *_: precision_at_k(*useful, k=3),
    "noise relevant": lambda _, *noise: noise_sensitivity(*noise, mode="relevant"),
    "noise irrelevant": lambda _, *noise: noise_sensitivity(*noise, mode="irrelevant"),
    "relevancy all": lambda _u, _r, _a, right: response_relevancy(
        right.values, right.values, right.mask, rule="all"
    ),
    "relevancy any": lambda _u, _r, _a, right: response_relevancy(
        right.values, right.values, right.mask, rule="any"
    ),
    "precision": lambda useful, *_: precision_recall(*counts(useful))[0],
    "recall": lambda useful, *_: precision_recall(*counts(useful))[1],
    "f_beta": lambda useful, *_: f_beta_from_counts(*counts(useful), beta=2),
}
every_score = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())


def counts(useful):
    """Three columns of verdicts as counts."""
    return useful.values[:, 0], useful.values[:, 1], useful.values[:, 2]


def batch(n_rows=40, *, soft=False, n_chunks=None):
    rng = random.Random(7)
    verdict = rng.random if soft else lambda: rng.randint(0, 1)
    rows = []
    for _ in range(n_rows):
        n_reference, n_response = rng.randint(1, 3), rng.randint(0, 4)
        k = rng.randint(3, 6) if n_chunks is None else n_chunks
        reference, response = (
            [[verdict() for _ in range(k)] for _ in range(n)] for n in (n_reference, n_response)
        )
        rows.append(
            ([verdict() for _ in range(k)], reference, response, [verdict() for _ in range(n_response)])
        )
    return [pad(column, ndim=d) for column, d in zip(zip(*rows, strict=True), (1, 2, 2, 1), strict=True)]


def same(found, wanted, *, exactly=True):
    assert found.dtype == torch.float64
    tolerance = 0.0 if exactly else 1e-14
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=tolerance, equal_nan=True)


@every_score
@pytest.mark.parametrize("junk", [1.0, -7.0, math.nan])
@pytest.mark.parametrize("soft", [False, True])
def test_padding_is_never_read(score, junk, soft):
    inputs = batch(soft=soft)
    junked = [
        Padded(
            widen(torch.where(mask, values, junk), (0, 2) * (mask.ndim - 1), value=junk),
            widen(mask, (0, 2) * (mask.ndim - 1), value=False),
        )
        for values, mask in inputs
    ]
    same(score(*junked), score(*inputs), exactly=False)


@every_score
def test_row_order(score):
    inputs = batch(soft=True)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    same(score(*(Padded(values[order], mask[order]) for values, mask in inputs)), score(*inputs)[order])


@every_score
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
)
def test_dtype_of_verdicts(score, dtype):
    inputs = batch()
    same(score(*(Padded(values.to(dtype), mask) for values, mask in inputs)), score(*inputs))


@every_score
def test_one_row_at_a_time(score):
    inputs = batch(soft=True)
    rows = [
        score(*(Padded(values[i : i + 1], mask[i : i + 1]) for values, mask in inputs)) for i in range(40)
    ]
    same(torch.cat(rows), score(*inputs))


@every_score
def test_a_batch_of_many_blocks(score):
    inputs = batch(500, soft=True, n_chunks=6)
    many = [Padded(*(t.repeat(61, *[1] * (t.ndim - 1)) for t in padded)) for padded in inputs]
    assert many[2].values.numel() > 4 * 2**17
    same(score(*many), score(*inputs).repeat(61))


@every_score
def test_inputs_stay_as_they_are(score):
    inputs, before = batch(soft=True), batch(soft=True)
    score(*inputs)
    for padded, copy in zip(inputs, before, strict=True):
        assert torch.equal(padded.values, copy.values)
        assert torch.equal(padded.mask, copy.mask)


@every_score
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_device(score):
    inputs = batch(soft=True)
    on_device = score(*(Padded(values.cuda(), mask.cuda()) for values, mask in inputs))
    assert on_device.is_cuda
    same(on_device, score(*inputs), exactly=False)
