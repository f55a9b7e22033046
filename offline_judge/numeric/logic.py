"""`any` and `all` over verdicts in [0, 1]: on 0 and 1 exactly the Boolean operations.

    any -> max      all, and -> product      not v -> 1 - v

On probabilities `any` is that of the most probable item (the same rule as the maximum over
windows of a long premise), and `and` treats its two sides as independent.
"""

from __future__ import annotations

from torch import Tensor


def any_of(verdicts: Tensor, dim: int) -> Tensor:
    """Maximum over `dim` of verdicts that are 0 where there is no item; 0 where there is none at all."""
    # amax refuses a dimension of length 0, for which the sum is the wanted 0.
    return verdicts.amax(dim) if verdicts.shape[dim] else verdicts.sum(dim)


def all_of(verdicts: Tensor, dim: int) -> Tensor:
    """Product over `dim` of verdicts that are 1 where there is no item; 1 where there is none at all."""
    return verdicts.prod(dim)
