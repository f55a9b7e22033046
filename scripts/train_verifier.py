"""Train a verifier on labelled claims of one's own, starting from an NLI or fact-checking encoder.

    python scripts/train_verifier.py --labels labels.jsonl --base mdeberta-v3-base-xnli --out my-verifier

Labels are files of rows with the columns premise, claim, label and optionally document (--labels may be
given several times). A label may be a probability, such as a large judge's: then the judge is distilled
into a small encoder. Documents are split into training, early stopping and test; the test documents are
seen once, for the figures of the model card (README.md in --out). The same command again goes on from the
last checkpoint. The result is a folder for --verifier, and `offline-judge calibrate` finds its threshold.

Needs `pip install 'offline-judge[train]'`. Nothing is downloaded and nothing is reported anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offline_judge.air_gap import air_gap
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.calibration.figures import Array, Interval, auc, balanced_accuracy, with_interval
from offline_judge.calibration.fit import best_threshold
from offline_judge.calibration.labels import LabelledClaim, read_labels
from offline_judge.errors import UserError
from offline_judge.shelf import Shelf
from offline_judge.text import word_overlap, words

#: Shares of the documents that early stopping and the test keep from training.
DEV_SHARE = TEST_SHARE = 0.1


class Split(NamedTuple):
    """Rows by what they are for; no document lies in two of them."""

    train: list[LabelledClaim]
    dev: list[LabelledClaim]
    test: list[LabelledClaim]


def split_by_document(rows: Sequence[LabelledClaim], rng: np.random.Generator) -> Split:
    """Draw documents for early stopping and the test, at least two of each.

    Raises:
        UserError: for fewer than 10 documents.
    """
    documents = sorted({row.document for row in rows})
    if len(documents) < 10:
        raise UserError(
            "too few documents to hold some out",
            {"found": f"{len(documents)} documents in {len(rows)} rows", "needed": "10, better hundreds"},
        )
    order = [documents[place] for place in rng.permutation(len(documents))]
    n_dev, n_test = (max(2, round(share * len(order))) for share in (DEV_SHARE, TEST_SHARE))
    dev, test = set(order[:n_dev]), set(order[n_dev : n_dev + n_test])
    return Split(
        [row for row in rows if row.document not in dev | test],
        [row for row in rows if row.document in dev],
        [row for row in rows if row.document in test],
    )


def open_base(path: Path, device: str | None, max_tokens: int) -> Any:
    """Load the base as a cross-encoder with one output, made of what its head knows of support already."""
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import AutoModelForSequenceClassification

    from offline_judge.backends.supported_label import named_label

    kwargs = {"local_files_only": True, "trust_remote_code": False}
    plain = AutoModelForSequenceClassification.from_pretrained(path, use_safetensors=True, **kwargs)
    n_labels = plain.config.num_labels
    encoder = CrossEncoder(
        str(path),
        num_labels=1,
        max_length=max_tokens,
        device=device,
        model_kwargs={"ignore_mismatched_sizes": True, "use_safetensors": True, "dtype": torch.float32},
        **kwargs,
    )
    label = named_label({int(index): str(name) for index, name in plain.config.id2label.items()})
    if n_labels > 1 and label is not None and label.index is not None:
        old, new = _head(plain, n_labels), _head(encoder.model, 1)
        others = [index for index in range(n_labels) if index != label.index]
        with torch.no_grad():
            new.weight.copy_(old.weight[label.index] - old.weight[others].mean(dim=0))
            new.bias.copy_(old.bias[label.index] - old.bias[others].mean(dim=0))
    encoder.model.config.id2label = {0: "supported"}
    encoder.model.config.label2id = {"supported": 0}
    return encoder


def _head(model: Any, n_labels: int) -> Any:
    import torch

    linear = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module.out_features == n_labels
    ]
    return linear[-1]


def train(encoder: Any, split: Split, args: argparse.Namespace) -> dict[str, Any]:
    """Train with early stopping on the loss of the held-out documents; go on from the last checkpoint."""
    from datasets import Dataset
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
    from transformers import EarlyStoppingCallback
    from transformers.trainer_utils import get_last_checkpoint

    def dataset(rows: Sequence[LabelledClaim]) -> Any:
        return Dataset.from_dict(
            {
                "premise": [row.premise for row in rows],
                "claim": [row.claim for row in rows],
                "label": [float(row.label) for row in rows],
            }
        )

    checkpoints = args.out / "checkpoints"
    trainer = CrossEncoderTrainer(
        model=encoder,
        args=CrossEncoderTrainingArguments(
            output_dir=str(checkpoints),
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            warmup_steps=0.1,  # a share of all steps
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="epoch",
            save_total_limit=2,
            load_best_model_at_end=True,
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            bf16=args.bf16,
            seed=args.seed,
            data_seed=args.seed,
            report_to="none",
            disable_tqdm=not sys.stderr.isatty(),
            use_cpu=args.device == "cpu",
        ),
        train_dataset=dataset(split.train),
        eval_dataset=dataset(split.dev),
        loss=BinaryCrossEntropyLoss(encoder),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=args.patience)],
    )
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    if last is not None:
        print(f"going on from {last}", flush=True)
    trainer.train(resume_from_checkpoint=last)
    state = trainer.state
    return {"steps": state.global_step, "epochs": state.epoch, "best_dev_loss": state.best_metric}


def figures(
    labels: Array, scores: Array, at: float, documents: Sequence[str], seed: int
) -> dict[str, Interval]:
    """AUC, and balanced accuracy at a threshold that other documents chose."""
    rng = np.random.default_rng(seed)
    return {
        "AUC": with_interval(auc(labels, scores), documents, rng),
        "balanced accuracy": with_interval(
            balanced_accuracy(labels, (scores >= at).astype(float)), documents, rng
        ),
    }


def measure(scores_of: Any, split: Split, seed: int) -> dict[str, Interval]:
    """Figures on the test documents; the threshold comes from those of early stopping."""
    dev, test = (np.array([float(row.label >= 0.5) for row in rows]) for rows in (split.dev, split.test))
    if not 0 < dev.sum() < len(dev) or not 0 < test.sum() < len(test):
        raise UserError(
            "the documents held out have claims of one label only", {"to fix": "--seed, or more labels"}
        )
    at = best_threshold(dev, scores_of(split.dev))
    return figures(test, scores_of(split.test), at, [row.document for row in split.test], seed)


def overlap(rows: Sequence[LabelledClaim]) -> Array:
    """Share of the claim's words that the premise holds: the floor."""
    return np.array([word_overlap(words(row.claim), words(row.premise)) for row in rows])


def card(args: argparse.Namespace, split: Split, found: dict[str, Any], history: dict[str, Any]) -> str:
    """Write the model card."""
    lines = [f"| {name} | {one['AUC']} | {one['balanced accuracy']} |" for name, one in found.items()]
    sizes = ", ".join(
        f"{len(rows):,} claims of {len({row.document for row in rows}):,} documents for {use}"
        for use, rows in zip(("training", "early stopping", "the test"), split, strict=True)
    )
    return "\n".join(
        [
            f"# {args.out.name}",
            "",
            "A verifier: P(premise supports claim), one output, sigmoid. Trained with",
            f"`scripts/train_verifier.py` of offline_judge from `{args.base}`: {sizes}.",
            f"{history['steps']} steps, {history['epochs']:.1f} epochs, best loss on held-out documents",
            f"{history['best_dev_loss']:.4f}; learning rate {args.learning_rate:g}, batches of",
            f"{args.batch_size}, {args.max_tokens} tokens, seed {args.seed}.",
            "",
            "On the test documents, with 95 % bootstrap intervals over documents; the threshold comes from",
            "the documents of early stopping:",
            "",
            "| | AUC | balanced accuracy |",
            "|---|---|---|",
            *lines,
            "",
            "It knows the kind of claims that it was trained on. Calibrate it before use:",
            "`offline-judge calibrate`.",
            "",
        ]
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", type=Path, action="append", required=True)
    parser.add_argument("--base", required=True, help="an encoder on the shelf, or its folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of the new model")
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument(
        "--patience", type=int, default=2, help="epochs without a better loss before it stops"
    )
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--max-tokens", type=int, default=512, help="longer pairs are cut")
    parser.add_argument("--device", help="default: a GPU where there is one")
    parser.add_argument("--bf16", action="store_true", help="train in mixed precision, on a GPU")
    parser.add_argument("--seed", type=int, default=0, help="of the split and of the training")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> dict[str, dict[str, Interval]]:
    """Train, measure, save; return the figures by method."""
    rows = [row for path in args.labels for row in read_labels(path, probabilities=True)]
    split = split_by_document(rows, np.random.default_rng(args.seed))
    base = Shelf().find(args.base, "verifier")
    encoder = open_base(base.path, args.device, args.max_tokens)

    def scores_of(rows: Sequence[LabelledClaim]) -> Array:
        pairs = [(row.premise, row.claim) for row in rows]
        return np.asarray(encoder.predict(pairs, show_progress_bar=False), dtype=np.float64)

    found = {
        "word overlap": measure(overlap, split, args.seed),
        "before training": measure(scores_of, split, args.seed),
    }
    history = train(encoder, split, args)
    found["after training"] = measure(scores_of, split, args.seed)
    encoder.save_pretrained(str(args.out))
    (args.out / "README.md").write_text(card(args, split, found, history), encoding="utf-8")
    content = {name: {key: list(one) for key, one in figures.items()} for name, figures in found.items()}
    (args.out / "figures.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    set_offline_env()
    args = parse(argv)
    try:
        with air_gap():
            found = run(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, figures in found.items():
        print(f"{name:<16}", "   ".join(f"{key} {one}" for key, one in figures.items()))
    print(f"kept: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
