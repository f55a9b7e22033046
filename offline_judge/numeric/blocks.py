"""Run a function of whole batches on blocks of rows that fit the processor's cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Elements of the widest input in one block. On a CPU its float64 copy is 0.5 MiB: the handful of
#: temporaries of a formula then stay in the L2 cache and malloc reuses them. At twice the size it
#: gave them back after each block, and mapping their pages anew took three times as long as the
#: arithmetic (cosine of 3 x 384, one thread, Xeon, glibc).
_CPU_BLOCK = 2**16
#: An accelerator wants large kernels; this only bounds the memory, to 0.5 GiB a temporary.
_ACCELERATOR_BLOCK = 2**26


def in_blocks(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return `function(*tensors)` computed a block of rows at a time.

    `function` takes tensors (B, ...) and returns (B, ...), each row of the result from that row of
    the inputs alone, so the blocks do not show in the result.
    """
    n_rows = tensors[0].shape[0]
    n_elements = max(tensor.numel() for tensor in tensors)
    block = _CPU_BLOCK if tensors[0].device.type == "cpu" else _ACCELERATOR_BLOCK
    if n_elements <= block:
        return function(*tensors)
    n_block_rows = max(1, block * n_rows // n_elements)
    starts = range(0, n_rows, n_block_rows)
    return torch.cat([function(*(t[start : start + n_block_rows] for t in tensors)) for start in starts])
