"""Calibration of a verifier's probabilities on one's own labelled claims."""

from offline_judge.calibration.calibrate import calibrate
from offline_judge.calibration.labels import LabelledClaim, read_labels
from offline_judge.calibration.record import Calibration, calibration_key, find_calibration

__all__ = [
    "Calibration",
    "LabelledClaim",
    "calibrate",
    "calibration_key",
    "find_calibration",
    "read_labels",
]
