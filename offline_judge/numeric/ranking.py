"""Scores of a ranked list of chunks from the verdict of each chunk.

The mask is True for the chunks that a row has: the first n of its K places.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offline_judge.numeric.blocks import in_blocks
from offline_judge.numeric.padding import filled
from offline_judge.numeric.rates import masked_mean


def average_precision(useful: Tensor, mask: Tensor) -> Tensor:
    """Average precision of the ranking, normalised by the useful chunks that were retrieved.

    AP = sum_k P@k V_k / sum_k V_k, with P@k the mean of V_1 ... V_k. TREC's average precision
    has the same numerator over all relevant documents, retrieved or not.

    Args:
        useful: (B, K) verdict V_k in [0, 1] of the chunk at rank k.
        mask: (B, K) bool, a prefix of each row.

    Returns:
        (B,) float64 in [0, 1]: exactly 0 where no chunk is useful or there is none, exactly 1
        where every useful chunk stands before all others.
    """
    return in_blocks(_average_precision, useful, mask)


def _average_precision(useful: Tensor, mask: Tensor) -> Tensor:
    verdicts = filled(useful, mask)
    ranks = torch.arange(1, verdicts.shape[-1] + 1, dtype=torch.float64, device=verdicts.device)
    precision_at = verdicts.cumsum(-1) / ranks
    total = verdicts.sum(-1)
    return torch.where(total == 0, 0.0, (precision_at * verdicts).sum(-1) / total)


def precision_at_k(useful: Tensor, mask: Tensor, k: int | None = None) -> Tensor:
    """Share of useful chunks among the first k; their order does not count.

    P@k = mean of V_1 ... V_min(k, n) for the n chunks of the row.

    Args:
        useful: (B, K) verdicts in [0, 1].
        mask: (B, K) bool, a prefix of each row.
        k: at least 1; None takes all chunks.

    Returns:
        (B,) float64 in [0, 1], 0 where there is no chunk.

    Raises:
        ValueError: `k` is less than 1.
    """
    if k is not None and k < 1:
        raise ValueError(f"k is at least 1 or None for all chunks, not {k}")
    return masked_mean(useful[:, :k], mask[:, :k], empty=0.0)
