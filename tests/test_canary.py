"""A canary in every column of a failing run shows up in no message, log, traceback or progress line.

Ids are no secret: messages name rows by them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("canary_run.py")
CANARY = "zq9canary"
#: Every library that is used, at its loudest; and progress bars as on a terminal.
LOUD = {
    "TRANSFORMERS_VERBOSITY": "debug",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "DATASETS_VERBOSITY": "debug",
    "HF_HUB_VERBOSITY": "debug",
    "HF_DEBUG": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "0",
    "LLGUIDANCE_LOG_LEVEL": "2",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    "PYTHONWARNINGS": "always",
    "FORCE_COLOR": "1",
}

ROWS = [
    {
        "id": f"r{n}",
        "user_input": f"Where is the {CANARY} depot, number {n}?",
        "response": f"The {CANARY} depot is in Lund. It has {n} gates.",
        "retrieved_contexts": [f"The {CANARY} depot is in Lund.", f"{CANARY} buses are red."],
        "reference": f"The {CANARY} depot is in Lund.",
        "reference_contexts": [CANARY],
        "notes": CANARY,
        "meta": {CANARY: CANARY},
    }
    for n in range(3)
]

METRICS_OF_ONES_OWN = """
from dataclasses import dataclass
from offline_judge import Evidence, Support, metric

class LoudError(Exception):
    pass

def define(name, gather, score=lambda self, x: x.values):
    body = {"__doc__": "One.", "__module__": __name__, "needs": ("response",)}
    body |= {"gather": gather, "score": score}
    metric(source="test", version=1)(dataclass(frozen=True)(type(name, (), body)))

def at_once(self, row):
    raise LoudError(row)

def later(self, row):
    yield [Support(row.response, row.response)]
    raise LoudError(row.response)

def nothing(self, row):
    yield []

def well(self, row):
    yield []
    return Evidence({"x": 1.0}, {"claims": [row.response]})

def loud_score(self, x):
    raise LoudError(x)

define("AtOnce", at_once)
define("Later", later)
define("Nothing", nothing)
define("LoudScore", well, loud_score)
"""


def written_by(*arguments, cwd, status=0):
    """All that the process wrote, after checking that no canary is in it."""
    done = subprocess.run(
        [sys.executable, str(RUN), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=400,
        cwd=cwd,
        env={**os.environ, **LOUD, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    written = done.stdout.decode("utf-8", "replace")
    assert CANARY not in written, written[max(0, written.find(CANARY) - 1500) :][:3000]
    assert CANARY.encode("utf-16-le") not in done.stdout
    assert done.returncode == status, written[-3000:]
    return written


def run_all(cases, cwd):
    """Run [failure, arguments, exit status, what must be said] one after another in one process."""
    runs = [[failure, list(map(str, arguments))] for failure, arguments, _, _ in cases]
    parts = written_by(json.dumps(runs), cwd=cwd).split("\n--- ")
    assert len(parts) == len(cases) + 1
    for (failure, arguments, status, expected), part, after in zip(cases, parts, parts[1:], strict=False):
        part = part[part.rfind("=== ") :]
        assert after.startswith(f"{status}\n"), (failure, arguments, part)
        assert expected in " ".join(part.split()), (failure, arguments, part)
        assert ("Traceback" in part) == (status == 70)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return path


def test_models_that_fail_by_quoting_their_input(data, tmp_path):
    metrics = "faithfulness,response_relevancy,context_recall,factual_correctness"
    arguments = ("evaluate", data, "--metrics", metrics, "--fresh")
    cases = [
        ("none", 0, "3 of 3"),
        ("judge breaks", 2, "error: the judge 'stub' broke down"),
        ("judge breaks midway", 2, "error: the judge 'stub' broke down"),
        ("judge fails", 1, "judge_error 3"),
        ("judge prattles", 1, "judge_not_json 3"),
        ("embedder breaks", 1, "embedder_error 3"),
        ("embedder is flat", 2, "returned vectors of the wrong shape"),
    ]
    run_all([(failure, arguments, status, expected) for failure, status, expected in cases], tmp_path)


def test_an_error_that_nobody_catches(data, tmp_path):
    written = written_by("--uncaught", "judge breaks midway", data, cwd=tmp_path, status=1)
    assert "Traceback" in written
    assert "UserError: the judge 'stub' broke down" in written


def test_a_bug_in_a_metric(data, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(METRICS_OF_ONES_OWN, encoding="utf-8")
    cases = [
        ("at_once", 1, "metric_error:LoudError@mine.py:"),
        ("later", 1, "metric_error:LoudError@mine.py:"),
        ("nothing", 1, "metric_error:no_evidence 3"),
        ("loud_score", 70, "LoudError: (its message is left out, since it may quote a row)"),
    ]
    runs = [("none", ["evaluate", data, "--metrics", name], status, said) for name, status, said in cases]
    runs[0][1].extend(("--import", mine))  # once in a process: it then knows the others too
    run_all(runs, tmp_path)


GOOD = json.dumps(ROWS[0])
BAD = {
    "broken.jsonl": (GOOD + "\n" + GOOD[:-9], "line 2"),
    "wrong.jsonl": (GOOD + "\n" + json.dumps(ROWS[1] | {"response": {CANARY: 1}}), "column 'response'"),
    "wrong.json": (json.dumps([ROWS[0], ROWS[1] | {"retrieved_contexts": [[CANARY]]}]), "row 2"),
    "twice.jsonl": (GOOD + "\n" + GOOD, "the id 'r0' stands twice"),
    "quote.csv": (f'question,answer\n"{CANARY},b\nc,d\n', "line 2"),
    "fields.csv": (f"question,answer\n{CANARY},{CANARY},{CANARY}\n", "line 2"),
    "headless.csv": (f'"What is {CANARY}?","It is, I think, {CANARY}."\na,b\n', "can't be scored"),
    "cut.parquet": (f"PAR1{CANARY}", "not a Parquet file"),
    "bytes.jsonl": (GOOD.encode() + b"\n" + CANARY.encode() + b"\xff", "line 2"),
    "list.jsonl": (json.dumps({"question": "q", "contexts": f"['{CANARY}', 'cut"}), "column 'contexts'"),
    "escape.jsonl": (json.dumps({"question": "q", "contexts": f"['\\d {CANARY}', 3]"}), "chunk 2"),
}


def test_bad_files(tmp_path):
    cases = []
    for name, (content, expected) in BAD.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        cases.append(("none", ("check", path, "--metrics", "faithfulness"), 2, expected))
    run_all(cases, tmp_path)


def test_real_models_at_their_loudest(data, tmp_path, shelf_model):
    """The transformers judge and the embedder, with every library's debug log on standard error."""
    models = ("--judge", shelf_model("smollm2-135m-instruct"), "--embedder", shelf_model("all-minilm-l6-v2"))
    arguments = ("--metrics", "faithfulness,response_relevancy", "--backend", "transformers")
    run_all([("real", ("evaluate", data, *arguments, *models, "--max-unscored", 1), 0, "DEBUG")], tmp_path)


@pytest.mark.vllm
def test_real_vllm_at_its_loudest(data, tmp_path, shelf_model):
    arguments = ("--metrics", "faithfulness", "--backend", "vllm", "--max-unscored", 1)
    model = ("--judge", shelf_model("smollm2-135m-instruct"))
    run_all([("real", ("evaluate", data, *arguments, *model), 0, "DEBUG")], tmp_path)
