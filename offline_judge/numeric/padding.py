"""Ragged Python numbers to one padded tensor and its mask."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Padded(NamedTuple):
    """A ragged batch as a rectangle.

    `values` and `mask` have one shape: (B,), (B, N) or (B, N, M). `mask` is True where a value
    stands; elsewhere `values` holds padding, which no function of the numeric core reads.
    """

    values: Tensor
    mask: Tensor


def filled(values: Tensor, mask: Tensor, with_: float = 0.0) -> Tensor:
    """Return the values in float64, with one number wherever the mask is False."""
    return torch.where(mask, values.double(), with_)


def as_numbers(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values in a floating dtype; a bool is 0 or 1."""
    # torch turns bytes into numbers three times as fast as bool.
    return (values.view(torch.uint8) if values.dtype == torch.bool else values).to(dtype)


def pad(
    rows: Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]], *, ndim: int
) -> Padded:
    """Pad the numbers of B rows with 0 at the end of each list.

    `ndim` is the depth of one row, so that an empty list never has to be guessed: 0 for numbers
    gives (B,), 1 for vectors (B, N), 2 for matrices (B, N, M), where N and M are the longest
    lengths in the batch. A vector may be empty, a matrix may have no lines or lines of no length.
    None counts as the value NaN.

    Returns:
        float64 values and a bool mask, both on the CPU.

    Raises:
        ValueError: `ndim` is not 0, 1 or 2.
        TypeError, ValueError: a row is shallower or deeper than `ndim`, or not of numbers.
    """
    if ndim not in (0, 1, 2):
        raise ValueError(f"ndim is 0, 1 or 2, not {ndim}")
    values, mask = _pad(rows, ndim)
    return Padded(torch.from_numpy(values), torch.from_numpy(mask))


def _pad(rows: Sequence[Any], ndim: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pad the lists' items first, all lists in one go, then set them into their places."""
    if ndim == 0:
        numbers = np.fromiter(rows, np.float64, count=len(rows))
        return numbers, np.ones(len(rows), dtype=bool)
    lengths = np.fromiter(map(len, rows), np.int64, count=len(rows))
    item_values, item_mask = _pad(list(chain.from_iterable(rows)), ndim - 1)
    places = np.arange(lengths.max(initial=0)) < lengths[:, None]
    shape = places.shape + item_values.shape[1:]
    values, mask = np.zeros(shape), np.zeros(shape, dtype=bool)
    values[places], mask[places] = item_values, item_mask
    return values, mask
