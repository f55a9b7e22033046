"""Agreement with people on eleven labelled sets, beside what no model is needed for.

    python benchmarks/agreement.py --data-folder DATA --judge qwen2.5-coder-1.5b-instruct \
        --embedder multilingual-e5-small [--sets fm2,q2_wow] [--n 100] [--out runs/agreement]

Every figure has its 95 % interval (bootstrap over whole groups: pages, sources, questions) and stands beside
two floors, word overlap and length, on the very same rows; the last column is by how much it beats the better
floor. A threshold is chosen on one half of the groups and reported on the other. Without --judge there are
floors alone. The same command again goes on where it was stopped; finished, it asks nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, mode
from typing import Any

import labelled_sets as sets
import numpy as np
from agreement_statistics import (
    Figure,
    Statistic,
    auc,
    balanced_accuracy,
    best_f1_threshold,
    best_threshold,
    bootstrap_groups,
    difference,
    f1_of_false,
    pearson,
    spearman,
    with_interval,
)
from floors import word_overlap
from labelled_sets import Labelled, Sample
from measured_run import MeasuredRun, arguments, evidence_of, plain, run_main, table
from ragas_peer import KeptRagas
from single_asks import AnswerSupported, ClaimSupported, NearestPassage, PassagesAnswer
from span_overlap import span_overlap

from offline_judge import Result, UserError
from offline_judge.prompts import catalogue

#: A score of each row; None where it is unscored.
Scores = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Found:
    """One figure of one method on one set."""

    set: str
    measure: str
    method: str
    is_floor: bool
    n: int
    unscored: int
    figure: Figure
    above_floor: Figure | None = None


@dataclass(frozen=True)
class Agreement:
    """How one set is scored and held against people.

    `floors` gives scores that need no model, `metrics` what `evaluate` is asked, `read` the scores that
    come of it, `label` what people said. `binary` labels get AUC, balanced accuracy and, where `f1` is
    set, F1 of the unsupported; ratings get `correlation`.
    """

    name: str
    load: Callable[[Path, Sample], list[Labelled]]
    floors: Callable[[Labelled], dict[str, float]]
    metrics: tuple[Any, ...]
    read: Callable[[Result, Sequence[Labelled]], Scores]
    label: Callable[[Labelled], float] = lambda row: row.label
    published: str = ""
    correlation: tuple[str, Statistic] | None = None
    f1: bool = False
    spans: bool = False
    #: Whether two responses are compared: two rows are scored then, and their difference counts.
    pairs: bool = False
    #: What each person said of a row, where the set holds it.
    people: Callable[[Labelled], Sequence[float]] | None = None
    claims: str | None = None
    #: RAGAS's metric for it, by our names.
    ragas: str = "faithfulness"

    def rows(self, row: Labelled) -> list[dict[str, Any]]:
        """Columns of the rows that are scored."""
        if not self.pairs:
            return [columns(row)]
        return [columns(row, id=f"{row.id}/1"), columns(row, id=f"{row.id}/2", response=row.other)]


def columns(row: Labelled, **changed: Any) -> dict[str, Any]:
    """Columns of one row as `evaluate` takes them; blank ones are left out."""
    found = {
        "id": row.id,
        "user_input": row.user_input,
        "response": row.response,
        "retrieved_contexts": list(row.retrieved_contexts),
        "reference": row.reference,
        "language": row.language,
        **changed,
    }
    return {name: value for name, value in found.items() if value}


def soft(result: Result, rows: Sequence[Labelled]) -> Scores:
    """Soft scores of every metric, by its name; metrics without probabilities give their score."""
    found = {}
    for label in result.metrics:
        scores = result.soft(label)
        found[label] = scores if any(s is not None for s in scores) else result[label]
    return found


def faithfulness_scores(result: Result, rows: Sequence[Labelled]) -> Scores:
    """Mean verdict, mean probability, that of the least supported sentence, and that all are supported.

    Where people marked what is wrong, a long response has more chances to be wrong: the product counts them.
    """
    by_sentence = sentence_probabilities(result, "faithfulness", rows)
    return {
        "faithfulness, hard": result["faithfulness"],
        "faithfulness, soft": result.soft("faithfulness"),
        **_least(by_sentence),
        "every sentence supported": [math.prod(p.values()) if p else None for p in by_sentence],
    }


def least_supported(result: Result, rows: Sequence[Labelled]) -> Scores:
    """Probability of the least supported sentence: a response is as good as its worst one."""
    return _least(sentence_probabilities(result, "faithfulness", rows))


def _least(by_sentence: Sequence[dict[str, float]]) -> Scores:
    return {"least supported sentence": [min(p.values()) if p else None for p in by_sentence]}


def sentence_probabilities(result: Result, metric: str, rows: Sequence[Labelled]) -> list[dict[str, float]]:
    """Probability of each sentence of each row, by its text; empty where the row is unscored."""
    found = evidence_of(result, metric)
    by_row = []
    for row in rows:
        line = found.get(row.id)
        pairs = zip(line["texts"]["claims"], line["values"]["p_supported"], strict=True) if line else ()
        by_row.append(dict(pairs))
    return by_row


def preference(result: Result, rows: Sequence[Labelled]) -> Scores:
    """Score of the second response less that of the first."""
    return {f"{label}, {_DIFFERENCE}": second_less_first(s) for label, s in soft(result, rows).items()}


def second_less_first(scores: Sequence[float | None]) -> list[float | None]:
    """Difference of the two scores of each pair."""
    pairs = zip(scores[0::2], scores[1::2], strict=True)
    return [None if a is None or b is None else b - a for a, b in pairs]


def premise_floors(row: Labelled) -> dict[str, float]:
    """Share of the response's words that stand in the chunks, and its brevity."""
    context = "\n".join(row.retrieved_contexts)
    return {"word overlap": word_overlap(context, row.response), "brevity": -len(row.response)}


def reference_f1(reference: str, response: str) -> float:
    """F1 of the two word overlaps of reference and response."""
    a, b = word_overlap(reference, response), word_overlap(response, reference)
    return 2 * a * b / (a + b) if a + b else 0.0


def preference_floors(row: Labelled) -> dict[str, float]:
    """Difference in word overlap with the reference, and in length."""
    return {
        "word overlap": reference_f1(row.reference, row.other) - reference_f1(row.reference, row.response),
        "length": len(row.other) - len(row.response),
    }


def reference_floors(row: Labelled) -> dict[str, float]:
    """Overlap of answer and reference, and brevity."""
    return {"word overlap": reference_f1(row.reference, row.response), "brevity": -len(row.response)}


def completeness_floors(row: Labelled) -> dict[str, float]:
    """Share of the reference's words that stand in the response, and its length."""
    return {"word overlap": word_overlap(row.response, row.reference), "length": len(row.response)}


def passage_floors(row: Labelled) -> dict[str, float]:
    """Largest share of the question's words in one passage, and the length of all passages."""
    overlaps = [word_overlap(passage, row.user_input) for passage in row.retrieved_contexts]
    return {
        "word overlap": max(overlaps, default=0.0),
        "length": sum(map(len, row.retrieved_contexts)),
    }


def claims_of(name: str, loader: sets.Loader, *, per_group: int | None = None) -> Agreement:
    """Describe a set in which people labelled whole claims."""
    return Agreement(
        name,
        partial(sets.load, loader, per_group=per_group),
        premise_floors,
        (ClaimSupported(),),
        soft,
    )


def mtrag_rows(folder: Path, sample: Sample, *, by_models: bool = False) -> list[Labelled]:
    """Load rated responses; `by_models` leaves out those that are the reference itself."""
    rows = sets.load(sets.mtrag_human, folder, sample)
    return [row for row in rows if not (by_models and row.ratings["is_reference"])]


CLAIM_SETS = {
    one.name: one
    for one in (
        claims_of("wice", sets.wice),
        claims_of("fm2", sets.fm2),
        claims_of("q2_wow", sets.q2_wow),
        claims_of("factscore_human", sets.factscore_human, per_group=10),
        claims_of("kornlu", sets.kornlu),
        claims_of("klue_nli", sets.klue_nli),
    )
}

SETS = {
    **CLAIM_SETS,
    "ragtruth_qa_test": Agreement(
        "ragtruth_qa_test",
        partial(sets.load, sets.ragtruth_qa_test),
        premise_floors,
        ("faithfulness",),
        faithfulness_scores,
        f1=True,
        spans=True,
        claims="sentences",
        published="F1 of hallucinated responses over all three tasks of RAGTruth 78.7 (Llama-2-13B trained "
        "on it), 79.2 (LettuceDetect, an encoder of 0.4B trained on it), 63.4 (GPT-4-turbo with a prompt)",
    ),
    "mtrag_human": Agreement(
        "mtrag_human",
        mtrag_rows,
        premise_floors,
        ("faithfulness",),
        faithfulness_scores,
        correlation=("Spearman with faithfulness", spearman),
        people=lambda row: row.ratings["faithfulness"],
        claims="sentences",
    ),
    "mtrag_completeness": Agreement(
        "mtrag_completeness",
        partial(mtrag_rows, by_models=True),
        completeness_floors,
        ("factual_correctness[mode=recall, recall_basis=reference]",),
        soft,
        label=lambda row: fmean(row.ratings["completeness"]),
        people=lambda row: row.ratings["completeness"],
        ragas="factual_correctness[mode=recall]",
        correlation=("Spearman with completeness", spearman),
        claims="sentences",
    ),
    "ragchecker_meta": Agreement(
        "ragchecker_meta",
        partial(sets.load, sets.ragchecker_meta),
        preference_floors,
        ("factual_correctness",),
        preference,
        correlation=("Pearson with preference", pearson),
        people=lambda row: row.ratings["preference"],
        pairs=True,
        claims="sentences",
        ragas="factual_correctness",
        published="RAGChecker (70B models as extractor and checker) 0.62, people among themselves 0.70",
    ),
    "nomiracl_en": Agreement(
        "nomiracl_en",
        partial(sets.load, sets.nomiracl_en),
        passage_floors,
        (PassagesAnswer(), NearestPassage()),
        soft,
        ragas="context_relevance",
    ),
    "nomiracl_ko": Agreement(
        "nomiracl_ko",
        partial(sets.load, sets.nomiracl_ko),
        passage_floors,
        (PassagesAnswer(), NearestPassage()),
        soft,
        ragas="context_relevance",
    ),
    "evouna": Agreement(
        "evouna",
        partial(sets.load, sets.evouna),
        reference_floors,
        (AnswerSupported(), "semantic_similarity"),
        soft,
        ragas="factual_correctness",
    ),
}


def figures(
    task: Agreement, rows: Sequence[Labelled], floors: Scores, scores: Scores, seed: int
) -> list[Found]:
    """Every statistic of every method on the rows that all methods could score."""
    scored = [
        place for place in range(len(rows)) if all(values[place] is not None for values in scores.values())
    ]
    kept = [rows[place] for place in scored]
    labels = np.array([task.label(row) for row in kept], float)
    groups = [row.group for row in kept]
    methods = {
        name: np.array([values[place] for place in scored], float)
        for name, values in {**floors, **scores}.items()
    }
    first, second = sets.halves(kept, lambda row: row.group, seed)
    unscored = len(rows) - len(kept)
    found: list[Found] = []

    def measure(name: str, places: Sequence[int], of: Callable[[str, np.ndarray], Statistic]) -> None:
        y, g = labels[places], [groups[place] for place in places]
        own = {
            method: with_interval(of(method, values), y, values[places], g, seed)
            for method, values in methods.items()
        }
        floor = max(floors, key=lambda method: _number(own[method].value))
        for method, figure in own.items():
            above = None
            if method not in floors:
                above = _above(of, methods, method, floor, y, places, g, seed)
            found.append(Found(task.name, name, method, method in floors, len(y), unscored, figure, above))

    everything = list(range(len(kept)))
    if task.correlation is not None:
        name, statistic = task.correlation
        measure(name, everything, lambda method, values: statistic)
        return found
    measure("AUC", everything, lambda method, values: auc)
    if not first or not second:
        return found
    measure(
        "balanced accuracy, threshold from the other half",
        second,
        lambda method, values: balanced_accuracy(best_threshold(labels[first], values[first])),
    )
    if task.f1:
        measure(
            "F1 of the unsupported, threshold from the other half",
            second,
            lambda method, values: f1_of_false(best_f1_threshold(labels[first], values[first])),
        )
    return found


def _above(
    of: Callable[[str, np.ndarray], Statistic],
    methods: Mapping[str, np.ndarray],
    method: str,
    floor: str,
    labels: np.ndarray,
    places: Sequence[int],
    groups: Sequence[str],
    seed: int,
) -> Figure:
    """By how much a method beats the floor on the same resamples; each has its own threshold."""
    ours, theirs = of(method, methods[method]), of(floor, methods[floor])
    return difference(ours, theirs, labels, methods[method][places], methods[floor][places], groups, seed)


def _number(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def score_set(
    task: Agreement, run: MeasuredRun, folder: Path, sample: Sample
) -> tuple[list[Labelled], Scores, Scores, Result | None]:
    """Sample the set and score it: the floors, and what the models say."""
    rows = task.load(folder, sample)
    by_row = [task.floors(row) for row in rows]
    floors = {name: [one[name] for one in by_row] for name in by_row[0]}
    metrics = [one for one in task.metrics if run.can(one)]
    if not metrics:
        return rows, floors, {}, None
    result = run.score(
        task.name,
        [one for row in rows for one in task.rows(row)],
        metrics,
        claims=task.claims,
    )
    return rows, floors, task.read(result, rows), result


def beside_ragas(
    task: Agreement, peer: KeptRagas, rows: Sequence[Labelled], floors: Scores, scores: Scores, seed: int
) -> list[Found]:
    """RAGAS on these rows, and everything else on those of them that it could score."""
    asked = [
        {"user_input": "", **{name: value for name, value in one.items() if name not in ("id", "language")}}
        for row in rows
        for one in task.rows(row)
    ]
    theirs = peer.score(asked, task.ragas)
    name = f"RAGAS 0.4.3 {task.ragas}" + (f", {_DIFFERENCE}" if task.pairs else "")
    first = {method: values[: len(rows)] for method, values in scores.items()}
    return figures(
        replace(task, name=f"{task.name}, first {len(rows)}"),
        rows,
        {method: values[: len(rows)] for method, values in floors.items()},
        {**first, name: second_less_first(theirs) if task.pairs else theirs},
        seed,
    )


def known_sets(text: str, known: Mapping[str, Any]) -> list[str]:
    """Split a comma-separated list of sets.

    Raises:
        UserError: for a set that is not known.
    """
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise UserError(f"no set {name!r}", {"known": ", ".join(known)})
    return chosen


def people(task: Agreement, rows: Sequence[Labelled], seed: int) -> list[Found]:
    """How well one person agrees with the mean of the others, each in turn: what a judge can hope for.

    On the rows that as many people rated as most rows; nothing where the set holds no single ratings.
    """
    if task.people is None or task.correlation is None:
        return []
    by_row = [task.people(row) for row in rows]
    most = mode(map(len, by_row))
    kept = [place for place, ratings in enumerate(by_row) if len(ratings) >= most]
    ratings = np.array([by_row[place][:most] for place in kept], float)
    measure, statistic = task.correlation

    def one_with_others(places: np.ndarray) -> float:
        drawn = ratings[places]
        others = (drawn.sum(axis=1, keepdims=True) - drawn) / (most - 1)
        return fmean(statistic(others[:, person], drawn[:, person]) for person in range(most))

    figure = bootstrap_groups(one_with_others, [rows[place].group for place in kept], seed)
    method = "one person with the mean of the others" if most > 2 else "one person with the other"
    return [Found(task.name, measure, method, True, len(kept), 0, figure)]


def published_scores(rows: Sequence[Labelled], seed: int) -> Found:
    """Spearman of the reference-free faithfulness score that was published with mtrag_human."""
    kept = [row for row in rows if row.ratings["published"] is not None]
    figure = with_interval(
        spearman,
        [row.label for row in kept],
        [row.ratings["published"] for row in kept],
        [row.group for row in kept],
        seed,
    )
    return Found(
        "mtrag_human", "Spearman with faithfulness", "RL_F published with the set", True, len(kept), 0, figure
    )


def spans(name: str, rows: Sequence[Labelled], result: Result | None, seed: int) -> list[Found]:
    """Overlap of flagged sentences with what people marked."""
    by_sentence = sentence_probabilities(result, "faithfulness", rows) if result is not None else None
    methods, n = span_overlap(rows, by_sentence, seed)
    measure = "F1 of marked characters, threshold from the other half"
    return [Found(name, measure, method, method in _FLOORS, n, 0, figure) for method, figure in methods]


def report(found: Sequence[Found]) -> str:
    """Write the table of all figures."""
    lines = [
        (
            one.set,
            one.measure,
            f"{one.method}{' (floor)' if one.is_floor and one.method in _FLOORS else ''}",
            f"{one.n}" + (f" ({one.unscored} unscored)" if one.unscored else ""),
            one.figure,
            one.above_floor or "",
        )
        for one in found
    ]
    return table(
        ("set", "measure", "method", "rows", "figure (95 % interval)", "above the better floor"), lines
    )


_FLOORS = ("word overlap", "brevity", "length")
_DIFFERENCE = "second less first"


def set_arguments(description: str, known: Iterable[str]) -> argparse.ArgumentParser:
    """Build the parser of a benchmark that samples labelled sets."""
    parser = arguments(description, n=100)
    parser.add_argument("--sets", default=",".join(known), help="comma-separated; default all")
    parser.add_argument(
        "--single-rows",
        action="store_true",
        help="the first N of all rows, shuffled, in place of whole groups, as figures are often given",
    )
    return parser


def main() -> None:
    parser = set_arguments(__doc__ or "", SETS)
    args = parser.parse_args()
    chosen = known_sets(args.sets, SETS)
    sample = Sample(args.n, args.seed, args.single_rows)
    found: list[Found] = []
    beside: list[Callable[..., list[Found]]] = []
    models = (args.judge, args.embedder, args.verifier)
    settings = {"seed": args.seed, "claims": args.claims, "backend": args.backend}
    with MeasuredRun(args.out, *models, **settings) as run:
        digests = {}
        for name in chosen:
            task = SETS[name]
            rows, floors, scores, result = score_set(task, run, args.data_folder, sample)
            digests[name] = hashlib.sha256(
                json.dumps([asdict(row) for row in rows], sort_keys=True).encode()
            ).hexdigest()[:16]
            found += figures(task, rows, floors, scores, args.seed)
            if args.ragas:
                few = rows[: args.ragas]
                beside.append(partial(beside_ragas, task, rows=few, floors=floors, scores=scores))
            found += people(task, rows, args.seed)
            if name == "mtrag_human":
                found.append(published_scores(rows, args.seed))
            if task.spans:
                found += spans(name, rows, result, args.seed)
        # Last, since the judge makes room for RAGAS's server.
        peer = run.ragas(args.ragas_environment) if beside else None
        for score_beside in beside:
            with run.timed("RAGAS"):
                found += score_beside(peer=peer, seed=args.seed)
        about = [
            f"# Agreement with people: {run.name}",
            str(sample),
            report(found),
            *(f"{name}, published: {SETS[name].published}." for name in digests if SETS[name].published),
        ]
        result_json = {
            "benchmark": "agreement",
            **sample._asdict(),
            "sets": digests,
            "figures": [plain(one) for one in found],
            "prompts": catalogue(),
            **run.environment(),
        }
        run.write(f"agreement-{run.name.replace(' ', '-')}", result_json, "\n\n".join(about))


if __name__ == "__main__":
    run_main(main)
