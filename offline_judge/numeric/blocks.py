"""Run a function of whole batches on blocks of rows that fit the processor's cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Elements of the widest input in one block. Measured on 2 quiet cores with 2 MiB of L2 each: the cosines
#: of benchmarks/numeric_core.py took 1.10 s with 2**17, 1.25 to 1.45 s with 2**18 and 1.55 s with 2**16,
#: near where torch keeps to one thread; the other cases took the same.
_CPU_BLOCK = 2**17
#: An accelerator wants large kernels; this only bounds the memory, to 0.5 GiB a temporary.
_ACCELERATOR_BLOCK = 2**26


def in_blocks(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return `function(*tensors)` computed a block of rows at a time.

    `function` takes tensors (B, ...) and returns (B, ...), each row of the result from that row of
    the inputs alone, so the blocks do not show in the result.
    """
    n_rows = tensors[0].shape[0]
    # A bool is small, and so is what is made of it.
    n_elements = max(tensor.numel() // (4 if tensor.dtype == torch.bool else 1) for tensor in tensors)
    block = _CPU_BLOCK if tensors[0].device.type == "cpu" else _ACCELERATOR_BLOCK
    if n_elements <= block:
        return function(*tensors)
    n_block_rows = max(1, block * n_rows // n_elements)
    starts = range(0, n_rows, n_block_rows)
    return torch.cat([function(*(t[start : start + n_block_rows] for t in tensors)) for start in starts])
