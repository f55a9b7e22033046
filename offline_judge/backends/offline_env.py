"""Environment variables that keep the heavy libraries offline, silent and reproducible.

They are read while those libraries are imported, so `set_offline_env` comes before any such import.
"""

from __future__ import annotations

import os
import sys

#: Never overridden by what the user has set: nothing may leave the machine.
_ALWAYS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OTEL_SDK_DISABLED": "true",
}

_UNLESS_SET = {
    # vLLM writes about 15 warnings to stdout at every start, none of which a user can act on.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    # The engine in this very process: a child process would run the user's script again where it has
    # no `if __name__ == "__main__"`, and would outlive a kill.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Otherwise vLLM asks the routing table for an address that other machines could reach.
    "VLLM_HOST_IP": "127.0.0.1",
    # Otherwise gloo, which torch starts even for one process, asks the name server for this machine's name:
    # native code, which no guard in Python sees.
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    # GiB of key-value cache where vLLM runs on the CPU.
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def set_offline_env() -> None:
    """Set the variables; those that only concern comfort keep a value that the user has given."""
    os.environ.update(_ALWAYS)
    for name, value in _UNLESS_SET.items():
        os.environ.setdefault(name, value)
