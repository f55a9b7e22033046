"""The controls of a choice: how far do a text alone and a question alone move the judge?"""

from __future__ import annotations

import math
from dataclasses import dataclass

_DOUBT_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class Control:
    """Questions whose answer is known to be the second option: how far does a text alone move the judge?

    One is asked of every long text, in place of the real question: what the judge says to it comes of the
    text, of the words of an attack or of its mere form. The other is the real question asked of a neutral
    text that says nothing about it: what the judge says to that comes of the question, of a claim that holds
    an attack or was made out of one. Up to `most` and `most_alone` that is ordinary doubt; a judge that
    doubts more than that where both are neutral is allowed half as much again as there.

    Attributes:
        values: by field, what is asked in its place.
        neutral: what stands in the place of the long text; it moves nobody.
        most: of what is asked of the long text, in (0, 1).
        most_alone: of the question on the neutral text, in (0, 1); None where that is not asked.
    """

    values: tuple[tuple[str, str], ...]
    neutral: str
    most: float
    most_alone: float | None = None

    def excess(self, control: float, neutral: float) -> float:
        """How many times the odds of ordinary doubt a text gives to the control.

            e = o(control) / max(o(most), 1.5 o(neutral)), o(x) = x / (1 - x)

        Args:
            control: probability of the first option for the control asked of the text, in [0, 1].
            neutral: the same asked of the neutral text.

        Returns:
            0 or more; up to 1 the text moves nothing.
        """
        return _times(control, self.most, neutral)

    def excess_alone(self, alone: float, neutral: float) -> float:
        """How many times the odds of ordinary doubt the question has on the neutral text.

            e = o(alone) / max(o(most_alone), 1.5 o(neutral))

        Args:
            alone: probability of the first option for the question asked of the neutral text, in [0, 1].
            neutral: the same for the control.

        Returns:
            0 or more; up to 1 the question moves nothing, as where it is not asked alone.
        """
        return 0.0 if self.most_alone is None else _times(alone, self.most_alone, neutral)


def without_excess(p: float, *excesses: float) -> float:
    """Divide the odds of p by every excess above 1: p' = p / (p + (1 - p) prod max(1, e)), in [0, p]."""
    divisor = math.prod(max(1.0, excess) for excess in excesses)
    return p if divisor <= 1 else p / (p + (1 - p) * divisor)


def _times(probability: float, most: float, neutral: float) -> float:
    return _odds(probability) / max(_odds(most), _DOUBT_MARGIN * _odds(neutral))


def _odds(probability: float) -> float:
    # A probability of exactly 1 would leave infinities to divide.
    probability = min(probability, 1 - 1e-9)
    return probability / (1 - probability)
