"""What the engine, offline_judge and RAGAS make of one vLLM server: the same rows, one run, one machine.

    python benchmarks/throughput.py --data-folder DATA --judge qwen2.5-coder-0.5b-instruct --rows 4

    (a) raw: the very prompts of (b), sent as one batch by a bare script
    (b) offline_judge, seven metrics
    (c) RAGAS 0.4.3 `evaluate()` with the same seven, in its own environment (--skip-ragas leaves it out)

The server is started here, and its prefix cache is emptied before each part. Rows are those of WikiEval:
its answer, its ungrounded answer as the reference, both contexts as chunks. Needs a connection to a package
index for (c), unless its environment exists already (--ragas-environment).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from labelled_sets import wikieval
from measured_run import run_main, table
from ragas_peer import ENVIRONMENT, EmbeddingServer, Ragas, make_environment

import offline_judge
from offline_judge.backends import open_embedder, open_served_judge
from offline_judge.backends.protocol import Answer, Call
from offline_judge.backends.served.dispatch import Request
from offline_judge.backends.served.vllm_server import VllmServer
from offline_judge.shelf import Shelf

METRICS = (
    "context_precision",
    "context_recall",
    "faithfulness",
    "response_relevancy",
    "factual_correctness",
    "noise_sensitivity",
    "noise_sensitivity[mode=irrelevant]",
)


@dataclass
class Part:
    """What one part did; tokens as the server counted them."""

    name: str
    seconds: float
    calls: int
    prompt: float
    cached: float
    output: float
    unscored: float | None
    rows: int

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens, cached ones included."""
        return (self.prompt + self.output) / self.seconds

    def line(self) -> tuple[str, ...]:
        """One line of the table."""
        unscored = "" if self.unscored is None else f"{self.unscored:.1%}"
        return (
            self.name,
            f"{self.seconds:.1f}",
            f"{self.rows / self.seconds:.3f}",
            f"{self.calls:,}",
            f"{self.prompt:,.0f}",
            f"{self.cached:,.0f}",
            f"{self.output:,.0f}",
            f"{self.tokens_per_s:,.0f}",
            unscored,
        )


COUNTERS = {
    "prompt": "vllm:prompt_tokens_total",
    "cached": "vllm:prefix_cache_hits_total",
    "output": "vllm:generation_tokens_total",
    "calls": "vllm:request_success_total",
}


class Counters:
    """Totals of the server's own counters."""

    def __init__(self, address: str) -> None:
        self._root = address.removesuffix("/v1")

    def read(self) -> dict[str, float]:
        """Read them now."""
        with urllib.request.urlopen(f"{self._root}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        totals = dict.fromkeys(COUNTERS, 0.0)
        for line in lines:
            for name, metric in COUNTERS.items():
                if line.startswith((f"{metric}{{", f"{metric} ")):
                    totals[name] += float(line.rpartition(" ")[2])
        return totals

    def empty_prefix_cache(self) -> None:
        """Forget all keys and values, so that no part profits from the one before."""
        request = urllib.request.Request(f"{self._root}/reset_prefix_cache", method="POST")
        urllib.request.urlopen(request, timeout=60).close()


class Recorded:
    """A judge that remembers its calls, for the bare script to send again."""

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)

    def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        """Pass on."""
        self.calls += calls
        return self._judge.answer(calls)


def rows_of(folder: Path, n: int) -> list[dict[str, Any]]:
    found = []
    for index, row in enumerate(wikieval(folder)[:n]):
        contexts = [row[name] for name in ("context_v1", "context_v2")]
        found.append(
            {
                "id": str(index),
                "user_input": row["question"],
                "response": row["answer"],
                "reference": row["ungrounded_answer"],
                "retrieved_contexts": ["\n".join(one) if isinstance(one, list) else one for one in contexts],
            }
        )
    return found


async def send_all(address: str, requests: Sequence[Request]) -> None:
    """The bare script: everything at once, nothing kept."""
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)

    async def send(request: Request) -> None:
        async with session.post(f"{address}/{request.path}", json=request.payload) as response:
            assert response.status == 200, await response.text()
            await response.read()

    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(send(request) for request in requests))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--judge", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--embedder", default="all-minilm-l6-v2")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/throughput"))
    parser.add_argument("--skip-ragas", action="store_true")
    parser.add_argument("--ragas-environment", type=Path, default=ENVIRONMENT)
    arguments = parser.parse_args()
    python = None if arguments.skip_ragas else make_environment(arguments.ragas_environment)
    rows = rows_of(arguments.data_folder, arguments.rows)
    model = Shelf().find(arguments.judge, "judge")
    found = Shelf().find(arguments.embedder, "embedder")
    embedder = open_embedder(found.path, name=found.name, fingerprint=found.fingerprint)
    embedder.embed(["warm"])
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for /reset_prefix_cache
    arguments.out.mkdir(parents=True, exist_ok=True)
    with VllmServer(model.path, model.name, arguments.out / "vllm.log") as server:
        parts = []
        for part in measure(server, embedder, rows, python):
            parts.append(part)
            print(*part.line(), sep="  ", file=sys.stderr, flush=True)
    header = ("", "seconds", "rows/s", "calls", "prompt", "cached", "output", "tokens/s", "unscored")
    print(f"{os.cpu_count()} cores, {model.name}, {len(rows)} rows, {len(METRICS)} metrics\n")
    print(table(header, [part.line() for part in parts]))
    raw, ours, *others = parts
    print(f"\n(b) / (a) in tokens/s: {ours.tokens_per_s / raw.tokens_per_s:.2f}")
    for other in others:
        print(f"(b) / (c) in rows/s: {other.seconds / ours.seconds:.1f}")


def measure(
    server: VllmServer, embedder: Any, rows: list[dict[str, Any]], python: Path | None
) -> Iterator[Part]:
    counters = Counters(server.address)
    judge = Recorded(open_served_judge(server.address))
    list(judge.answer([]))

    def part(name: str, run: Any) -> Part:
        counters.empty_prefix_cache()
        before, started = counters.read(), time.perf_counter()
        unscored = run()
        seconds = time.perf_counter() - started
        after = counters.read()
        spent = {key: after[key] - before[key] for key in after}
        return Part(
            name,
            seconds,
            int(spent["calls"]),
            spent["prompt"],
            spent["cached"],
            spent["output"],
            unscored,
            len(rows),
        )

    def ours() -> float:
        with tempfile.TemporaryDirectory() as folder:
            result = offline_judge.evaluate(
                rows, METRICS, judge=judge, embedder=embedder, reasons="none", out=folder
            )
            return result.largest_unscored_share()

    def raw() -> None:
        requests, failed = judge._dialect.requests(judge.calls)
        assert not failed
        asyncio.run(send_all(server.address, requests))

    measured = part("(b) offline_judge", ours)
    yield part("(a) raw engine", raw)
    yield measured
    if python is not None:
        peer = Ragas(python, server.address, server.name, EmbeddingServer(embedder))

        def ragas() -> float:
            values = [one for scores in peer.score(rows, METRICS).values() for one in scores]
            return sum(one is None for one in values) / len(values)

        yield part("(c) RAGAS 0.4.3", ragas)


if __name__ == "__main__":
    run_main(main)
