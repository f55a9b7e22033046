"""Agreement with people in numbers, each with its 95 % interval.

Intervals of a count are Wilson's; all others are percentile bootstraps over groups of rows. What is
computed a thousand times is written in numpy here, since scikit-learn checks its arguments for longer than
it computes; a test holds each against scikit-learn or scipy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.metrics import roc_curve

from offline_judge.calibration.figures import Interval

#: Resamples of a bootstrap interval.
N_RESAMPLES = 1000

Array = NDArray[np.float64]
#: (labels, scores) of N rows to a number; NaN where it is undefined, as the AUC of one class alone is.
Statistic = Callable[[Array, Array], float]


class Figure(Interval):
    """A number and its 95 % interval."""

    def to_json(self) -> dict[str, float | None]:
        """Return it by name; what is undefined becomes null."""
        return {name: None if np.isnan(value) else value for name, value in self._asdict().items()}


def wilson(k: int, n: int) -> Figure:
    """Share k/n with Wilson's interval."""
    interval = stats.binomtest(k, n).proportion_ci(method="wilson")
    return Figure(k / n, float(interval.low), float(interval.high))


def auc(labels: Array, scores: Array) -> float:
    """Area under the ROC curve: P(a true row scores above a false one), ties counting half."""
    n_true = labels.sum()
    n_false = len(labels) - n_true
    if not n_true or not n_false:
        return np.nan
    ranks = stats.rankdata(scores)[labels > 0].sum()
    return float((ranks - n_true * (n_true + 1) / 2) / (n_true * n_false))


def best_threshold(labels: Array, scores: Array) -> float:
    """Return the threshold with the best balanced accuracy; a row is true where score >= threshold.

    It lies midway between two neighbouring scores, so that it does not hang on the last digits of one.
    """
    false_rate, true_rate, thresholds = roc_curve(labels, scores)
    best = int(np.argmax(true_rate - false_rate))
    at = min(thresholds[best], scores.max() + 1)
    below = scores[scores < at]
    return float((at + below.max()) / 2) if below.size else float(at)


def best_f1_threshold(labels: Array, scores: Array) -> float:
    """Return the threshold with the best F1 of the false rows (what is to be found is the unsupported)."""
    candidates = np.unique(scores)
    edges = np.concatenate(
        [[candidates[0] - 1], (candidates[1:] + candidates[:-1]) / 2, [candidates[-1] + 1]]
    )
    reached = [f1_of_false(edge)(labels, scores) for edge in edges]
    return float(edges[int(np.argmax(reached))])


def balanced_accuracy(threshold: float) -> Statistic:
    """Mean of the shares of true and of false rows that are called so at `threshold`."""

    def statistic(labels: Array, scores: Array) -> float:
        true, called = labels > 0, scores >= threshold
        if true.all() or not true.any():
            return np.nan
        return float((called[true].mean() + (~called[~true]).mean()) / 2)

    return statistic


def f1_of_false(threshold: float) -> Statistic:
    """F1 of finding the false rows: those that score below `threshold`."""

    def statistic(labels: Array, scores: Array) -> float:
        false, called = labels <= 0, scores < threshold
        n = false.sum() + called.sum()
        return float(2 * (false & called).sum() / n) if n else 0.0

    return statistic


def spearman(labels: Array, scores: Array) -> float:
    """Rank correlation, in [-1, 1]; NaN where one side is constant."""
    return pearson(stats.rankdata(labels), stats.rankdata(scores))


def pearson(labels: Array, scores: Array) -> float:
    """Linear correlation, in [-1, 1]; NaN where one side is constant."""
    if not np.ptp(labels) or not np.ptp(scores):
        return np.nan
    return float(np.corrcoef(labels, scores)[0, 1])


def with_interval(
    statistic: Statistic, labels: ArrayLike, scores: ArrayLike, groups: Sequence[str], seed: int
) -> Figure:
    """`statistic` of (N,) labels and scores with its interval; groups are drawn whole, with replacement."""
    labels, scores = np.asarray(labels, float), np.asarray(scores, float)
    return bootstrap_groups(lambda rows: statistic(labels[rows], scores[rows]), groups, seed)


def difference(
    ours: Statistic,
    theirs: Statistic,
    labels: ArrayLike,
    scores: ArrayLike,
    floor: ArrayLike,
    groups: Sequence[str],
    seed: int,
) -> Figure:
    """`ours` of the scores less `theirs` of the floor, on the same resamples of the same rows."""
    labels, scores, floor = (np.asarray(values, float) for values in (labels, scores, floor))
    return bootstrap_groups(
        lambda rows: ours(labels[rows], scores[rows]) - theirs(labels[rows], floor[rows]), groups, seed
    )


def bootstrap_groups(
    statistic: Callable[[NDArray[np.int64]], float], groups: Sequence[str], seed: int
) -> Figure:
    """A number that is computed from the rows at given positions, with its interval over groups."""
    drawn = [statistic(rows) for rows in _resamples(groups, seed)]
    return Figure(statistic(np.arange(len(groups))), *_interval(drawn))


def _resamples(groups: Sequence[str], seed: int) -> list[NDArray[np.int64]]:
    """Positions of the rows of each resample."""
    _, place = np.unique(np.asarray(groups, dtype=object).astype(str), return_inverse=True)
    members = [np.flatnonzero(place == index) for index in range(place.max() + 1)]
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(members), size=(N_RESAMPLES, len(members)))
    return [np.concatenate([members[index] for index in draw]) for draw in draws]


def _interval(drawn: Sequence[float]) -> tuple[float, float]:
    known = np.asarray(drawn)[~np.isnan(drawn)]
    if not known.size:
        return np.nan, np.nan
    low, high = np.quantile(known, (0.025, 0.975))
    return float(low), float(high)
