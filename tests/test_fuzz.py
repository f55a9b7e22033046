"""Generated bad files and rows through the command line: no traceback, no hang, nothing of a row shown.

Either the exit status is 2 with one error, or every row comes back with a score or a reason for each
metric. The seeds are fixed; `FUZZ_FROM=100000 FUZZ_FILES=20000` tries others.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from hostile_inputs import CANARY, CELLS, DAMAGES, rows, write_bad_file
from stub_models import StubEmbedder, StubJudge

import offline_judge
from offline_judge import UserError
from offline_judge.cli import main

FIRST = int(os.environ.get("FUZZ_FROM", 0))
N_FILES = int(os.environ.get("FUZZ_FILES", 500))
PER_TEST = 50
METRICS = "faithfulness,context_precision,response_relevancy,factual_correctness,semantic_similarity"
SECONDS = 20


@pytest.fixture(autouse=True)
def no_hang():
    """Fail a case that takes longer than `SECONDS`, wherever it is."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_):
        raise TimeoutError(f"a case took longer than {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    yield
    signal.alarm(0)


@pytest.fixture
def cli(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("offline_judge.evaluation.open_models", lambda *_: (StubJudge(), StubEmbedder()))

    def run(*args):
        signal.alarm(SECONDS)
        done = CliRunner().invoke(main, list(map(str, args)))
        signal.alarm(0)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert CANARY not in done.output
        assert "Traceback" not in done.output
        if done.exit_code == 2:
            assert done.stderr.count("error: ") == 1
        return done

    return run


def assert_all_rows_are_there(folder, n_rows):
    """Every row once, and for every metric a score or a reason, never both."""
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == n_rows
    assert len({line["id"] for line in lines}) == n_rows
    for line in lines:
        for metric, score in line["scores"].items():
            assert (score is None) == (metric in line["unscored"])


@pytest.mark.parametrize("first", range(FIRST, FIRST + N_FILES, PER_TEST))
def test_bad_files(first, cli, tmp_path):
    statuses = set()
    for seed in range(first, first + PER_TEST):
        path = write_bad_file(tmp_path, seed)
        checked = cli("check", path)
        assert checked.exit_code in (0, 2), seed
        statuses.add(checked.exit_code)
        if checked.exit_code == 0 and seed % 4 == 0:
            done = cli("evaluate", path, "--metrics", METRICS, "--name", "x", "--reasons", "none")
            assert done.exit_code in (0, 1, 2), seed
            if done.exit_code != 2:
                record = json.loads((tmp_path / "runs/x/run.json").read_text(encoding="utf-8"))
                assert_all_rows_are_there(tmp_path / "runs/x", record["dataset"]["rows"])
        path.unlink()
    assert statuses == {0, 2}


@pytest.mark.parametrize("first", range(FIRST, FIRST + N_FILES // 5, PER_TEST))
def test_bad_rows_from_python(first, tmp_path):
    """The same odd cells as Python objects: a `UserError`, or every row with a score or a reason."""
    n_refused = 0
    for seed in range(first, first + PER_TEST):
        bad = rows(random.Random(-1 - seed), n_bad=2)
        signal.alarm(SECONDS)
        try:
            result = offline_judge.evaluate(
                bad,
                ["faithfulness", "response_relevancy"],
                judge=StubJudge(),
                embedder=StubEmbedder(),
                out=tmp_path,
                name="x",
                reasons="none",
            )
        except UserError as error:
            assert CANARY not in str(error)
            n_refused += 1
        else:
            assert_all_rows_are_there(result.folder, len(bad))
        finally:
            signal.alarm(0)
    assert 0 < n_refused < PER_TEST


@pytest.mark.parametrize("number", range(len(CELLS)))
def test_every_odd_cell_in_every_column(number, cli, tmp_path):
    """JSON lines, one row with the odd cell between two good ones."""
    for column in ("user_input", "response", "retrieved_contexts", "reference", "id", "language"):
        made = [
            {
                "id": f"r{n}",
                "user_input": f"Where is {CANARY}?",
                "response": f"{CANARY} is in Lund.",
                "retrieved_contexts": [CANARY],
                "reference": CANARY,
            }
            for n in range(3)
        ]
        made[1][column] = CELLS[number](random.Random(number))
        path = tmp_path / "r.jsonl"
        path.write_text("\n".join(map(json.dumps, made)), encoding="utf-8")
        done = cli("evaluate", path, "--metrics", "faithfulness", "--name", "x", "--reasons", "none")
        if done.exit_code == 2:
            assert f", line 2, column '{column}': " in done.stderr
            assert "to fix" in done.stderr
        else:
            assert_all_rows_are_there(tmp_path / "runs/x", 3)


@pytest.mark.parametrize("column", ["user_input", "response", "retrieved_contexts", "reference", "id"])
@pytest.mark.parametrize("character", ["x", "가", "x. ", "\n", "[", "."])
def test_a_cell_of_a_million_characters(column, character, cli, tmp_path):
    value = (character * 10**6)[: 10**6]
    made = {"user_input": "Where?", "response": "In Lund.", "retrieved_contexts": ["Lund."]} | {column: value}
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(made), encoding="utf-8")
    done = cli("evaluate", path, "--metrics", "faithfulness", "--name", "x", "--reasons", "none")
    assert done.exit_code in (0, 1)
    assert len(done.output) < 10_000
    assert_all_rows_are_there(tmp_path / "runs/x", 1)


def test_damaged_run_folders(cli, tmp_path):
    """One error that names the file, or the damage did not matter."""
    data, whole, bad = tmp_path / "r.jsonl", tmp_path / "runs/whole", tmp_path / "runs/bad"
    row = {
        "user_input": "Where?",
        "response": f"In {CANARY}. Or so.",
        "retrieved_contexts": [f"In {CANARY}."],
    }
    data.write_text(json.dumps(row), encoding="utf-8")
    assert cli("evaluate", data, "--metrics", "faithfulness", "--name", "whole").exit_code == 0
    n_refused = 0
    for seed in range(FIRST, FIRST + 60):
        r = random.Random(seed)
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(whole, bad)
        file = bad / r.choice(("run.json", "scores.jsonl", "evidence.jsonl"))
        if r.random() < 0.1:
            file.unlink()
        else:
            file.write_bytes(r.choice(DAMAGES)(r, file.read_bytes()))
        rescored = tmp_path / "runs" / f"again{seed}"
        if cli("rescore", bad, "--set", "*.threshold=0.4", "--out", rescored).exit_code == 2:
            n_refused += 1
        assert cli("show", bad).exit_code in (0, 2)
    assert n_refused > 10


@pytest.mark.parametrize("first", range(FIRST, FIRST + 6, 3))
def test_bad_files_in_a_process_of_their_own(first, tmp_path):
    """As a user starts it, with the standard streams of a machine that knows ASCII alone."""
    for seed in range(first, first + 3):
        path = write_bad_file(tmp_path, seed)
        done = subprocess.run(
            [sys.executable, "-m", "offline_judge", "check", str(path)],
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"},
        )
        assert done.returncode in (0, 2)
        assert b"Traceback" not in done.stderr
        assert CANARY.encode() not in done.stdout + done.stderr
