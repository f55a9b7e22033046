"""Which verifier agrees with people: word overlap, judges' probabilities, encoders, and a cascade of two.

    python benchmarks/verifier_agreement.py --data-folder DATA \
        --judges qwen2.5-coder-0.5b-instruct,qwen2.5-coder-1.5b-instruct [--verifier FOLDER] [--n 100]

On six sets of claims or responses, AUC and balanced accuracy with intervals (bootstrap over groups). The
threshold comes from one half of the groups and is reported on the other, beside 0.5. A response counts as
supported as far as its least supported sentence is. On mtrag_human a response is called faithful where
people's mean rating is above 3. The cascade takes the first method's word where it is sure and sends the
rest, those nearest to its threshold, to the last one; its curve is balanced accuracy by the share sent.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import labelled_sets as sets
import numpy as np
from agreement import SETS, Agreement, known_sets, least_supported, score_set, set_arguments
from agreement_statistics import (
    Array,
    Figure,
    auc,
    balanced_accuracy,
    best_threshold,
    bootstrap_groups,
    with_interval,
)
from labelled_sets import Labelled, Sample
from measured_run import MeasuredRun, plain, run_main, table

#: People's mean rating above which a response of mtrag_human is called faithful.
FAITHFUL_ABOVE = 3.0
#: Shares of the claims that the cascade sends to its second stage.
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


def _task(name: str) -> Agreement:
    task = SETS[name]
    if "faithfulness" in task.metrics:
        task = replace(task, read=least_supported)
    if task.correlation is not None:
        task = replace(task, label=lambda row: float(row.label > FAITHFUL_ABOVE), correlation=None)
    return task


TASKS = {
    name: _task(name)
    for name in ("ragtruth_qa_test", "mtrag_human", "wice", "fm2", "q2_wow", "factscore_human", "kornlu")
}


class Measured(NamedTuple):
    """What one method reached on one set; the balanced accuracies are those of the held-out half."""

    set: str
    method: str
    n: int
    unscored: int
    threshold: float
    auc: Figure
    balanced: Figure
    at_half: Figure | None


class Sent(NamedTuple):
    """Balanced accuracy of the cascade where a share of the claims went to its second stage."""

    set: str
    share: float
    balanced: Figure


def measure(
    name: str, rows: Sequence[Labelled], labels: Array, methods: dict[str, Array], unscored: int, seed: int
) -> list[Measured]:
    """AUC on all rows, balanced accuracy on the half that did not choose the threshold."""
    groups = [row.group for row in rows]
    first, second = sets.halves(rows, lambda row: row.group, seed)
    held_out = [groups[place] for place in second]
    found = []
    for method, scores in methods.items():
        at = best_threshold(labels[first], scores[first])
        y, p = labels[second], scores[second]
        found.append(
            Measured(
                name,
                method,
                len(rows),
                unscored,
                at,
                with_interval(auc, labels, scores, groups, seed),
                with_interval(balanced_accuracy(at), y, p, held_out, seed),
                with_interval(balanced_accuracy(0.5), y, p, held_out, seed) if method != FLOOR else None,
            )
        )
    return found


def cascade(
    name: str, rows: Sequence[Labelled], labels: Array, cheap: Array, dear: Array, seed: int
) -> list[Sent]:
    """Balanced accuracy on the half that did not choose the thresholds, by the share that was sent."""
    first, second = sets.halves(rows, lambda row: row.group, seed)
    groups = [rows[place].group for place in second]
    at_cheap, at_dear = (best_threshold(labels[first], scores[first]) for scores in (cheap, dear))
    # How unsure the first stage is: its rank distance to its threshold on the half that chose it.
    ranks = np.searchsorted(np.sort(cheap[first]), cheap) / len(first)
    distance = np.abs(ranks - np.searchsorted(np.sort(cheap[first]), at_cheap) / len(first))
    found = []
    for share in SHARES:
        sent = distance <= np.quantile(distance[first], share) if share else np.zeros(len(rows), bool)
        verdict = np.where(sent, dear >= at_dear, cheap >= at_cheap).astype(float)[second]
        y = labels[second]

        def of(places: Any, y: Array = y, verdict: Array = verdict) -> float:
            return balanced_accuracy(0.5)(y[places], verdict[places])

        found.append(Sent(name, float(sent[second].mean()), bootstrap_groups(of, groups, seed)))
    return found


FLOOR = "word overlap"


def main() -> None:
    parser = set_arguments(__doc__ or "", TASKS)
    parser.add_argument("--judges", default="", help="several, comma-separated")
    parser.set_defaults(out=Path("runs/verifier_agreement"))
    args = parser.parse_args()
    chosen = known_sets(args.sets, TASKS)
    sample = Sample(args.n, args.seed, args.single_rows)
    by_set: dict[str, dict[str, list[float | None]]] = {name: {} for name in chosen}
    rows_of: dict[str, list[Labelled]] = {}
    environments = {}
    for judge, verifier in checkers(args):
        settings = {
            "seed": args.seed,
            "claims": "sentences",
            "prefix": judge or Path(verifier or "").name,
            "backend": args.backend,
        }
        with MeasuredRun(args.out, judge, None, verifier, **settings) as run:
            for name in chosen:
                rows, floors, scores, _ = score_set(TASKS[name], run, args.data_folder, sample)
                rows_of[name] = rows
                by_set[name][FLOOR] = list(floors[FLOOR])
                if scores:
                    (by_set[name][run.name],) = map(list, scores.values())
            environments[run.name] = run.environment()
    measured: list[Measured] = []
    sent: list[Sent] = []
    for name, methods in by_set.items():
        kept, labels, arrays = scored_rows(name, rows_of[name], methods)
        measured += measure(name, kept, labels, arrays, len(rows_of[name]) - len(kept), args.seed)
        stages = list(arrays.values())[1:]
        if len(stages) > 1:
            sent += cascade(name, kept, labels, stages[0], stages[-1], args.seed)
    result = {
        "benchmark": "verifier_agreement",
        **sample._asdict(),
        "figures": [plain(one) for one in measured],
        "cascade": [plain(one) for one in sent],
        "runs": environments,
    }
    MeasuredRun(args.out).write(
        "verifier_agreement", result, report(sample, list(environments), measured, sent)
    )


def checkers(args: argparse.Namespace) -> list[tuple[str | None, str | None]]:
    """Judge and verifier of each run: the encoder first, then the judges; no model gives the floor alone."""
    judges = [name for name in (*args.judges.split(","), args.judge) if name]
    encoder = [(None, args.verifier)] if args.verifier is not None else []
    return [*encoder, *((name, None) for name in judges)] or [(None, None)]


def scored_rows(
    name: str, rows: Sequence[Labelled], methods: dict[str, list[float | None]]
) -> tuple[list[Labelled], Array, dict[str, Array]]:
    """Rows that every method could score, what people said of them, and the scores."""
    scored = [place for place in range(len(rows)) if all(one[place] is not None for one in methods.values())]
    kept = [rows[place] for place in scored]
    labels = np.array([TASKS[name].label(row) for row in kept], float)
    arrays = {
        method: np.array([values[place] for place in scored], float) for method, values in methods.items()
    }
    return kept, labels, arrays


def report(sample: Sample, models: Sequence[str], measured: Sequence[Measured], sent: Sequence[Sent]) -> str:
    """Write the table of all methods and the curve of the cascade."""
    lines = [
        (
            one.set,
            one.method,
            f"{one.n}" + (f" ({one.unscored} unscored)" if one.unscored else ""),
            one.auc,
            f"{one.threshold:.3f}",
            one.balanced,
            one.at_half or "",
        )
        for one in measured
    ]
    header = ("set", "method", "rows", "AUC", "threshold", "balanced accuracy, held out", "at 0.5, held out")
    parts = [
        "# Verifiers: agreement with people",
        str(sample),
        table(header, lines),
    ]
    if sent:
        curve = [(one.set, f"{one.share:.2f}", one.balanced) for one in sent]
        header = ("set", "share sent", "balanced accuracy, held out")
        parts += [f"## Cascade: {models[0]}, then {models[-1]}", table(header, curve)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    run_main(main)
