"""The numeric core on whole batches against numpy one row at a time, in one run on one machine.

    python benchmarks/numeric_core.py                    # full size, about 2 GB of memory
    python benchmarks/numeric_core.py --rows-scale 0.01  # a quick look

Each case is timed on freshly made data; making it is not timed. The loop runs over a sample of
the rows and its time is scaled by rows. `difference` is the largest one over that sample.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offline_judge.numeric import Padded, average_precision, cosine, noise_sensitivity

N_SAMPLE_ROWS = 20_000
N_REPEATS = 3


class Case(NamedTuple):
    """`core` takes whole tensors, `row` the numpy arrays of one row; `make` draws inputs of n rows.

    A mask is for the core alone: rows are as long as they are.

    With `as_lists` the loop starts from lists of Python floats. Making them is not timed.
    """

    name: str
    n_rows: int
    n_block_rows: int
    make: Callable[[int, torch.Generator], tuple[Any, ...]]
    core: Callable[..., Tensor]
    row: Callable[..., object]
    as_lists: bool = False


def verdicts(shape: tuple[int, ...], generator: torch.Generator) -> Padded:
    drawn = torch.rand(shape, generator=generator) < 0.5
    return Padded(drawn, torch.ones_like(drawn))


def numbers(padded: Padded) -> Padded:
    return Padded(padded.values.double(), padded.mask)


def make_rankings(n: int, generator: torch.Generator) -> tuple[Padded, ...]:
    return (numbers(verdicts((n, 10), generator)),)


def core_average_precision(useful: Padded) -> Tensor:
    return average_precision(*useful)


def row_average_precision(useful: np.ndarray) -> float:
    total = useful.sum()
    if total == 0:
        return 0.0
    precision_at = useful.cumsum() / np.arange(1, len(useful) + 1)
    return precision_at @ useful / total


def make_noise(n: int, generator: torch.Generator) -> tuple[Padded, ...]:
    return tuple(verdicts(shape, generator) for shape in ((n, 8, 10), (n, 8, 10), (n, 8)))


def make_noise_of_numbers(n: int, generator: torch.Generator) -> tuple[Padded, ...]:
    return tuple(map(numbers, make_noise(n, generator)))


def core_noise(*padded: Padded) -> Tensor:
    return noise_sensitivity(*padded, mode="irrelevant")


def row_noise(reference: np.ndarray, response: np.ndarray, correct: np.ndarray) -> float:
    relevant = reference.any(axis=0)
    from_relevant = (response & relevant).any(axis=1)
    from_irrelevant = (response & ~relevant).any(axis=1)
    return (from_irrelevant & ~from_relevant & ~correct).mean()


def row_noise_of_numbers(*row: np.ndarray) -> float:
    return row_noise(*(numbers.astype(bool) for numbers in row))


def make_embeddings(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randn(n, 384, generator=generator), torch.randn(n, 3, 384, generator=generator)


def core_cosine(question: Tensor, generated: Tensor) -> Tensor:
    return cosine(question[:, None], generated)


def row_cosine(question: np.ndarray, generated: np.ndarray) -> np.ndarray:
    question, generated = question.astype(np.float64), generated.astype(np.float64)
    return generated @ question / (np.linalg.norm(generated, axis=1) * np.linalg.norm(question))


def row_cosine_of_lists(question: list[float], generated: list[list[float]]) -> np.ndarray:
    """The same where the embedder returns lists, as RAGAS's embedders do."""
    left = np.asarray(question).reshape(1, -1)
    right = np.asarray(generated).reshape(len(generated), -1)
    norm = np.linalg.norm(right, axis=1) * np.linalg.norm(left, axis=1)
    return np.dot(right, left.T).reshape(-1) / norm


CASES = (
    Case(
        "average precision, K 10", 10**6, 10**6, make_rankings, core_average_precision, row_average_precision
    ),
    Case("noise sensitivity, G 8 C 8 K 10", 10**5, 10**5, make_noise, core_noise, row_noise),
    Case(
        "noise sensitivity of float64",
        10**5,
        10**5,
        make_noise_of_numbers,
        core_noise,
        row_noise_of_numbers,
    ),
    # Data of all rows would be 6 GB: made, timed and dropped a tenth at a time.
    Case("cosine, 3 x 384 float32", 10**6, 10**5, make_embeddings, core_cosine, row_cosine),
    Case(
        "cosine, loop over lists",
        10**6,
        10**5,
        make_embeddings,
        core_cosine,
        row_cosine_of_lists,
        as_lists=True,
    ),
)


def blocks(case: Case, n_rows: int) -> Iterator[tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(0)
    for start in range(0, n_rows, case.n_block_rows):
        yield case.make(min(case.n_block_rows, n_rows - start), generator)


def best_s(run: Callable[[], object]) -> float:
    """Seconds of the best of a few runs: what else the machine does only ever adds time."""
    times = []
    for _ in range(N_REPEATS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(case: Case, n_rows: int) -> tuple[float, float, float]:
    """Seconds of the core, of the loop scaled to all rows, and their largest difference."""
    core_s, loop_s, difference = 0.0, 0.0, 0.0
    for i, inputs in enumerate(blocks(case, n_rows)):
        core_s += best_s(lambda inputs=inputs: case.core(*inputs))
        if i > 0:
            continue
        tensors = [one.values if isinstance(one, Padded) else one for one in inputs]
        n_sample = min(N_SAMPLE_ROWS, len(tensors[0]))
        arrays = [tensor[:n_sample].numpy() for tensor in tensors]
        if case.as_lists:
            arrays = [array.tolist() for array in arrays]
        wanted = np.array([case.row(*row) for row in zip(*arrays, strict=True)])
        difference = float(np.abs(case.core(*inputs)[:n_sample].numpy() - wanted).max())
        loop = best_s(lambda arrays=arrays: [case.row(*row) for row in zip(*arrays, strict=True)])
        loop_s = loop * n_rows / n_sample
    return core_s, loop_s, difference


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows-scale", type=float, default=1.0, help="share of the full number of rows")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; "
        f"torch {torch.__version__} on {torch.get_num_threads()} thread(s), numpy {np.__version__}"
    )
    print(f"best of {N_REPEATS}; the loop on up to {N_SAMPLE_ROWS:,} rows, scaled to all of them\n")
    print(f"{'case':<32}{'rows':>11}{'core s':>10}{'loop s':>10}{'ratio':>8}{'difference':>12}")
    for case in CASES:
        n_rows = max(1, round(case.n_rows * arguments.rows_scale))
        core_s, loop_s, difference = measure(case, n_rows)
        print(
            f"{case.name:<32}{n_rows:>11,}{core_s:>10.3f}{loop_s:>10.2f}{loop_s / core_s:>7.1f}x"
            f"{difference:>12.1e}"
        )


if __name__ == "__main__":
    main()
