"""Scores from verdicts: pure torch over whole batches, float64, any device.

Every verdict that comes in is a number in [0, 1]. One formula serves both scores: verdicts of 0
and 1 give the hard score, probabilities the soft one (`logic` says how `any`, `all` and `not`
read on probabilities). Inputs may be bool, integer or any float type; they are never changed.
Results are float64, on the device of the inputs. NaN means undefined; there is no epsilon.
"""

from __future__ import annotations

from offline_judge.numeric.cosine import Rule, cosine, response_relevancy
from offline_judge.numeric.noise import Mode, noise_sensitivity
from offline_judge.numeric.padding import Padded, pad
from offline_judge.numeric.ranking import average_precision, precision_at_k
from offline_judge.numeric.rates import f_beta, f_beta_from_counts, masked_mean, masked_sum, precision_recall

__all__ = [
    "Mode",
    "Padded",
    "Rule",
    "average_precision",
    "cosine",
    "f_beta",
    "f_beta_from_counts",
    "masked_mean",
    "masked_sum",
    "noise_sensitivity",
    "pad",
    "precision_at_k",
    "precision_recall",
    "response_relevancy",
]
