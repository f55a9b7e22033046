"""WikiEval: does a metric prefer what people prefer?

    python benchmarks/wikieval.py --data-folder DATA --judge qwen2.5-coder-1.5b-instruct \
        --embedder all-minilm-l6-v2 [--n 50] [--no-baselines] [--out runs/wikieval]

50 questions, three pairs each: `answer` over `ungrounded_answer` (faithfulness), `answer` over `poor_answer`
(answer relevance), `context_v1` over `context_v2` (context relevance). A method agrees where the preferred
member scores strictly higher. A tie is not agreement and neither is an unscored member; the column "with a
coin" adds half of the ties, as the paper broke them by chance. Every second question is the half on which
prompts and formulations were chosen; the other half is reported beside it. responsiveness stands for answer
relevance, context_focus for context relevance; --published adds the paper's own formulations.

The paper's two baselines are asked of the same judge: a score from 0 to 10 as text, and which of two is
better, the order drawn by the seed. --ragas N adds RAGAS 0.4.3 over the first N questions, on a server of the
same judge, and our metrics on the same questions. Without --judge only floors and shortcuts are printed.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from agreement_statistics import wilson
from floors import density, word_overlap
from labelled_sets import wikieval
from measured_run import MeasuredRun, arguments, evidence_of, run_main, table

from offline_judge import Choose, Generate, Result, Unscored, UserError
from offline_judge.prompts import catalogue, load

DIMENSIONS = ("faithfulness", "answer relevance", "context relevance")
#: Agreement with the paper's annotators; gpt-3.5 (Es et al. 2024, table 1), and the best found since.
PUBLISHED = {
    "RAGAS, gpt-3.5-turbo": (0.95, 0.78, 0.70),
    "score from 0 to 10, gpt-3.5-turbo": (0.72, 0.52, 0.63),
    "ranking, gpt-3.5-turbo": (0.54, 0.40, 0.52),
    "token probabilities of an open 8B model": (0.94, 0.98, 0.72),
}
METRICS = {
    "faithfulness": ("faithfulness",),
    "answer relevance": ("responsiveness",),
    "context relevance": ("context_focus",),
}
#: The paper's formulation where ours differs: three generations an answer, one ask for every sentence.
PUBLISHED_METRICS = {
    "answer relevance": ("response_relevancy",),
    "context relevance": ("context_relevance",),
}
#: What RAGAS 0.4.3 has for each; the paper's context relevance is no longer in it.
RAGAS_METRICS = {
    "faithfulness": "faithfulness",
    "answer relevance": "response_relevancy",
    "context relevance": "context_relevance",
}
_PROMPTS = Path(__file__).parent / "prompts"
_SCORE = json.dumps(
    {
        "type": "object",
        "properties": {"score": {"type": "integer", "enum": list(range(11))}},
        "required": ["score"],
        "additionalProperties": False,
    }
)
#: Questions whose baselines are asked together: few enough that their contexts stay in the prefix cache.
_QUESTIONS_PER_BATCH = 8
#: Random choices of sentences for the comparison with length kept aside.
_N_CHOICES = 200

Scores = Sequence[float | None]


@dataclass(frozen=True)
class Method:
    """Scores that one method gives to the preferred and the rejected member of every pair."""

    dimension: str
    name: str
    kind: str
    preferred: Scores
    rejected: Scores

    def agreement(self, places: Sequence[int]) -> dict[str, Any]:
        """Count the pairs at `places` that the method was given: agreeing, tied, unscored."""
        given = [place for place in places if place < len(self.preferred)]
        pairs = [(self.preferred[place], self.rejected[place]) for place in given]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        agree, ties = sum(a > b for a, b in known), sum(a == b for a, b in known)
        share = wilson(agree, len(pairs))
        return {
            "agree": agree,
            "of": len(pairs),
            "ties": ties,
            "unscored": len(pairs) - len(known),
            "share": share.value,
            "interval": [share.low, share.high],
            "with_a_coin": (agree + ties / 2) / len(pairs),
        }


@dataclass(frozen=True)
class Pair:
    """The preferred (0) and the rejected (1) member of one pair, as columns of a row."""

    question: str
    response: tuple[str, str] | None
    contexts: tuple[list[str], list[str]]

    def row(self, side: int) -> dict[str, Any]:
        """Columns of one member."""
        columns = {"user_input": self.question, "retrieved_contexts": self.contexts[side]}
        return {**columns, **({"response": self.response[side]} if self.response else {})}


def pairs_of(rows: Sequence[dict[str, Any]]) -> dict[str, list[Pair]]:
    """Pairs of each dimension, in the order of the questions."""

    def pairs(build: Callable[[dict[str, Any]], Pair]) -> list[Pair]:
        return [build(row) for row in rows]

    return {
        "faithfulness": pairs(
            lambda r: Pair(r["question"], (r["answer"], r["ungrounded_answer"]), (r["context_v1"],) * 2)
        ),
        "answer relevance": pairs(
            lambda r: Pair(r["question"], (r["answer"], r["poor_answer"]), (r["context_v1"],) * 2)
        ),
        "context relevance": pairs(lambda r: Pair(r["question"], None, (r["context_v1"], r["context_v2"]))),
    }


def floors(pairs: dict[str, list[Pair]]) -> Iterator[Method]:
    """What no model is needed for: overlap of words, and length."""

    def method(dimension: str, name: str, score: Callable[[dict[str, Any]], float]) -> Method:
        sides = [[score(pair.row(side)) for pair in pairs[dimension]] for side in (0, 1)]
        return Method(dimension, name, "floor", *sides)

    def context(row: dict[str, Any]) -> str:
        return "\n".join(row["retrieved_contexts"])

    yield method(
        "faithfulness", "word overlap with the context", lambda r: word_overlap(context(r), r["response"])
    )
    yield method("faithfulness", "the longer answer", lambda r: len(r["response"]))
    yield method(
        "answer relevance",
        "word overlap with the question",
        lambda r: word_overlap(r["response"], r["user_input"]),
    )
    yield method("answer relevance", "the longer answer", lambda r: len(r["response"]))
    yield method(
        "context relevance", "density of the question's words", lambda r: density(context(r), r["user_input"])
    )
    yield method("context relevance", "the shorter context", lambda r: -len(context(r)))


def metrics(
    run: MeasuredRun, pairs: dict[str, list[Pair]], dimensions: Sequence[str], published: bool
) -> Iterator[Method]:
    """The package's own metrics, hard and soft, through `evaluate`."""
    for dimension in dimensions:
        names = METRICS[dimension] + (PUBLISHED_METRICS.get(dimension, ()) if published else ())
        names = tuple(name for name in names if run.can(name))
        if not names:
            continue
        members = [
            {"id": f"{index}/{side}", **pair.row(side)}
            for index, pair in enumerate(pairs[dimension])
            for side in (0, 1)
        ]
        result = run.score(dimension.replace(" ", "-"), members, list(names))
        for label in result.metrics:
            for kind, scores in (("hard", result[label]), ("soft", result.soft(label))):
                if any(score is not None for score in scores):
                    yield Method(dimension, label, kind, scores[0::2], scores[1::2])
        if "context_focus" in result.metrics:
            yield length_kept_aside(result, len(pairs[dimension]), run.seed)


def length_kept_aside(result: Result, n_pairs: int, seed: int) -> Method:
    """Hold context_v1 against random choices of as many sentences from context_v2.

    context_v2 is the longer one in every pair, so a method could win by length alone. The preferred score
    is the share of choices that context_v1 beats under context_focus.
    """
    found = evidence_of(result, "context_focus")
    rng = np.random.default_rng(seed)
    shares = []
    for index in range(n_pairs):
        ours, theirs = (
            np.square(np.clip(found[f"{index}/{side}"]["values"]["cosine"], 0, None)) for side in (0, 1)
        )
        n = min(len(ours), len(theirs))
        drawn = [rng.choice(theirs, n, replace=False).mean() for _ in range(_N_CHOICES)]
        shares.append(float(np.mean(ours.mean() > np.array(drawn))))
    losses = [1 - share for share in shares]
    name = "context_focus, against as many sentences of context_v2"
    return Method("context relevance", name, "length kept aside", shares, losses)


def beside_ragas(
    run: MeasuredRun, pairs: dict[str, list[Pair]], n: int, own: Sequence[Method], environment: Path
) -> Iterator[Method]:
    """RAGAS on the first n questions, and our own metrics on the same ones."""
    peer = run.ragas(environment)
    for dimension in DIMENSIONS:
        rows = [pair.row(side) for pair in pairs[dimension][:n] for side in (0, 1)]
        metric = RAGAS_METRICS[dimension]
        with run.timed(f"RAGAS {dimension}"):
            scores = peer.score(rows, metric)
        yield Method(dimension, f"RAGAS 0.4.3 {metric}", f"first {n}", scores[0::2], scores[1::2])
        for method in own:
            if method.dimension == dimension and method.kind in ("hard", "soft"):
                kind = f"{method.kind}, first {n}"
                yield Method(dimension, method.name, kind, method.preferred[:n], method.rejected[:n])


def baselines(run: MeasuredRun, pairs: dict[str, list[Pair]], seed: int) -> Iterator[Method]:
    """The paper's baselines on the same judge: a score from 0 to 10, and which one is better."""
    rng = random.Random(seed)
    swapped = {dimension: [rng.random() < 0.5 for _ in found] for dimension, found in pairs.items()}
    asks: list[Any] = []
    n = len(pairs[DIMENSIONS[0]])
    for index in range(n):
        for dimension in DIMENSIONS:
            pair = pairs[dimension][index]
            asks += [_score(dimension, pair, side) for side in (0, 1)]
            asks.append(_rank(dimension, pair, swapped[dimension][index]))
    per_question = 3 * len(DIMENSIONS)
    step = per_question * _QUESTIONS_PER_BATCH
    answers: list[Any] = []
    with run.engine("baselines") as engine:
        for start in range(0, len(asks), step):
            answers += engine.run((_ask(ask), "en") for ask in asks[start : start + step])
    for place, dimension in enumerate(DIMENSIONS):
        scores: list[list[float | None]] = [[], []]
        first: list[float | None] = []
        for index in range(n):
            at = index * per_question + 3 * place
            for side in (0, 1):
                found = answers[at + side]
                scores[side].append(None if isinstance(found, Unscored) else found["score"])
            p = answers[at + 2]
            first.append(
                None if isinstance(p, Unscored) else 1 - p if swapped[dimension][index] else float(p)
            )
        yield Method(dimension, "score from 0 to 10", "baseline", *scores)
        yield Method(dimension, "ranking", "baseline", first, [None if p is None else 1 - p for p in first])


def _ask(ask: Any) -> Iterator[Any]:
    (answer,) = yield [ask]
    return answer


def _values(dimension: str, pair: Pair, side: int) -> tuple[str, ...]:
    context = "\n\n".join(pair.contexts[side])
    if pair.response is None:
        return (context,)
    return (context if dimension == "faithfulness" else pair.question, pair.response[side])


def _score(dimension: str, pair: Pair, side: int) -> Generate:
    values = _values(dimension, pair, side)
    values = values if pair.response else (*values, pair.question)
    return Generate(_prompt("score", dimension), values, _SCORE, max_tokens=16)


def _rank(dimension: str, pair: Pair, swap: bool) -> Choose:
    first, second = (1, 0) if swap else (0, 1)
    shared, texts = _values(dimension, pair, first), _values(dimension, pair, second)
    if pair.response is None:
        return Choose(_prompt("rank", dimension), (*shared, *texts, pair.question))
    return Choose(_prompt("rank", dimension), (*shared, texts[-1]))


def _prompt(kind: str, dimension: str) -> str:
    return str(_PROMPTS / f"{kind}_{dimension.split()[0 if dimension != 'answer relevance' else 1]}.toml")


def report(methods: Sequence[Method], n: int) -> tuple[dict[str, Any], str]:
    """Return the figures of every method and the Markdown table of them."""
    halves = {"all": range(n), "chosen on": range(0, n, 2), "held out": range(1, n, 2)}
    found, lines = [], []
    for dimension in DIMENSIONS:
        for method in (one for one in methods if one.dimension == dimension):
            counts = {half: method.agreement(list(places)) for half, places in halves.items()}
            found.append(
                {"dimension": dimension, "method": method.name, "kind": method.kind, "agreement": counts}
            )
            whole = counts["all"]
            low, high = whole["interval"]
            lines.append(
                (
                    dimension,
                    f"{method.name} ({method.kind})",
                    f"**{whole['agree']}/{whole['of']}**",
                    f"{low:.2f} to {high:.2f}",
                    whole["ties"],
                    whole["unscored"],
                    f"{whole['with_a_coin']:.2f}",
                    *(f"{counts[half]['agree']}/{counts[half]['of']}" for half in ("chosen on", "held out")),
                )
            )
        place = DIMENSIONS.index(dimension)
        for name, shares in PUBLISHED.items():
            lines.append((dimension, f"{name} (published)", f"{shares[place]:.0%}", *("",) * 6))
    header = (
        "dimension",
        "method",
        "agrees",
        "95 % interval",
        "ties",
        "unscored",
        "with a coin",
        "chosen on",
        "held out",
    )
    return {"methods": found, "published": PUBLISHED}, table(header, lines)


def prompts_used() -> dict[str, Any]:
    """Version and digest of every prompt of the package and of the baselines."""
    own = [load(str(path), "en") for path in sorted(_PROMPTS.glob("*.toml"))]
    return {**catalogue(), **{one.id: {"en": f"v{one.version} {one.digest}"} for one in own}}


def write(run: MeasuredRun, rows: Sequence[dict[str, Any]], methods: Sequence[Method]) -> None:
    """Write the JSON and the Markdown result."""
    figures, markdown = report(methods, len(rows))
    environment = run.environment()
    embedder = run.embedder.name if run.embedder else "no embedder"
    prompts = prompts_used()
    result = {
        "benchmark": "wikieval",
        "rows": len(rows),
        "sha256": hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest(),
        "seed": run.seed,
        "claims": run.claims,
        **figures,
        "prompts": prompts,
        **environment,
    }
    versions = environment["models"].get("judge", {}).get("versions", {})
    versions = {"offline_judge": environment["offline_judge"], **versions}
    about = [
        f"# WikiEval: {run.name}, {embedder}, claims by {run.claims}",
        f'{len(rows)} questions. A tie is not agreement; "with a coin" adds half of the ties.',
        markdown,
        "Seconds, starts included: "
        + (", ".join(f"{name} {value:.0f}" for name, value in run.seconds.items()) or "none"),
        "Versions: " + ", ".join(f"{name} {value}" for name, value in versions.items()),
        "Prompts: " + ", ".join(f"{name} {one['en']}" for name, one in prompts.items()),
    ]
    run.write(f"wikieval-{run.name.replace(' ', '-')}", result, "\n\n".join(about))


def main() -> None:
    parser = arguments(__doc__ or "", n=50)
    parser.add_argument("--no-baselines", action="store_true", help="leave the paper's baselines out")
    parser.add_argument(
        "--published", action="store_true", help="the paper's formulations too: 300 generations, 4,000 asks"
    )
    parser.add_argument(
        "--dimensions",
        default=",".join(DIMENSIONS),
        help="of the metrics, comma-separated; default all",
    )
    parser.set_defaults(out=Path("runs/wikieval"))
    args = parser.parse_args()
    dimensions = [name.strip() for name in args.dimensions.split(",")]
    if unknown := set(dimensions) - set(DIMENSIONS):
        raise UserError(f"no dimension {min(unknown)!r}", {"known": ", ".join(DIMENSIONS)})
    rows = wikieval(args.data_folder)[: args.n]
    pairs = pairs_of(rows)
    methods = list(floors(pairs))
    models = (args.judge, args.embedder, args.verifier)
    settings = {"seed": args.seed, "claims": args.claims, "backend": args.backend}
    with MeasuredRun(args.out, *models, **settings) as run:
        own = list(metrics(run, pairs, dimensions, args.published))
        methods += own
        if run.judge is not None and not args.no_baselines:
            methods += baselines(run, pairs, args.seed)
        if args.ragas:
            methods += beside_ragas(run, pairs, args.ragas, own, args.ragas_environment)
        write(run, rows, methods)


if __name__ == "__main__":
    run_main(main)
