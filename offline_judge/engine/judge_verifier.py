"""A judge in the verifier's place: P("Yes") over P("No") at one token, for the first stage of a cascade."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

from offline_judge.backends.model_folder import combine_fingerprint
from offline_judge.backends.protocol import Failed, Judge, SupportCall, Supported
from offline_judge.engine.asks import Ask, Support, Unscored
from offline_judge.engine.rounds import Engine
from offline_judge.prompts import LANGUAGES, load

#: Calls that are stepped together: answers come after each such batch, and as much is lost by a kill.
_BATCH_CALLS = 64


class JudgeVerifier:
    """Asks a judge's own probability for each pair, windows of long premises included.

    `fingerprint` is made of the judge's and of the prompts.
    """

    prompted = True

    def __init__(self, judge: Judge) -> None:
        self.name = judge.name
        self._judge = judge
        self._stopping = False
        prompts = {language: load("support", language).digest for language in LANGUAGES}
        self.fingerprint = combine_fingerprint(judge.fingerprint, {"support": prompts})

    def verify(self, calls: Sequence[SupportCall]) -> Iterator[tuple[int, Supported | Failed]]:
        """Yield (position, answer) for every call, neighbours in premise together."""
        self._stopping = False
        order = sorted(range(len(calls)), key=lambda position: (calls[position].premise, position))
        for start in range(0, len(order), _BATCH_CALLS):
            if self._stopping:
                return
            batch = order[start : start + _BATCH_CALLS]
            engine = Engine(self._judge)
            answers = engine.run((_ask(calls[position]), calls[position].language) for position in batch)
            n_tokens, n_more = divmod(engine.usage.prompt_tokens, len(batch))
            for place, (position, answer) in enumerate(zip(batch, answers, strict=True)):
                if isinstance(answer, Unscored):
                    yield position, Failed(answer.reason)
                else:
                    used = n_tokens + (place < n_more)
                    yield position, Supported(float(answer), answer.window, used, answer.excess)

    def stop(self) -> None:
        """Let `verify` end after the calls that are stepped together."""
        self._stopping = True

    def describe(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return self._judge.describe()

    def close(self) -> None:
        """Free the judge's memory."""
        self._judge.close()


def _ask(call: SupportCall) -> Generator[Sequence[Ask], list[Any], Any]:
    (answer,) = yield [Support(call.premise, call.claim)]
    return answer
