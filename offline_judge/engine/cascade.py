"""The cascade: a cheap verifier decides what it is sure of, the judge the rest."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from offline_judge.backends.protocol import Failed
from offline_judge.engine.asks import Choose, Support, Verify


@dataclass
class Cascade:
    """Sends a claim to the judge where the first stage's probability lies between two thresholds.

    A first stage that fails (a claim too long for it) leaves the claim to the judge.

    Attributes:
        low, high: the first stage decides at or below `low` and at or above `high`;
            0 <= low <= 0.5 <= high <= 1.
        n_decided, n_sent: distinct claims that the first stage decided, and that went to the judge.
    """

    low: float = 0.1
    high: float = 0.9
    n_decided: int = 0
    n_sent: int = 0

    def expand(self, ask: Support, language: str, room: object) -> Generator[Sequence[Any], list[Any], Any]:
        """Ask the first stage, and the judge where it is not sure."""
        (first,) = yield [Verify(ask.premise, ask.claim)]
        if not isinstance(first, Failed) and not self.low < first < self.high:
            self.n_decided += 1
            return first
        self.n_sent += 1
        (second,) = yield [Choose("support", (ask.premise, ask.claim), windowed="premise")]
        return second
