"""Do the sentences that a judge flags cover what people marked in a response?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from agreement_statistics import Figure, bootstrap_groups
from floors import word_overlap
from labelled_sets import Labelled, halves
from numpy.typing import NDArray

from offline_judge.text import split_sentences

#: By row: flagged and marked characters in common, flagged ones, marked ones.
Counts = NDArray[np.float64]


def span_overlap(
    rows: Sequence[Labelled], by_sentence: Sequence[dict[str, float]] | None, seed: int
) -> tuple[list[tuple[str, Figure]], int]:
    """F1 over characters of the flagged sentences and the marked spans, by method, and the number of rows.

    A sentence is flagged where its score is below a threshold, the one with the best F1 on the other half.

    Args:
        rows: with the spans that people marked.
        by_sentence: probability of each sentence of each row, by its text; None leaves the floor alone.
        seed: of the halves and the intervals.
    """
    first, second = halves(rows, lambda row: row.group, seed)
    floor = [_overlaps(row) for row in rows]
    methods = {"word overlap": floor} | ({"p of the sentence": by_sentence} if by_sentence else {})
    found = []
    for name, scores in methods.items():
        thresholds = np.unique(np.round([p for place in first for p in scores[place].values()], 2)) + 0.005
        if not thresholds.size:
            continue
        best = max(thresholds, key=lambda at, scores=scores: _f1(_counts(rows, scores, first, at)))
        counts = _counts(rows, scores, second, float(best))
        groups = [rows[place].group for place in second]
        figure = bootstrap_groups(lambda places, counts=counts: _f1(counts[places]), groups, seed)
        found.append((name, figure))
    return found, len(second)


def _overlaps(row: Labelled) -> dict[str, float]:
    context = "\n".join(row.retrieved_contexts)
    return {one.text: word_overlap(context, one.text) for one in split_sentences(row.response)}


def _counts(
    rows: Sequence[Labelled], scores: Sequence[dict[str, float]], places: Sequence[int], threshold: float
) -> Counts:
    """(N, 3) characters of the rows at N places: in common, flagged, marked."""
    counts = np.zeros((len(places), 3))
    for line, place in zip(counts, places, strict=True):
        row, of_sentence = rows[place], scores[place]
        flagged = np.zeros(len(row.response), bool)
        marked = np.zeros(len(row.response), bool)
        for one in split_sentences(row.response):
            flagged[one.start : one.end] = of_sentence.get(one.text, 1.0) < threshold
        for start, end in row.spans:
            marked[start:end] = True
        line[:] = (flagged & marked).sum(), flagged.sum(), marked.sum()
    return counts


def _f1(counts: Counts) -> float:
    """F1 over all characters of the rows."""
    common, flagged, marked = counts.sum(axis=0)
    return float(2 * common / (flagged + marked)) if flagged + marked else 0.0
