"""`any` and `all` over verdicts in [0, 1]: on 0 and 1 exactly the Boolean operations.

    any -> max      all, and -> product      not v -> 1 - v

On probabilities `any` is that of the most probable item (the same rule as the maximum over
windows of a long premise), and `and` treats its two sides as independent.
"""

from __future__ import annotations

import torch
from torch import Tensor


def any_of(verdicts: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Maximum over `dim` where `mask`, float64; 0 where there is no item."""
    present = torch.where(mask, verdicts.double(), 0.0)
    # amax refuses a dimension of length 0, for which the sum is the wanted 0.
    return present.amax(dim) if present.shape[dim] else present.sum(dim)


def all_of(verdicts: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Product over `dim` where `mask`, float64; 1 where there is no item."""
    return torch.where(mask, verdicts.double(), 1.0).prod(dim)
