"""What all tests share: no connection leaves the machine, and real models come from the shelf."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

import pytest

from offline_judge.backends.offline_env import set_offline_env

set_offline_env()

SHELF = Path(os.environ.get("OFFLINE_JUDGE_MODELS", Path(__file__).parents[1] / "models"))


def _is_loopback(address) -> bool:
    host = address[0]
    if host in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def only_loopback():
    """Let any attempt to connect beyond this machine fail the test that makes it."""
    plain = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex")}

    def guarded(name):
        def connect(self, address):
            if self.family != socket.AF_UNIX and not _is_loopback(address):
                pytest.fail(f"a connection to {address[0]} was tried", pytrace=True)
            return plain[name](self, address)

        return connect

    for name in plain:
        setattr(socket.socket, name, guarded(name))
    yield
    for name, method in plain.items():
        setattr(socket.socket, name, method)


@pytest.fixture(scope="session")
def shelf_model():
    """Return the folder of a model on the shelf; the test command fills the shelf, so none may be missing."""

    def find(name: str) -> Path:
        folder = SHELF / name
        if not (folder / "config.json").is_file():
            pytest.fail(f"no model {name} on the shelf {SHELF}: python scripts/shelf.py add {name}")
        return folder

    return find
