"""The check of the air gap sees what leaves, and sees nothing leave when a real run is what it watches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check_air_gap.sh"
CANNOT_TELL = 77

#: In the place of Python: an `evaluate` that makes one UDP socket face an address (which sends nothing).
WRAPPER = """#!{python}
import json, os, socket, sys
from pathlib import Path
arguments = sys.argv[1:]
if arguments[:2] != ["-m", "offline_judge"]:
    os.execv({python!r}, [{python!r}, *arguments])
if arguments[2] == "evaluate":
    run = Path(arguments[arguments.index("--out") + 1]) / "run"
    run.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps({{"connections_refused": []}}))
    with socket.socket(socket.{family}, socket.SOCK_DGRAM) as sock:
        sock.connect_ex(({host!r}, {port}))
"""


def check(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": python}
    done = subprocess.run(
        [SCRIPT, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=900
    )
    if done.returncode == CANNOT_TELL:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    return done


@pytest.mark.parametrize(
    ("family", "host", "port", "status"),
    [
        ("AF_INET", "192.0.2.1", 443, 1),
        ("AF_INET", "127.0.0.1", 443, 0),
        ("AF_INET", "127.0.0.53", 53, 1),  # a name server on this machine asks others
        ("AF_INET6", "2001:db8::1", 443, 1),
        ("AF_INET6", "::ffff:192.0.2.1", 443, 1),
        ("AF_INET6", "::1", 443, 0),
    ],
)
def test_what_leaves_is_told_from_what_stays(family, host, port, status, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(WRAPPER.format(python=sys.executable, family=family, host=host, port=port))
    wrapper.chmod(0o755)
    done = check("--backend", "transformers", python=str(wrapper))
    assert done.returncode == status, done.stdout + done.stderr
    assert ("something tried" if status else "nothing tried") in done.stdout


def test_a_step_that_fails_is_no_verdict(tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n[ "$2" = offline_judge ] && exit 3\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    done = check("--backend", "transformers", python=str(wrapper))
    assert done.returncode == 1
    assert "failed: check with transformers" in done.stdout
    assert "verdict" not in done.stdout


@pytest.mark.models
@pytest.mark.parametrize("backend", ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_nothing_leaves_a_real_run(backend, shelf_model):
    shelf_model("smollm2-135m-instruct")
    shelf_model("all-minilm-l6-v2")
    done = check("--backend", backend, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{backend}: evaluate works in a namespace with loopback only" in done.stdout
    assert f"{backend}: the guard refused 0 connections" in done.stdout
    assert f"{backend}: traced: 0 calls lead beyond this machine" in done.stdout
    assert "verdict: nothing tried to leave this machine" in done.stdout
