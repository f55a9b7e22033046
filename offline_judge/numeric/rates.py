"""Shares of claims: masked sum and mean, precision, recall and F-beta."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from offline_judge.numeric.padding import as_numbers, filled


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of the values under the mask: of verdicts a count, of probabilities the expected count.

    Args:
        values: (B, N), any dtype; what stands outside the mask is not read, be it NaN.
        mask: (B, N) bool.

    Returns:
        (B,) float64, 0 for a row without a value.
    """
    if values.dtype == torch.bool:
        return _count(values & mask)
    return filled(values, mask).sum(-1)


def masked_mean(values: Tensor, mask: Tensor, empty: float = math.nan) -> Tensor:
    """Mean of the values under the mask.

    mean_b = sum_n mask_bn * values_bn / sum_n mask_bn

    Args:
        values: (B, N) as in `masked_sum`.
        mask: (B, N) bool.
        empty: the result for a row without a value: undefined (NaN) unless told otherwise.

    Returns:
        (B,) float64.
    """
    return _ratio(masked_sum(values, mask), _count(mask), empty)


def precision_recall(tp: Tensor, fp: Tensor, fn: Tensor, *, empty: float = 0.0) -> tuple[Tensor, Tensor]:
    """Precision TP / (TP + FP) and recall TP / (TP + FN).

    Args:
        tp: (B,) response claims that the reference supports: a count, or a sum of probabilities.
        fp: (B,) response claims that it does not support.
        fn: (B,) reference claims that the response does not support.
        empty: what 0/0 gives. TP + FP = 0 means that the response claims nothing, which is a
            result and scores 0; `math.nan` keeps the undefined cases apart.

    Returns:
        Two (B,) float64 tensors in [0, 1].
    """
    tp, fp, fn = tp.double(), fp.double(), fn.double()
    return _ratio(tp, tp + fp, empty), _ratio(tp, tp + fn, empty)


def f_beta(precision: Tensor, recall: Tensor, beta: float = 1.0) -> Tensor:
    """Weighted harmonic mean of precision and recall; recall weighs `beta` times as much.

    F = (1 + beta²) P R / (beta² P + R), and 0 where both are 0; NaN where either is.
    Source: van Rijsbergen, Information Retrieval, 1979, chapter 7.

    Args:
        precision: (B,) in [0, 1].
        recall: (B,) in [0, 1].
        beta: greater than 0.

    Returns:
        (B,) float64 in [0, 1].

    Raises:
        ValueError: `beta` is not a finite number greater than 0.
    """
    weight = _squared(beta)
    precision, recall = precision.double(), recall.double()
    return _ratio((1 + weight) * precision * recall, weight * precision + recall, empty=0.0)


def f_beta_from_counts(
    tp: Tensor, fp: Tensor, fn: Tensor, beta: float = 1.0, *, empty: float = 0.0
) -> Tensor:
    """F-beta without the detour over precision and recall, so defined where one of them is 0/0.

    F = (1 + beta²) TP / ((1 + beta²) TP + beta² FN + FP)

    Args:
        tp: (B,) as in `precision_recall`, and so `fp` and `fn`.
        fp: (B,).
        fn: (B,).
        beta: greater than 0.
        empty: what TP = FP = FN = 0 gives, as in `precision_recall`.

    Returns:
        (B,) float64 in [0, 1].

    Raises:
        ValueError: `beta` is not a finite number greater than 0.
    """
    weight = _squared(beta)
    hits = (1 + weight) * tp.double()
    return _ratio(hits, hits + weight * fn.double() + fp.double(), empty)


def _count(which: Tensor) -> Tensor:
    """(..., N) bool to (...) float64: how many are True."""
    # torch sums short rows of bool slowly. The product is exact up to 2**24.
    return (as_numbers(which, torch.float32) @ torch.ones(which.shape[-1], device=which.device)).double()


def _ratio(part: Tensor, whole: Tensor, empty: float) -> Tensor:
    return torch.where(whole == 0, empty, part / whole)


def _squared(beta: float) -> float:
    if not (beta > 0 and math.isfinite(beta)):
        raise ValueError(f"beta is a finite number greater than 0, not {beta}")
    return beta * beta
