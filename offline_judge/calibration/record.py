"""A calibration as it lies on disk: JSON beside the shelf, found by the hash of the model that it is of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from offline_judge.calibration.fit import Line
from offline_judge.errors import UserError
from offline_judge.prompts import LANGUAGES, load
from offline_judge.shelf import Shelf

FORMAT = 1

Kind: TypeAlias = Literal["judge", "encoder"]


def calibration_key(kind: Kind, fingerprint: str) -> str:
    """Hash what a calibration is of: the model's files, and for a judge its prompts of support too."""
    prompts = [load("support", language).digest for language in LANGUAGES] if kind == "judge" else []
    return hashlib.sha256(json.dumps([kind, fingerprint, *prompts]).encode()).hexdigest()


@dataclass(frozen=True)
class Calibration:
    """What was found on N labelled claims.

    Attributes:
        model, kind, key: whose probabilities these are; `key` is `calibration_key`.
        labels: name, sha256 and number of rows of the labels' file, and how many are supported.
        threshold: of the raw probability, with the best balanced accuracy.
        applied: what `evaluate` does to each probability, sigmoid(slope * logit(p) + intercept):
            `threshold` becomes 0.5.
        platt, isotonic: the two curves, fitted to all rows.
        cascade: thresholds of the calibrated probability, what they send and how right the rest is.
        figures: by name (value, low, high). Those that hang on a threshold or a curve are out of fold:
            each row was scored by what the other folds gave.
        seed: of folds and resamples.
    """

    model: str
    kind: Kind
    key: str
    labels: Mapping[str, Any]
    threshold: float
    applied: Mapping[str, float]
    platt: Mapping[str, float]
    isotonic: Mapping[str, Any]
    cascade: Mapping[str, float]
    figures: Mapping[str, Any]
    seed: int = 0
    format: int = field(default=FORMAT)

    def __call__(self, p: float) -> float:
        """Calibrate one probability."""
        line = Line(self.applied["slope"], self.applied["intercept"])
        return float(line(np.array([p]))[0])

    def summary(self) -> dict[str, Any]:
        """Return what the run record keeps."""
        return {
            "model": self.model,
            "key": self.key,
            "labels": dict(self.labels),
            "threshold": self.threshold,
            "applied": dict(self.applied),
        }

    def save(self, folder: Path) -> Path:
        """Write `<model>-<key>.json` and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{_file_name(self.model)}-{self.key[:12]}.json"
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Read a calibration.

        Raises:
            UserError: where the file is missing, damaged or of another format.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = cls(**content)
            slope, at = found.applied["slope"], found.applied["intercept"]
        except OSError as error:
            raise UserError(
                f"can't read {path}", {"found": error.strerror or type(error).__name__}
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path} is no calibration", {"to fix": "offline-judge calibrate"}) from error
        if found.format != FORMAT or not np.isfinite([slope, at]).all() or not slope > 0:
            raise UserError(
                f"the calibration {path} can't be used",
                {"found": f"format {found.format}, slope {slope}", "to fix": "offline-judge calibrate"},
            )
        return found


def calibrations_folder(shelf: Shelf | None = None) -> Path:
    """Return the folder of calibrations beside the models of the shelf."""
    return (shelf or Shelf()).root / "calibrations"


def find_calibration(setting: str, kind: Kind, fingerprint: str) -> Calibration | None:
    """Find what `evaluate` should use.

    Args:
        setting: "auto" takes the one beside the shelf that is of this very model; "none" takes none;
            otherwise the path of one.
        kind: of the model.
        fingerprint: hash of the model's files.

    Raises:
        UserError: where a named calibration is of another model or other prompts, or can't be read.
    """
    key = calibration_key(kind, fingerprint)
    if setting == "none":
        return None
    if setting == "auto":
        folder = calibrations_folder()
        paths = sorted(folder.glob(f"*-{key[:12]}.json")) if folder.is_dir() else []
        return next((found for path in paths if (found := Calibration.read(path)).key == key), None)
    found = Calibration.read(Path(setting))
    if found.key == key:
        return found
    if found.kind != kind:  # of the other stage of a cascade
        return None
    raise UserError(
        f"the calibration {setting} is of another model",
        {
            "it is of": f"{found.kind} {found.model}",
            "to fix": "offline-judge calibrate for this model; a judge's prompts are part of it",
        },
    )


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
