"""What all tests share: no connection leaves the machine, and real models come from the shelf."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from offline_judge.air_gap import air_gap
from offline_judge.backends.offline_env import set_offline_env

set_offline_env()

# A shell's background job ignores SIGINT, and so would everything that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHELF = Path(os.environ.get("OFFLINE_JUDGE_MODELS", Path(__file__).parents[1] / "models"))


@pytest.fixture(autouse=True, scope="session")
def only_loopback():
    """Refuse any connection beyond this machine."""
    with air_gap() as gap:
        yield gap


@pytest.fixture(autouse=True)
def reaches_nobody(only_loopback, request):
    """Let a test fail whose code tried to reach another machine, also where a library hid the refusal."""
    before = sum(one["count"] for one in only_loopback.refused())
    yield
    after = only_loopback.refused()
    if not request.node.get_closest_marker("reaches_out") and sum(one["count"] for one in after) > before:
        pytest.fail(f"a connection was tried: {after}", pytrace=False)


@pytest.fixture(scope="session")
def shelf_model():
    """Return the folder of a model on the shelf; the test command fills the shelf, so none may be missing."""

    def find(name: str) -> Path:
        folder = SHELF / name
        if not (folder / "config.json").is_file():
            pytest.fail(f"no model {name} on the shelf {SHELF}: python scripts/shelf.py add {name}")
        return folder

    return find
