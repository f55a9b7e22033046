"""How often the same question gets another answer: run by run, by batch size, and by backend.

    python benchmarks/determinism.py --judge qwen2.5-coder-0.5b-instruct --rows 4 --runs 10

The example rows are scored for faithfulness and context precision at temperature 0, each time with an empty
answer store. Wanted in process: no difference at all between runs. A difference of batch size or backend
(other kernels, other sums) is reported as a rate: of verdicts at 0.5, and of the largest difference of a
probability.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from measured_run import run_main, table

import offline_judge
from offline_judge.backends import open_judge, open_served_judge
from offline_judge.backends.served.vllm_server import VllmServer
from offline_judge.run_folder import RunFolder
from offline_judge.shelf import Shelf

METRICS = ("faithfulness", "context_precision")
Probabilities = dict[tuple[str, str, str, str], float]


def probabilities(judge: Any, rows: list[dict[str, Any]]) -> Probabilities:
    """Score the rows and return the probability of every checked claim and chunk."""
    with tempfile.TemporaryDirectory() as folder:
        result = offline_judge.evaluate(rows, METRICS, judge=judge, reasons="none", out=folder)
        found: Probabilities = {}
        for line in RunFolder(result.folder).evidence():
            for check in line.get("checks") or ():
                found[line["id"], line["metric"], check["source"], check["claim"]] = check["p"]
            for name, values in (line["values"] or {}).items():
                for index, value in enumerate(values if isinstance(values, list) else [values]):
                    if isinstance(value, float):
                        found[line["id"], line["metric"], name, str(index)] = value
    return found


class Difference(NamedTuple):
    """Verdicts that differ of how many, answers that only one has, largest difference of a probability."""

    flipped: int
    unshared: int
    largest: float
    n: int

    def line(self, name: str) -> tuple[str, ...]:
        """One line of the table."""
        return name, f"{self.flipped} of {self.n}", str(self.unshared), f"{self.largest:.1e}"


def difference(one: Probabilities, other: Probabilities) -> Difference:
    """Hold two runs against each other."""
    shared = one.keys() & other.keys()
    flipped = sum((one[key] >= 0.5) != (other[key] >= 0.5) for key in shared)
    largest = max((abs(one[key] - other[key]) for key in shared), default=0.0)
    return Difference(flipped, len(one.keys() ^ other.keys()), largest, len(shared))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    text = (files("offline_judge.examples") / "rows.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()[: arguments.rows]]
    found = Shelf().find(arguments.judge, "judge")
    settings = {"name": found.name, "fingerprint": found.fingerprint}
    lines = []

    judge: Any = open_judge(found.path, backend="vllm", **settings)
    first = probabilities(judge, rows)
    others = [difference(first, probabilities(judge, rows)) for _ in range(arguments.runs - 1)]
    lines.append(max(others).line(f"{arguments.runs} runs in process, the worst"))
    for size in (1, 4):
        judge._most_in_flight = size
        lines.append(difference(first, probabilities(judge, rows)).line(f"in process, {size} at once"))
    judge.close()

    judge = open_judge(found.path, backend="transformers", **settings)
    lines.append(difference(first, probabilities(judge, rows)).line("transformers"))
    judge.close()

    with (
        tempfile.TemporaryDirectory() as folder,
        VllmServer(found.path, found.name, Path(folder) / "log") as server,
    ):
        served = probabilities(open_served_judge(server.address), rows)
        lines.append(difference(first, served).line("served"))

    print(f"{os.cpu_count()} cores, {found.name}, {len(rows)} rows, {len(first)} probabilities\n")
    header = ("against the first run in process", "verdicts that differ", "not in both", "largest difference")
    print(table(header, lines))


if __name__ == "__main__":
    run_main(main)
