"""The control of a choice: how far does a text alone move the judge?"""

from __future__ import annotations

from dataclasses import dataclass

_DOUBT_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class Control:
    """A question of a choice whose answer is known to be the second option, whatever the long text says.

    Its probability of the first option shows how far a text alone moves the judge: by the words of an attack,
    or by its mere form. Up to `most` that is ordinary doubt; a judge that doubts more than that of `neutral`,
    a text that moves nobody, is allowed half as much again as there.

    Attributes:
        values: by field, what is asked in its place.
        neutral: what stands in the place of the long text.
        most: in (0, 1).
    """

    values: tuple[tuple[str, str], ...]
    neutral: str
    most: float

    def excess(self, control: float, neutral: float) -> float:
        """How many times the odds of ordinary doubt a text gives to the control.

            e = o(control) / max(o(most), 1.5 o(neutral)), o(x) = x / (1 - x)

        Args:
            control: probability of the first option for the control asked of the text, in [0, 1].
            neutral: the same asked of the neutral text.

        Returns:
            0 or more; up to 1 the text moves nothing.
        """
        return _odds(control) / max(_odds(self.most), _DOUBT_MARGIN * _odds(neutral))


def without_excess(p: float, excess: float) -> float:
    """Divide the odds of a probability by an excess above 1: p' = p / (p + (1 - p) max(1, e)), in [0, p]."""
    return p if excess <= 1 else p / (p + (1 - p) * excess)


def _odds(probability: float) -> float:
    # A probability of exactly 1 would leave infinities to divide.
    probability = min(probability, 1 - 1e-9)
    return probability / (1 - probability)
