"""The cosine of vectors, and response relevancy on top of it."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from offline_judge.numeric.blocks import in_blocks
from offline_judge.numeric.logic import all_of, any_of
from offline_judge.numeric.padding import filled
from offline_judge.numeric.rates import masked_mean

Rule: TypeAlias = Literal["all", "any"]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between vectors, over the last dimension.

    cos(a, b) = a·b / sqrt(a·a b·b)

    Args:
        a: (..., D), any dtype.
        b: (..., D); the leading dimensions broadcast.

    Returns:
        The broadcast leading shape, float64 in [-1, 1]. Exactly 1 for a vector with itself; NaN
        where either vector is zero or not finite.

    Raises:
        ValueError: the last dimensions differ or are 0, or the leading ones do not broadcast.
    """
    if a.shape[-1] != b.shape[-1] or a.shape[-1] == 0:
        raise ValueError(f"vectors of one length above 0 are needed, not {a.shape[-1]} and {b.shape[-1]}")
    shape = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    # Only the first dimension is expanded, the one the blocks are cut along. A vector that meets
    # many others in a row is then converted once, not once for each of them.
    n_dims = max(len(shape), 1)
    n_rows = shape[0] if shape else 1
    a, b = (x.reshape((1,) * (n_dims + 1 - x.ndim) + x.shape).expand(n_rows, *(-1,) * n_dims) for x in (a, b))
    return in_blocks(_cosine, a, b).reshape(shape)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    a, b = _float64(a), _float64(b)
    # Three sums of products in one and the same order, not norms or a matmul: with b = a they are
    # equal to the bit, and sqrt(s * s) is s in IEEE arithmetic. The clamp is for the last bit only.
    dot = (a * b).sum(-1)
    aa, bb = a.square_().sum(-1), b.square_().sum(-1)
    return (dot / (aa * bb).sqrt()).clamp(-1.0, 1.0)


def _float64(vectors: Tensor) -> Tensor:
    """Return a contiguous float64 copy."""
    if vectors.dtype == torch.float64:
        # A float64 can be so large or small that its square is not; a narrower number cannot.
        # A zero vector becomes NaN here, the others' angles stay.
        vectors = vectors / vectors.abs().amax(-1, keepdim=True)
    return vectors.double().contiguous()


def response_relevancy(cosines: Tensor, noncommittal: Tensor, mask: Tensor, *, rule: Rule = "all") -> Tensor:
    """Mean cosine between the question and those generated from the response; 0 for an evasive response.

    score = mean_n cos_n * (1 - evasive), with evasive = all_n noncommittal_n (or any_n).

    Source: Es et al. 2024, arXiv:2309.15217, section 3, for the mean; "any" is RAGAS 0.1's rule.

    Args:
        cosines: (B, N) cosine of the user's question with each of N generated questions.
        noncommittal: (B, N) verdict in [0, 1] given with each question: the response is evasive.
        mask: (B, N) bool: which questions there are.
        rule: whether all N or any one of them makes a response evasive.

    Returns:
        (B,) float64 in [-1, 1], never the negative zero; NaN where a row has no question or a
        cosine of it is NaN.

    Raises:
        ValueError: `rule` is unknown.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule is one of {get_args(Rule)}, not {rule!r}")
    if rule == "all":
        evasive = all_of(filled(noncommittal, mask, 1.0), dim=-1)
    else:
        evasive = any_of(filled(noncommittal, mask), dim=-1)
    # A negative mean times 0 is -0.0, which prints as such; adding 0.0 makes it 0.0.
    return masked_mean(cosines, mask) * (1 - evasive) + 0.0
