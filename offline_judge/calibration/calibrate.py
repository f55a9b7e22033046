"""From labelled claims and their probabilities to a calibration with honest figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_judge.calibration.figures import (
    Array,
    auc,
    balanced_accuracy,
    calibration_error,
    kappa,
    with_interval,
)
from offline_judge.calibration.fit import (
    best_threshold,
    cascade_band,
    fit_applied,
    fit_isotonic,
    fit_platt,
)
from offline_judge.calibration.record import Calibration, Kind, calibration_key
from offline_judge.errors import UserError

#: Fewer claims of either label can't say where a threshold lies.
LEAST_OF_EACH = 10
_N_FOLDS = 5
_AGREEMENT = 0.95


def calibrate(
    labels: Sequence[float],
    p: Sequence[float],
    documents: Sequence[str],
    *,
    model: str,
    kind: Kind,
    fingerprint: str,
    about: dict[str, Any],
    seed: int = 0,
    share: float | None = None,
    agreement: float | None = None,
) -> Calibration:
    """Fit threshold, curves and cascade thresholds, and say how well they do on rows that were held out.

    Args:
        labels: (N,) 0 or 1.
        p: (N,) probabilities as the model gave them.
        documents: (N,) what each claim is about: the unit of folds and resamples.
        model: how reports call it.
        kind: "judge" or "encoder".
        fingerprint: hash of the model's files.
        about: the labels' file, for the record.
        seed: of folds and resamples.
        share: wanted share of claims that a cascade sends to the judge.
        agreement: wanted agreement of what the first stage decides; 0.95 where neither is given.

    Raises:
        UserError: for fewer than 10 claims of either label, or probabilities that do not rank them.
    """
    y, raw = np.asarray(labels, float), np.asarray(p, float)
    n_yes = int(y.sum())
    if min(n_yes, len(y) - n_yes) < LEAST_OF_EACH:
        raise UserError(
            "too few labelled claims to calibrate on",
            {"found": f"{n_yes} supported, {len(y) - n_yes} not", "needed": f"{LEAST_OF_EACH} of each"},
        )
    applied = fit_applied(y, raw)
    if not applied.slope > 0:
        raise UserError(
            f"the probabilities of {model!r} do not rank the labelled claims",
            {
                "AUC": f"{auc(y, raw)(np.ones((1, len(y))))[0]:.3f}; 0.5 is chance",
                "to fix": "check the labels, or take another verifier",
            },
        )
    rng = np.random.default_rng(seed)
    folds = _folds(documents, rng)
    verdicts, line, platt, isotonic = (np.empty(len(y)) for _ in range(4))
    for fold in range(folds.max() + 1):
        rest, held = folds != fold, folds == fold
        if len(set(y[rest])) < 2:
            raise UserError(
                "the labelled claims come from too few documents to hold some out",
                {"found": f"{len(set(documents))} documents", "to fix": "label claims about more documents"},
            )
        verdicts[held] = raw[held] >= best_threshold(y[rest], raw[rest])
        line[held] = fit_applied(y[rest], raw[rest])(raw[held])
        platt[held] = fit_platt(y[rest], raw[rest])(raw[held])
        isotonic[held] = fit_isotonic(y[rest], raw[rest])(raw[held])
    at_half = (raw >= 0.5).astype(float)
    figures = {
        "auc": auc(y, raw),
        "balanced_accuracy": balanced_accuracy(y, verdicts),
        "balanced_accuracy_at_half": balanced_accuracy(y, at_half),
        "kappa": kappa(y, verdicts),
        "kappa_at_half": kappa(y, at_half),
        "ece": calibration_error(y, raw),
        "ece_platt": calibration_error(y, platt),
        "ece_isotonic": calibration_error(y, isotonic),
    }
    if share is None and agreement is None:
        agreement = _AGREEMENT
    band = cascade_band(y, line, share=share, agreement=agreement)
    wanted: dict[str, Any] = {"wanted_share": share, "wanted_agreement": agreement}
    curve = fit_isotonic(y, raw)
    return Calibration(
        model=model,
        kind=kind,
        key=calibration_key(kind, fingerprint),
        labels={**about, "n": len(y), "n_supported": n_yes, "n_documents": len(set(documents))},
        threshold=best_threshold(y, raw),
        applied=applied._asdict(),
        platt=fit_platt(y, raw)._asdict(),
        isotonic={"x": list(curve.x), "y": list(curve.y)},
        cascade={**band._asdict(), **wanted},
        figures={name: list(with_interval(one, documents, rng)) for name, one in figures.items()}
        | {"reliability": reliability(y, raw, platt, isotonic)},
        seed=seed,
    )


def reliability(labels: Array, raw: Array, platt: Array, isotonic: Array, n_bins: int = 10) -> dict[str, Any]:
    """Points of the reliability diagram: for each bin of equal width mean p, share supported and rows."""

    def points(p: Array) -> list[list[float]]:
        bins = np.minimum((p * n_bins).astype(int), n_bins - 1)
        return [
            [float(p[bins == b].mean()), float(labels[bins == b].mean()), int((bins == b).sum())]
            for b in range(n_bins)
            if (bins == b).any()
        ]

    return {"raw": points(raw), "platt": points(platt), "isotonic": points(isotonic)}


def _folds(documents: Sequence[str], rng: np.random.Generator) -> NDArray[np.int64]:
    """Fold of each row; a document lies in one fold, and the folds have about as many documents."""
    names, place = np.unique(np.asarray(documents, dtype=object).astype(str), return_inverse=True)
    fold_of = np.arange(len(names)) % min(_N_FOLDS, len(names))
    rng.shuffle(fold_of)
    found: NDArray[np.int64] = fold_of[place]
    return found
