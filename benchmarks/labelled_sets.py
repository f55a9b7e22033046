"""Loaders of public, human-labelled sets: one short function each, from a folder that the user names.

Nothing of the sets is in this repository. `FOLDER/<set>/…` holds the files as JSON lines; README.md of the
benchmarks says where each set comes from. Rows are sampled by whole groups (all responses to one context,
all facts of one page): a premise is then paid for once, and intervals resample groups, since rows of one
group are not independent.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from offline_judge import UserError


@dataclass(frozen=True)
class Labelled:
    """One labelled row, with the columns that `offline_judge.evaluate` takes and what people said.

    `label` is what a score is held against: True or False, or people's mean rating. `group` names what
    the row shares with others; `other` is the second response of a pair; `spans` are the (start, end) of
    what people marked in the response.
    """

    id: str
    group: str
    label: float
    user_input: str = ""
    response: str = ""
    retrieved_contexts: tuple[str, ...] = ()
    reference: str = ""
    other: str = ""
    spans: tuple[tuple[int, int], ...] = ()
    ratings: dict[str, Any] = field(default_factory=dict)
    language: str = "en"


class Sample(NamedTuple):
    """Which rows of a set: about `n` by whole groups, or with `single_rows` the first n of all, shuffled."""

    n: int
    seed: int
    single_rows: bool = False

    def __str__(self) -> str:
        about = f"{self.n} single rows" if self.single_rows else f"About {self.n} rows"
        return f"{about} of each set, seed {self.seed}."


Loader = Callable[[Path], Iterator[Labelled]]
_T = TypeVar("_T")


def wikieval(folder: Path) -> list[dict[str, Any]]:
    """50 questions with `answer`, `ungrounded_answer`, `poor_answer`, `context_v1` and `context_v2`.

    The stray quote at the end of most poor answers is taken off: the good ones have none, and a judge
    could tell them apart by it.
    """
    rows = list(_lines(folder / "wikieval" / "wikieval.jsonl"))
    for row in rows:
        row["poor_answer"] = row["poor_answer"].strip().rstrip("'").strip()
    return rows


def ragtruth_qa_test(folder: Path) -> Iterator[Labelled]:
    """Responses to retrieved passages; label: no hallucinated span was marked."""
    for row in _lines(folder / "ragtruth_qa_test" / "ragtruth_qa_test.jsonl"):
        yield Labelled(
            id=row["id"],
            group=row["source_id"],
            label=float(not row["hallucinated"]),
            user_input=row["query"],
            response=row["response"],
            retrieved_contexts=tuple(re.split(r"\n+(?=passage \d+:)", row["context"].strip())),
            spans=tuple((span["start"], span["end"]) for span in row["spans"]),
        )


def mtrag_human(folder: Path) -> Iterator[Labelled]:
    """Responses of a conversation's last turn; label: mean rating of faithfulness, 1 to 4."""
    for row in _lines(folder / "mtrag_human" / "mtrag_human.jsonl"):
        if not row["contexts"] or not row["faithfulness"]:
            continue
        yield Labelled(
            id=row["id"],
            group=row["id"].partition("|")[0],
            label=_mean(row["faithfulness"]),
            user_input=row["question"],
            response=row["response"],
            retrieved_contexts=tuple(row["contexts"]),
            reference=row["reference"],
            ratings={
                "faithfulness": row["faithfulness"],
                "completeness": row["completeness"],
                "published": row["auto"]["rl_f"],
                "is_reference": row["model"] == "reference",
            },
        )


def ragchecker_meta(folder: Path) -> Iterator[Labelled]:
    """Pairs of responses; label: mean of two people's preference, -2 (first) to 2 (second)."""
    pairs: dict[int, list[dict[str, Any]]] = {}
    for row in _lines(folder / "ragchecker_meta" / "human_labeled.jsonl"):
        pairs.setdefault(row["instance_id"], []).append(row)
    for instance, ratings in pairs.items():
        overall = [rating["overall_label"] for rating in ratings]
        yield Labelled(
            id=str(instance),
            group=str(instance),
            label=_mean(overall),
            user_input=ratings[0]["query"],
            response=ratings[0]["model1"]["response"],
            other=ratings[0]["model2"]["response"],
            reference=ratings[0]["gt_answer"],
            ratings={"preference": overall},
        )


def wice(folder: Path) -> Iterator[Labelled]:
    """Sentences of Wikipedia and pages that they cite; label: supported in full."""
    for index, row in enumerate(_lines(folder / "wice" / "claim_dev.jsonl")):
        yield Labelled(
            id=f"{row['meta']['id']}/{index}",
            group=row["meta"]["id"],
            label=float(row["label"] == "supported"),
            response=row["claim"],
            retrieved_contexts=(" ".join(row["evidence"]),),
        )


def fm2(folder: Path) -> Iterator[Labelled]:
    """Claims written by players and the evidence that they chose; label: supports."""
    for row in _lines(folder / "fm2" / "dev.jsonl"):
        yield Labelled(
            id=row["id"],
            group=row["id"],
            label=float(row["label"] == "SUPPORTS"),
            response=row["claim"],
            retrieved_contexts=(" ".join(row["gold_evidence"]),),
        )


def q2_wow(folder: Path) -> Iterator[Labelled]:
    """Turns of a dialogue and the knowledge given to the speaker; label: consistent."""
    for index, row in enumerate(_lines(folder / "q2_wow" / "q2.jsonl")):
        yield Labelled(
            id=str(index),
            group=row["knowledge"],
            label=float(row["consistent"]),
            user_input=row["message"],
            response=row["response"],
            retrieved_contexts=(row["knowledge"],),
        )


def factscore_human(folder: Path) -> Iterator[Labelled]:
    """Atomic facts of generated biographies and the person's Wikipedia page; label: supported."""
    pages = {row["doc_id"]: row for row in _lines(folder / "factscore_human" / "docs.jsonl")}
    for index, row in enumerate(_lines(folder / "factscore_human" / "facts.jsonl")):
        if row["doc_id"] in pages:
            yield Labelled(
                id=f"{row['doc_id']}/{index}",
                group=row["doc_id"],
                label=float(row["label"] == "supported"),
                response=row["fact"],
                retrieved_contexts=(pages[row["doc_id"]]["evidence"],),
            )


def nomiracl(folder: Path, language: str) -> Iterator[Labelled]:
    """Queries and up to ten passages; label: a native speaker found the answer in one of them."""
    for row in _lines(folder / "nomiracl" / f"{language}_test.jsonl"):
        yield Labelled(
            id=row["query_id"],
            group=row["query_id"],
            label=float(row["has_relevant"]),
            user_input=row["query"],
            retrieved_contexts=tuple(row["passages"]),
            language=language,
        )


def nomiracl_en(folder: Path) -> Iterator[Labelled]:
    """NoMIRACL in English."""
    return nomiracl(folder, "en")


def nomiracl_ko(folder: Path) -> Iterator[Labelled]:
    """NoMIRACL in Korean."""
    return nomiracl(folder, "ko")


def evouna(folder: Path) -> Iterator[Labelled]:
    """Answers of five systems to short open questions; label: correct."""
    for row in _lines(folder / "evouna" / "evouna.jsonl"):
        yield Labelled(
            id=row["id"],
            group=row["question"],
            label=float(row["correct"]),
            user_input=row["question"],
            response=row["answer"],
            reference=row["gold"],
        )


def kornlu(folder: Path) -> Iterator[Labelled]:
    """XNLI in Korean; label: entailment."""
    return _nli(folder / "kornlu" / "xnli_dev_ko.jsonl")


def klue_nli(folder: Path) -> Iterator[Labelled]:
    """KLUE-NLI, written in Korean; label: entailment."""
    return _nli(folder / "klue_nli" / "dev.jsonl")


def load(loader: Loader, folder: Path, sample: Sample, *, per_group: int | None = None) -> list[Labelled]:
    """Sample about n rows by whole groups: the same rows for the same seed, whatever n was before.

    `per_group` takes at most so many rows of each group, the first ones after shuffling.
    """
    rng = random.Random(sample.seed)
    if sample.single_rows:
        rows = list(loader(folder))
        rng.shuffle(rows)
        return rows[: sample.n]
    groups: dict[str, list[Labelled]] = {}
    for row in loader(folder):
        groups.setdefault(row.group, []).append(row)
    names = sorted(groups)
    rng.shuffle(names)
    chosen: list[Labelled] = []
    for name in names:
        if len(chosen) >= sample.n:
            break
        rows = groups[name]
        rng.shuffle(rows)
        chosen += rows[:per_group]
    return chosen


def halves(rows: Sequence[_T], group: Callable[[_T], str], seed: int) -> tuple[list[int], list[int]]:
    """Positions of the rows whose groups fall in the first and in the second half."""
    names = sorted({group(row) for row in rows})
    random.Random(seed).shuffle(names)
    first = set(names[: (len(names) + 1) // 2])
    in_first = [index for index, row in enumerate(rows) if group(row) in first]
    return in_first, [index for index, row in enumerate(rows) if group(row) not in first]


def without(row: Labelled, *columns: str) -> Labelled:
    """Return the row with some columns blank."""
    return replace(row, **dict.fromkeys(columns, ""))


def _nli(path: Path) -> Iterator[Labelled]:
    for index, row in enumerate(_lines(path)):
        yield Labelled(
            id=str(index),
            group=row["premise"],
            label=float(row["label"] == "entailment"),
            response=row["hypothesis"],
            retrieved_contexts=(row["premise"],),
            language="ko",
        )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise UserError(
            f"no file {path.name} of the set {path.parent.name}",
            {"looked for": str(path), "to fix": "--data-folder names the folder that holds the sets"},
        )
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _mean(ratings: Sequence[float]) -> float:
    return sum(ratings) / len(ratings)
