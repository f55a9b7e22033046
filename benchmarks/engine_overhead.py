"""What the engine itself costs: microseconds per ask and growth of memory, with a judge that costs nothing.

    python benchmarks/engine_overhead.py [--rows 10000] [--more-rows 100000]

Seven metrics (noise sensitivity in both modes) on generated rows of 3 chunks, 3 claims on either side.
The judge and the embedder are stubs, so all time is the engine's: asking, removing duplicates, sorting,
keys, the store on disk, evidence, scoring, and writing the run folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

N_CHUNKS = 3
N_SENTENCES = 3
METRICS = [
    "context_precision",
    "precision_at_k",
    "context_recall",
    "faithfulness",
    "response_relevancy",
    "factual_correctness",
    "noise_sensitivity",
    "noise_sensitivity[mode=irrelevant]",
]


def rows(n: int) -> Iterator[dict[str, object]]:
    rng = random.Random(0)
    words = [f"word{i}" for i in range(2000)]

    def text(n_sentences: int) -> str:
        return " ".join(" ".join(rng.choices(words, k=10)).capitalize() + "." for _ in range(n_sentences))

    for index in range(n):
        yield {
            "id": f"r{index}",
            "user_input": text(1),
            "response": text(N_SENTENCES),
            "reference": text(N_SENTENCES),
            "retrieved_contexts": [text(4) for _ in range(N_CHUNKS)],
        }


def measure(n_rows: int) -> dict[str, float]:
    """Evaluate n rows in this process and report seconds, asks and peak memory."""
    import torch

    import offline_judge
    from offline_judge.backends.protocol import Answer, Call, ChooseCall, Chosen, Generated, TokenCount

    tokens = TokenCount(100, 90, 1)
    chosen = Chosen((0.9, 0.1), tokens)

    class FreeJudge:
        name = fingerprint = "free"
        context_length = 1 << 20
        seconds = 0.0

        def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
            for position, call in enumerate(calls):
                if isinstance(call, ChooseCall):
                    yield position, chosen
                    continue
                started = time.perf_counter()
                text = self.write(call.messages[-1][1])
                self.seconds += time.perf_counter() - started
                yield position, Generated(text, "stop", tokens)

        @staticmethod
        def write(message: str) -> str:
            if "<sentences>" in message:
                lines = message.split("<sentences>\n")[1].split("\n</sentences>")[0].split("\n")
                return json.dumps({str(n): [line.partition(". ")[2]] for n, line in enumerate(lines, 1)})
            if "<statements>" in message:
                n = message.count("\n", message.index("<statements>")) - 1
                return json.dumps({str(i): {"reason": "", "verdict": 1} for i in range(1, n + 1)})
            return json.dumps({"noncommittal": 0, "question": message[10:80]})

        def n_tokens(self, texts: Sequence[str]) -> list[int]:
            return [len(text) // 4 for text in texts]

        def describe(self) -> dict[str, object]:
            return {}

        def close(self) -> None: ...

    class FreeEmbedder:
        name = fingerprint = "free"

        def embed(self, texts: Sequence[str]) -> torch.Tensor:
            return torch.ones(len(texts), 8)

        def describe(self) -> dict[str, object]:
            return {}

        def close(self) -> None: ...

    judge = FreeJudge()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        result = offline_judge.evaluate(
            rows(n_rows), METRICS, judge=judge, embedder=FreeEmbedder(), out=folder, name="bench"
        )
        seconds = time.perf_counter() - started - judge.seconds
        usage = result.record["usage"]
        unscored = result.largest_unscored_share()
    return {
        "rows": n_rows,
        "seconds": seconds,
        "asks": usage["asks"],
        "calls": usage["calls"],
        "us_per_ask": seconds / usage["asks"] * 1e6,
        "us_per_call": seconds / usage["calls"] * 1e6,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "unscored": unscored,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--more-rows", type=int, default=100_000, help="0 leaves the memory comparison out")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    found = []
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(
        f"{'rows':>8} {'seconds':>8} {'asks':>10} {'calls':>10} {'us/ask':>7} {'us/call':>8} {'peak MiB':>9}"
    )
    for n_rows in filter(None, (args.rows, args.more_rows)):
        # Each size in a process of its own: a peak can't be reset.
        command = [sys.executable, str(Path(__file__)), "--measure", str(n_rows)]
        one = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        )
        found.append(one)
        print(
            f"{one['rows']:>8,} {one['seconds']:>8.1f} {one['asks']:>10,} {one['calls']:>10,} "
            f"{one['us_per_ask']:>7.1f} {one['us_per_call']:>8.1f} {one['peak_mib']:>9.0f}"
        )
    if len(found) == 2:
        print(f"growth of memory: {found[1]['peak_mib'] - found[0]['peak_mib']:.0f} MiB")
    print(f"largest share of unscored rows: {max(one['unscored'] for one in found):.3f}")


if __name__ == "__main__":
    main()
