"""Support asks and the prefix cache: the order of the engine against a random one and against claims first.

    python benchmarks/prefix_cache.py --judge qwen2.5-coder-0.5b-instruct --rows 8

Rows of 5 chunks and 8 claims: 40 support asks each. The same asks go to one vLLM engine in process three
times, its prefix cache emptied in between:

    sorted        as the engine sends them: all claims of a chunk one after another, the claim last
    shuffled      the same prompts in random order
    claim first   the claim before the chunk, so that no two prompts share more than the instruction
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence

from measured_run import run_main, table

from offline_judge.backends import open_judge
from offline_judge.backends.protocol import ChooseCall, Chosen
from offline_judge.prompts import load
from offline_judge.shelf import Shelf

N_CHUNKS, N_CLAIMS = 5, 8


def texts(n_rows: int, n_words: int, rng: random.Random) -> list[tuple[list[str], list[str]]]:
    """Chunks and claims of each row, of words that mean nothing together."""
    words = [
        f"{a}{b}" for a in ("sea", "tree", "iron", "day", "road") for b in ("bed", "side", "line", "mark")
    ]

    def text(n: int) -> str:
        return " ".join(rng.choices(words, k=n)).capitalize() + "."

    def many(n: int, n_of_words: int) -> list[str]:
        return [text(n_of_words) for _ in range(n)]

    return [(many(N_CHUNKS, n_words), many(N_CLAIMS, 12)) for _ in range(n_rows)]


def measure(judge: object, calls: Sequence[ChooseCall]) -> tuple[float, float]:
    """Seconds, and the share of prompt tokens that came from the cache."""
    judge._llm.reset_prefix_cache()  # type: ignore[attr-defined]
    started = time.perf_counter()
    answers = [answer for _, answer in judge.answer(calls)]  # type: ignore[attr-defined]
    seconds = time.perf_counter() - started
    tokens = [answer.tokens for answer in answers if isinstance(answer, Chosen)]
    assert len(tokens) == len(calls)
    return seconds, sum(one.cached for one in tokens) / sum(one.prompt for one in tokens)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--words", type=int, default=250, help="in a chunk; a word has two tokens")
    arguments = parser.parse_args()
    rng = random.Random(0)
    prompt = load("support", "en")
    ordered, reversed_ = [], []
    for chunks, claims in texts(arguments.rows, arguments.words, rng):
        for chunk in chunks:
            for claim in claims:
                fields = {"premise": chunk, "claim": claim}
                ordered.append(ChooseCall(prompt.messages(fields), prompt.options))
                swapped = {"premise": claim, "claim": chunk}
                reversed_.append(ChooseCall(prompt.messages(swapped), prompt.options))
    found = Shelf().find(arguments.judge, "judge")
    judge = open_judge(found.path, name=found.name, fingerprint=found.fingerprint, backend="vllm")
    list(judge.answer(ordered[:2]))  # starts the engine
    shuffled = rng.sample(ordered, len(ordered))
    lines = []
    for name, calls in (("sorted", ordered), ("shuffled", shuffled), ("claim first", reversed_)):
        seconds, share = measure(judge, calls)
        lines.append((name, f"{seconds:.1f}", f"{len(calls) / seconds:.2f}", f"{share:.3f}"))
    judge.close()
    print(f"{os.cpu_count()} cores, {found.name}, {len(ordered)} support asks\n")
    print(table(("order", "seconds", "asks/s", "cached share"), lines))


if __name__ == "__main__":
    run_main(main)
