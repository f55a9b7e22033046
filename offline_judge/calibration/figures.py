"""How well probabilities agree with labels, each figure with a bootstrap interval over documents.

Every figure is written for weighted rows, so a resample is a row of weights and a thousand resamples are
one matrix: (R, N) weights to (R,) figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: (R, N) weights to (R,) figures; NaN where one is undefined.
Figures = Callable[[Array], Array]

N_RESAMPLES = 1000
_N_BINS = 10
_BLOCK_VALUES = 4_000_000


class Interval(NamedTuple):
    """A figure and its 95 % percentile-bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write it as 0.931 (0.880 to 0.970)."""
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def auc(labels: Array, p: Array) -> Figures:
    """Area under the ROC curve: P(a supported claim scores above an unsupported one), ties counting half."""
    order = np.argsort(p, kind="stable")
    starts = np.flatnonzero(np.diff(p[order], prepend=-np.inf))

    def figures(weights: Array) -> Array:
        yes = np.add.reduceat((weights * labels)[:, order], starts, axis=1)
        no = np.add.reduceat((weights * (1 - labels))[:, order], starts, axis=1)
        below = np.cumsum(no, axis=1) - no
        return _ratio((yes * (below + no / 2)).sum(axis=1), yes.sum(axis=1) * no.sum(axis=1))

    return figures


def balanced_accuracy(labels: Array, verdicts: Array) -> Figures:
    """Mean of the shares of supported and of unsupported claims that are called so."""

    def figures(weights: Array) -> Array:
        yes = _ratio(weights @ (labels * verdicts), weights @ labels)
        no = _ratio(weights @ ((1 - labels) * (1 - verdicts)), weights @ (1 - labels))
        return (yes + no) / 2

    return figures


def kappa(labels: Array, verdicts: Array) -> Figures:
    """Cohen's kappa: (observed agreement - agreement by chance) / (1 - agreement by chance)."""

    def figures(weights: Array) -> Array:
        total = weights.sum(axis=1)
        agreed = _ratio(weights @ (labels == verdicts), total)
        yes, called = _ratio(weights @ labels, total), _ratio(weights @ verdicts, total)
        chance = yes * called + (1 - yes) * (1 - called)
        return _ratio(agreed - chance, 1 - chance)

    return figures


def calibration_error(labels: Array, p: Array) -> Figures:
    """Expected calibration error: mean |share supported - mean p| over 10 bins of equal width, by rows."""
    bins = np.eye(_N_BINS)[np.minimum((p * _N_BINS).astype(int), _N_BINS - 1)]

    def figures(weights: Array) -> Array:
        return _ratio(np.abs((weights * (labels - p)) @ bins).sum(axis=1), weights.sum(axis=1))

    return figures


def with_interval(figures: Figures, documents: Sequence[str], rng: np.random.Generator) -> Interval:
    """Return a figure of all rows with its interval; documents are drawn whole, with replacement."""
    _, place = np.unique(np.asarray(documents, dtype=object).astype(str), return_inverse=True)
    n_documents = int(place.max()) + 1
    block = max(1, _BLOCK_VALUES // len(place))
    drawn = []
    for start in range(0, N_RESAMPLES, block):
        n = min(block, N_RESAMPLES - start)
        counts = rng.multinomial(n_documents, np.full(n_documents, 1 / n_documents), size=n)
        drawn.append(figures(counts[:, place].astype(float)))
    known = np.concatenate(drawn)
    known = known[~np.isnan(known)]
    value = float(figures(np.ones((1, len(place))))[0])
    if not known.size:
        return Interval(value, np.nan, np.nan)
    low, high = np.quantile(known, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def _ratio(above: Array, below: Array) -> Array:
    """Divide, NaN where the divisor is 0."""
    found: Array = np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0)
    return found
