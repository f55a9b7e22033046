"""Run a function of whole batches on blocks of rows that fit the processor's cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Elements of the widest input in one block. On a CPU its float64 copy is 256 KiB, so the handful
#: of temporaries of a formula stay in the L2 cache. It is also the most that torch computes on one
#: thread: with twice as much, two threads gained at most 1.6x on a quiet machine of two cores and
#: lost up to 57x on a busy one, where each operation waits for the thread that has no core.
_CPU_BLOCK = 2**15
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
