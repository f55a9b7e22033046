"""Pairs per second of the encoder verifier against `CrossEncoder.predict` of sentence-transformers.

    python benchmarks/verifier_speed.py [--rows 3] [--model FOLDER] [--device cpu] [--layers 6]

Both get the same mixed-length pairs in the same run, in turn, and the best of several passes counts. The
pairs are those that the default metrics ask of rows with 5 chunks and 4 claims on either side: once as they
are asked (faithfulness and noise sensitivity share theirs), once without the repeated ones. Without
`--model` the model has the size of MiniLM and random weights, and the tokenizer of all-minilm-l6-v2 on the
shelf: speed does not hang on what the weights know. On a GPU the share of the raw forward pass is printed
too: the same batches, already on the device.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from offline_judge.backends.encoder_verifier import EncoderVerifier
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.protocol import SupportCall, Supported
from offline_judge.shelf import Shelf

N_PASSES = 3

Pair = tuple[str, str]


def row_pairs(rng: random.Random) -> list[Pair]:
    """Ask for one row what context recall, faithfulness, factual correctness and noise sensitivity ask."""

    def words(n: int) -> str:
        syllables = ["ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve"]
        return " ".join("".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(n))

    chunks = [words(rng.randint(5, 45)) + "." for _ in range(5)]
    ours, theirs = ([words(rng.randint(4, 14)) + "." for _ in range(4)] for _ in range(2))
    context, response, reference = "\n\n".join(chunks), " ".join(ours), " ".join(theirs)
    correct = [(reference, claim) for claim in ours]
    noise = [(chunk, claim) for claim in (*theirs, *ours) for chunk in chunks] + correct
    recall = [(context, claim) for claim in theirs]
    faithful = [(context, claim) for claim in ours]
    factual = correct + [(response, claim) for claim in theirs]
    return recall + faithful + factual + noise + noise  # noise sensitivity in both modes


def make_model(folder: Path, n_layers: int) -> Path:
    """Save a classifier of MiniLM's size with random weights."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(Shelf().root / "all-minilm-l6-v2", local_files_only=True)
    torch.manual_seed(0)
    labels = ("entailment", "neutral", "contradiction")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=384,
        num_hidden_layers=n_layers,
        num_attention_heads=12,
        intermediate_size=1536,
        initializer_range=0.1,  # so that scores differ between pairs
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Taken(NamedTuple):
    """Seconds of a pass, and those that all cores together computed in it."""

    wall_s: float
    cpu_s: float


def best(runs: dict[str, Callable[[], object]]) -> dict[str, Taken]:
    """The best pass of each, in turn, after one that warms up."""
    taken: dict[str, list[Taken]] = {name: [] for name in runs}
    for one in range(N_PASSES + 1):
        for name, run in runs.items():
            started = time.perf_counter(), time.process_time()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if one:
                wall_s, cpu_s = time.perf_counter() - started[0], time.process_time() - started[1]
                taken[name].append(Taken(wall_s, cpu_s))
    return {
        name: Taken(min(one.wall_s for one in passes), min(one.cpu_s for one in passes))
        for name, passes in taken.items()
    }


def scores(verifier: EncoderVerifier, pairs: list[Pair]) -> list[float]:
    found = [0.0] * len(pairs)
    for position, answer in verifier.verify([SupportCall(*pair) for pair in pairs]):
        assert isinstance(answer, Supported) and answer.window is None
        found[position] = answer.probability
    return found


def raw_forward(verifier: EncoderVerifier, pairs: list[Pair]) -> Callable[[], None]:
    """The model alone on the verifier's own batches, collated and on the device beforehand."""
    batches: list[dict[str, torch.Tensor]] = []
    forward = verifier._p_supported

    def recorded(batch: object) -> list[float]:
        inputs = verifier._encoder.collate(batch)  # type: ignore[arg-type]
        batches.append({name: tensor.to(verifier._device) for name, tensor in inputs.items()})
        return forward(batch)  # type: ignore[arg-type]

    verifier._p_supported = recorded  # type: ignore[method-assign]
    scores(verifier, pairs)
    verifier._p_supported = forward  # type: ignore[method-assign]

    def run() -> None:
        with torch.inference_mode():
            for inputs in batches:
                verifier._model(**inputs)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a sequence-classification folder")
    parser.add_argument("--layers", type=int, default=6, help="of the random model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_offline_env()
    from sentence_transformers import CrossEncoder

    rng = random.Random(args.seed)
    asked = [pair for _ in range(args.rows) for pair in row_pairs(rng)]
    distinct = list(dict.fromkeys(asked))
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or make_model(Path(folder), args.layers)
        verifier = EncoderVerifier(
            path, name="model", fingerprint="", device=args.device, check_labels=args.model is not None
        )
        cross_encoder = CrossEncoder(str(path), device=args.device, local_files_only=True)
    if args.device != "cpu":
        cross_encoder.bfloat16()

    def predict(pairs: list[Pair]) -> torch.Tensor:
        return verifier.label.probabilities(cross_encoder.predict(pairs, convert_to_tensor=True))

    print(f"{args.device}, {torch.get_num_threads()} threads; CrossEncoder with its batch size of 32")
    for name, pairs in (("as asked", asked), ("distinct", distinct)):
        ours = torch.tensor(scores(verifier, pairs), dtype=torch.float64)
        apart = (ours - predict(pairs).cpu()).abs().max().item()
        runs: dict[str, Callable[[], object]] = {
            "verifier": lambda pairs=pairs: scores(verifier, pairs),
            "CrossEncoder": lambda pairs=pairs: predict(pairs),
        }
        if args.device != "cpu":
            runs["raw"] = raw_forward(verifier, pairs)
        taken = best(runs)
        ours_s, theirs_s = taken["verifier"], taken["CrossEncoder"]
        line = (
            f"{name:<9} {len(pairs):>6,} pairs  verifier {len(pairs) / ours_s.wall_s:8.1f}/s  "
            f"CrossEncoder {len(pairs) / theirs_s.wall_s:8.1f}/s  "
            f"{theirs_s.wall_s / ours_s.wall_s:.2f} times (in CPU time {theirs_s.cpu_s / ours_s.cpu_s:.2f})  "
            f"scores {ours.min():.3f} to {ours.max():.3f}, at most {apart:.1e} apart"
        )
        if "raw" in taken:
            line += f"  {taken['raw'].wall_s / ours_s.wall_s:.2f} of the raw forward pass"
        print(line, flush=True)


if __name__ == "__main__":
    main()
