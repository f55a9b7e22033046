"""Fits to labelled probabilities: a threshold, Platt's and the isotonic curve, cascade thresholds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_judge.calibration.figures import Array

#: A model may say exactly 0 or 1; its log-odds are taken as those of this close to it.
_NEAREST = 1e-9


class Line(NamedTuple):
    """sigmoid(slope * logit(p) + intercept)."""

    slope: float
    intercept: float

    def __call__(self, p: Array) -> Array:
        """Calibrate probabilities."""
        return sigmoid(self.slope * logit(p) + self.intercept)


class Steps(NamedTuple):
    """Piecewise linear between knots (x ascending), constant beyond them."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __call__(self, p: Array) -> Array:
        """Calibrate probabilities."""
        return np.asarray(np.interp(p, self.x, self.y), dtype=np.float64)


def logit(p: Array) -> Array:
    """log(p / (1 - p)), finite at 0 and 1."""
    p = np.clip(p, _NEAREST, 1 - _NEAREST)
    return np.asarray(np.log(p) - np.log1p(-p), dtype=np.float64)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    from scipy.special import expit

    return np.asarray(expit(x), dtype=np.float64)


def best_threshold(labels: Array, p: Array) -> float:
    """Return the threshold of the best balanced accuracy; a claim is supported where p >= threshold.

    It lies midway between two neighbouring probabilities, in log-odds.
    """
    order = np.argsort(p, kind="stable")
    yes = np.cumsum(labels[order]) / labels.sum()
    no = np.cumsum(1 - labels[order]) / (1 - labels).sum()
    # After place i, everything up to i is called unsupported; only where the next probability differs.
    cuts = np.flatnonzero(np.diff(p[order]) > 0)
    if not cuts.size:
        return float(p[0])
    best = cuts[int(np.argmax((no - yes)[cuts]))]
    return float(sigmoid(logit(p[order][best : best + 2]).mean()))


def fit_platt(labels: Array, p: Array, *, balanced: bool = False) -> Line:
    """Fit Platt's curve by logistic regression on the log-odds, with his smoothed targets.

    `balanced` weighs the two labels alike, so that 0.5 divides them whatever their share in the file.
    Source: Platt 1999, Probabilistic outputs for support vector machines.
    """
    from sklearn.linear_model import LogisticRegression

    n_yes, n_no = labels.sum(), (1 - labels).sum()
    targets = np.where(labels > 0, (n_yes + 1) / (n_yes + 2), 1 / (n_no + 2))
    weights = (
        np.where(labels > 0, 0.5 / n_yes, 0.5 / n_no) * len(labels) if balanced else np.ones(len(labels))
    )
    x = np.tile(logit(p), 2)[:, None]
    y = np.repeat([1, 0], len(labels))
    model = LogisticRegression(C=1e6, max_iter=1000)
    model.fit(x, y, sample_weight=np.concatenate((weights * targets, weights * (1 - targets))))
    return Line(float(model.coef_[0, 0]), float(model.intercept_[0]))


def fit_isotonic(labels: Array, p: Array) -> Steps:
    """Fit the monotone curve of least squares."""
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, labels)
    return Steps(tuple(map(float, model.X_thresholds_)), tuple(map(float, model.y_thresholds_)))


def fit_applied(labels: Array, p: Array) -> Line:
    """Fit what `evaluate` uses: Platt's balanced slope, shifted so that the best threshold becomes 0.5."""
    slope = fit_platt(labels, p, balanced=True).slope
    at = float(logit(np.array([best_threshold(labels, p)]))[0])
    return Line(slope, -slope * at)


class Band(NamedTuple):
    """Cascade thresholds in calibrated probabilities: what they send, and how right the rest is."""

    low: float
    high: float
    share_sent: float
    agreement: float


def cascade_band(
    labels: Array, calibrated: Array, *, share: float | None = None, agreement: float | None = None
) -> Band:
    """Find the band around 0.5 that goes to the judge: a wanted share, or the least for a wanted agreement.

    Args:
        labels: (N,) 0 or 1.
        calibrated: (N,) probabilities of which 0.5 divides the labels.
        share: at most this share of the claims is sent.
        agreement: of the claims that are not sent, at least this share is decided as people did. Where
            no band reaches it, everything is sent.
    """
    sureness = np.abs(logit(calibrated))
    right = ((calibrated >= 0.5) == (labels > 0)).astype(float)
    order = np.argsort(sureness, kind="stable")
    n = len(labels)
    kept = n - np.arange(n + 1)
    # right_kept[k]: how many are right where the k least sure are sent.
    right_kept = np.concatenate(([right.sum()], right.sum() - np.cumsum(right[order])))
    reached = np.divide(right_kept, kept, out=np.ones(n + 1), where=kept > 0)
    # Equally sure claims are sent together or not at all.
    edges = np.concatenate((sureness[order], [np.inf]))
    allowed: NDArray[np.bool_] = np.concatenate(([True], edges[1:] > edges[:-1]))
    if share is not None:
        allowed &= np.arange(n + 1) <= share * n
        sent = int(np.flatnonzero(allowed)[-1])
    else:
        allowed &= reached >= (agreement or 0)
        sent = int(np.flatnonzero(allowed)[0])
    # Midway between the last that is sent and the first that is not; infinite where all are.
    margin = (edges[sent - 1] + edges[sent]) / 2 if sent else 0.0
    low, high = sigmoid(np.array([-margin, margin]))
    return Band(float(low), float(high), sent / n, float(reached[sent]))
