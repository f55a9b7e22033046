"""Runs the real command line, or many killed runs, with a judge that is slow and logs every ask.

python slow_run.py cli LOG SECONDS ARGUMENTS…     the command line; each ask takes SECONDS
python slow_run.py kill LOG SECONDS N SEED ROWS OUT     N runs of ROWS, each killed at a random moment,
    and one that is not; prints a line of JSON: the lengths of the log in bytes at the kills
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from stub_models import StubEmbedder, StubJudge

import offline_judge
from offline_judge import evaluation


class SlowJudge(StubJudge):
    """Appends a hash of each call to a file before it answers."""

    def __init__(self, log: Path, seconds: float) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._seconds = seconds

    def answer(self, calls):
        for position, call in enumerate(calls):
            digest = hashlib.sha256(repr(call).encode()).hexdigest()[:16]
            os.write(self._log, f"{digest}\n".encode())
            time.sleep(self._seconds)
            for _, answer in super().answer([call]):
                yield position, answer


def run_cli(log: Path, seconds: float, arguments: list[str]) -> None:
    from offline_judge.cli import main

    evaluation.open_models = lambda *_: (SlowJudge(log, seconds), StubEmbedder())
    main(arguments)


def run_and_kill(log: Path, seconds: float, n: int, seed: int, rows: Path, out: Path) -> None:
    rng = random.Random(seed)
    cut: list[int] = []
    statuses: list[int] = []
    # The first kills come early, the last ones in the final writing: all answers are known by then.
    for attempt in range(n + 1):
        child = os.fork()
        if child == 0:
            try:
                offline_judge.evaluate(
                    rows, judge=SlowJudge(log, seconds), embedder=StubEmbedder(), out=out, name="run",
                    window_rows=64,
                )  # fmt: skip
            except BaseException as error:  # noqa: BLE001 - the parent must hear of it
                print(repr(error), file=sys.stderr)  # noqa: T201
                os._exit(1)
            os._exit(0)
        if attempt < n:
            time.sleep(rng.uniform(0.05, 1.2))
            os.kill(child, signal.SIGKILL)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if (out / "run").exists():  # then it is whole
            assert sum(1 for _ in offline_judge.Result.load(out / "run")._run.scores()) == 200
        cut.append(log.stat().st_size if log.exists() else 0)
    print(json.dumps({"statuses": statuses, "cut": cut}))  # noqa: T201


if __name__ == "__main__":
    mode, log, seconds, *rest = sys.argv[1:]
    if mode == "cli":
        run_cli(Path(log), float(seconds), rest)
    else:
        n, seed, rows, out = rest
        run_and_kill(Path(log), float(seconds), int(n), int(seed), Path(rows), Path(out))
