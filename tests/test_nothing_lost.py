"""Killed, interrupted, shared: what was answered stays, and nothing is asked twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

SLOW_RUN = Path(__file__).with_name("slow_run.py")
ASK_BYTES = 17


def rows(n):
    for number in range(n):
        yield {
            "id": f"r{number}",
            "user_input": f"Where is depot {number}?",
            "response": f"Depot {number} is in Lund. It has {number % 7} gates.",
            "retrieved_contexts": [f"Depot {number} is in Lund.", f"Bus {number} is red."],
            "reference": f"Depot {number} is in Lund.",
        }


def write_rows(path, n):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(n)), encoding="utf-8")
    return path


def asked(log):
    return log.read_text(encoding="utf-8").split()


def start(*arguments, **settings):
    command = [sys.executable, str(SLOW_RUN), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


def finish(process):
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors


def wait_for_asks(log, n):
    for _ in range(6000):
        if log.exists() and log.stat().st_size >= n * ASK_BYTES:
            return
        time.sleep(0.02)
    pytest.fail("no asks came")


# kill -9 ----------------------------------------------------------------------------------------


def test_a_run_killed_at_25_random_moments_ends_like_one_that_was_not(tmp_path, capsys):
    data = write_rows(tmp_path / "rows.jsonl", 200)
    undisturbed, killed = tmp_path / "undisturbed.log", tmp_path / "killed.log"
    one = start("kill", undisturbed, 0, 0, 1, data, tmp_path / "a", cwd=tmp_path)
    status, _, errors = finish(one)
    assert status == 0, errors
    seed = int(os.environ.get("KILL_SEED", 1))
    status, output, errors = finish(
        start("kill", killed, 0.003, 25, seed, data, tmp_path / "b", cwd=tmp_path)
    )
    assert status == 0, errors
    done = json.loads(output)
    assert done["statuses"] == [-9] * 25 + [0]
    for file in ("scores.jsonl", "evidence.jsonl"):
        assert (tmp_path / "a/run" / file).read_bytes() == (tmp_path / "b/run" / file).read_bytes()
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["answers.sqlite", "run"]

    once = asked(undisturbed)
    assert max(Counter(once).values()) == 1
    assert set(asked(killed)) == set(once)
    # What was asked twice was in flight at a kill: the ask that was being answered, and what
    # the millisecond before had answered.
    again = asked(killed)
    in_flight = set()
    for end in done["cut"][:-1]:
        in_flight |= set(again[max(0, end // ASK_BYTES - 8) : end // ASK_BYTES])
    twice = {ask for ask, n in Counter(again).items() if n > 1}
    assert twice <= in_flight
    with capsys.disabled():
        n_early = sum(end < done["cut"][-1] for end in done["cut"])
        sys.stdout.write(
            f"[{len(once)} asks, {len(again) - len(once)} asked again after 25 kills,"
            f" {n_early} of them before the last ask] "
        )


# Many processes ---------------------------------------------------------------------------------

SHARED = """
import json, os, sys
from pathlib import Path
from stub_models import StubJudge
from offline_judge.engine.asks import Choose, Evidence
from offline_judge.engine.rounds import Engine
from offline_judge.engine.store import Store

def gather(worker, n):
    # Half of the asks are everybody's, half are this worker's own.
    who = worker if n % 2 else "all"
    (p,) = yield [Choose("support", (f"premise {n}", f"claim {n} of {who}"))]
    return Evidence({"p": float(p)}, {})

def value(call):
    return (hash_of(repr(call)) % 1000) / 1000

def hash_of(text):
    import zlib
    return zlib.crc32(text.encode())

children = []
for worker in range(8):
    child = os.fork()
    if child == 0:
        try:
            store = Store(Path(sys.argv[1]))
            judge = StubJudge(choose=value)
            found = []
            for start in range(0, 1000, 50):  # twenty rounds each
                tasks = [(gather(worker, n), "en") for n in range(start, start + 50)]
                found += [one.values["p"] for one in Engine(judge, store=store).run(tasks)]
            store.close()
            Path(sys.argv[1] + f".worker-{worker}").write_text(json.dumps(found))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    children.append(child)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


def test_eight_processes_share_a_store(tmp_path):
    from offline_judge.engine.store_contents import contents

    path = tmp_path / "shared.sqlite"
    command = [sys.executable, "-c", SHARED, str(path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(SLOW_RUN.parent), *sys.path])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0] * 8, done.stderr
    assert done.stderr == ""
    workers = [json.loads(Path(f"{path}.worker-{worker}").read_text()) for worker in range(8)]
    assert all(len(found) == 1000 for found in workers)
    assert all(found[::2] == workers[0][::2] for found in workers)
    assert len({tuple(found[1::2]) for found in workers}) == 8
    assert contents(path).n_answers == 500 + 8 * 500
    assert contents(path).problem == ""


def test_two_processes_do_not_write_one_run(tmp_path):
    data, log = write_rows(tmp_path / "rows.jsonl", 50), tmp_path / "log"
    command = ("cli", log, 0.05, "evaluate", data, "--name", "x")
    first = start(*command, cwd=tmp_path)
    wait_for_asks(log, 3)
    status, _, errors = finish(start(*command, cwd=tmp_path))
    first.kill()
    finish(first)
    assert status == 2
    assert "another process is writing this very run" in errors


# A full disk, a damaged store ---------------------------------------------------------------------


def test_a_full_disk_stops_the_command_with_one_error_and_it_goes_on_with_more_room(tmp_path):
    import resource

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    data, log = write_rows(tmp_path / "rows.jsonl", 40), tmp_path / "log"
    command = ("cli", log, 0.003, "evaluate", data, "--name", "x")
    status, _, errors = finish(start(*command, cwd=tmp_path, preexec_fn=little_room))
    assert status == 2, errors
    assert errors.count("error:") == 1
    assert "the answer store can't be written" in errors
    assert "MiB free" in errors
    assert "Traceback" not in errors
    before = asked(log)
    assert len(before) > 50
    status, _, errors = finish(start(*command, cwd=tmp_path))
    assert status == 0, errors
    again = asked(log)
    assert set(before) & set(again[len(before) :]) <= set(before[-3:])  # those that could not be written


def test_a_damaged_store_is_set_aside_with_one_message_and_the_run_goes_on(tmp_path):
    data, log = write_rows(tmp_path / "rows.jsonl", 5), tmp_path / "log"
    command = ("cli", log, 0, "evaluate", data, "--name", "x")
    assert finish(start(*command, cwd=tmp_path))[0] == 0
    store = tmp_path / "runs/answers.sqlite"
    store.write_bytes(b"spoilt " * 10_000)
    status, output, errors = finish(start(*command, cwd=tmp_path))
    assert status == 0, errors
    assert "run folder: runs/x" in output
    assert errors.count("set aside as answers.sqlite.damaged-1") == 1
    assert "Traceback" not in errors
    assert (tmp_path / "runs/answers.sqlite.damaged-1").read_bytes() == b"spoilt " * 10_000
    assert set(Counter(asked(log)).values()) == {2}


# Ctrl-C -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_in_order_and_the_same_command_goes_on(tmp_path, number):
    data, log = write_rows(tmp_path / "rows.jsonl", 5), tmp_path / "log"
    command = ("cli", log, 0.02, "evaluate", data, "--name", "x")
    process = start(*command, cwd=tmp_path)
    wait_for_asks(log, 20)
    process.send_signal(number)
    status, _, errors = finish(process)
    assert status == 128 + number, errors
    assert "Traceback" not in errors
    assert "stopping after the batch under way; once more to stop now" in errors
    assert "the same command goes on from here" in errors
    assert not (tmp_path / "runs/x").exists()
    assert (tmp_path / "runs/x.partial").is_dir()
    status, output, errors = finish(start(*command, cwd=tmp_path))
    assert status == 0, errors
    assert "run folder: runs/x" in output
    assert max(Counter(asked(log)).values()) == 1  # nothing was lost, not even what was in flight


def test_two_signals_stop_at_once(tmp_path):
    data, log = write_rows(tmp_path / "rows.jsonl", 5), tmp_path / "log"
    process = start("cli", log, 300, "evaluate", data, cwd=tmp_path)
    wait_for_asks(log, 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # it waits for the answer
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    status, _, errors = finish(process)
    assert time.monotonic() - started < 60  # of the 300 that the answer takes
    assert status == 130, errors
    assert "Traceback" not in errors
    assert "stopped at once" in errors
