"""Memory in use on the GPU."""

from __future__ import annotations

import sys


def gpu_bytes_in_use() -> int | None:
    """Bytes that all processes together hold on the current GPU; None where torch has not used one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total - free)
