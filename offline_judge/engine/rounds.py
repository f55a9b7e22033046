"""The engine: steps every row and every metric together, one batch per backend and round.

A task is a generator (a metric's `gather`, or the expansion of a large ask) that yields asks and is
sent their answers. Each round every task runs until it waits for a model; then all pending asks,
duplicates removed, are looked up in the store, sorted so that prompts with one prefix are neighbours,
and sent as one batch. Answers go to the store as they come and wake the tasks that wait for them.

The core is synchronous: it works in a script, a thread, a notebook and inside a running event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from offline_judge.backends.protocol import Embedder, Failed, Judge, Verifier
from offline_judge.engine.answering import Answering, Progress
from offline_judge.engine.asks import (
    Ask,
    Choose,
    Claims,
    Gathered,
    Generate,
    Probability,
    Questions,
    Reasons,
    Similar,
    Support,
    Unscored,
    Verify,
)
from offline_judge.engine.cascade import Cascade
from offline_judge.engine.expand import (
    Room,
    claims_from_sentences,
    expand_choose,
    expand_claims,
    expand_questions,
    expand_reasons,
    first_failure,
)
from offline_judge.engine.store import Store
from offline_judge.engine.tasks import Slot, Task
from offline_judge.engine.usage import Usage
from offline_judge.errors import where
from offline_judge.prompts import load

ClaimsFrom: TypeAlias = Literal["judge", "sentences"]

#: What the asks of a row's own task are charged to.
REASONS = "reasons"


class Engine:
    """Answers asks with the models it was given.

    Args:
        judge, embedder: None where there is none; an ask that needs one then fails with
            `needs_judge` or `needs_embedder`.
        verifier: answers `Support`; where it is None the judge does.
        cascade: lets the verifier decide only what it is sure of, and the judge the rest.
        calibrations: by "verifier" and "judge", maps from the probability that a premise supports a
            claim to the calibrated one. The store keeps what the model said.
        store: where answers are kept; a new store in memory if None.
        seed: added to the number of each sample; the same seed gives the same samples.
        claims: "judge" lets the judge split a text into claims, "sentences" takes its sentences.
        progress: told about rounds and answers.
    """

    def __init__(
        self,
        judge: Judge | None = None,
        embedder: Embedder | None = None,
        *,
        verifier: Verifier | None = None,
        cascade: Cascade | None = None,
        calibrations: Mapping[str, Callable[[float], float]] | None = None,
        store: Store | None = None,
        seed: int = 0,
        claims: ClaimsFrom = "judge",
        progress: Progress | None = None,
    ) -> None:
        self.usage = Usage()
        self._models = Answering(
            judge,
            embedder,
            verifier,
            calibrations=calibrations or {},
            store=store or Store(None),
            seed=seed,
            progress=progress,
            usage=self.usage,
        )
        self.judge = judge
        self._embedder = embedder
        self._verifier = verifier
        self._cascade = cascade
        self._claims = claims
        self._room = Room(judge) if judge is not None else None
        self._expansions = dict(_EXPANSIONS)
        if cascade is not None:
            self._expansions[Support] = cascade.expand

    def stop(self) -> None:
        """Let `run` end once what a model is computing is in the store; a signal handler may call it."""
        self._models.stop()

    def run(self, tasks: Iterable[tuple[Generator[Sequence[Ask], list[Any], Any], str]]) -> list[Any]:
        """Run (generator, language) tasks to their end; return what each returned, in order.

        The language ("en" or "ko") is that of the prompts. A task whose ask failed ends as
        `Unscored` with the failure's reason, one that raised as `Unscored` with the reason
        "metric_error:" and the class and line of the error: neither disturbs the others.

        Raises:
            Stopped: after `stop`.
            UserError: where the judge breaks down or the store can't be written. In either case every
                answer that was known is kept.
        """
        results: list[Any] = []
        ready: list[Task] = []
        for position, (generator, language) in enumerate(tasks):
            results.append(None)
            done = partial(results.__setitem__, position)
            ready.append(Task(generator, language, done, REASONS, sees_failures=False))
        ready.reverse()

        memo: dict[tuple[Ask, str], Slot] = {}
        pending: list[Slot] = []
        n_rounds = 0
        while ready or pending:
            while ready:
                self._advance(ready.pop(), memo, pending, ready)
            n_rounds += self._models.answer(pending, ready)
            pending.clear()
        self.usage.rounds = max(self.usage.rounds, n_rounds)
        if self._cascade is not None:
            self.usage.cascade_decided = self._cascade.n_decided
            self.usage.cascade_to_judge = self._cascade.n_sent
        if self._room is not None:
            self._room.forget()
        return results

    def _advance(
        self,
        task: Task,
        memo: dict[tuple[Ask, str], Slot],
        pending: list[Slot],
        ready: list[Task],
    ) -> None:
        """Resume `task` with its answers and register what it asks next."""
        try:
            if task.slots is None:
                asks = next(task.generator)
            else:
                answers = [slot.answer for slot in task.slots]
                failed = None if task.sees_failures else first_failure(answers)
                if failed is not None:
                    task.generator.close()
                    task.done(Unscored(failed.reason))
                    return
                asks = task.generator.send(answers)
        except StopIteration as stop:
            task.done(stop.value)
            return
        except Exception as error:  # noqa: BLE001 - one row's bug must not lose the other rows
            reason = f"metric_error:{where(error)}"
            task.done(Failed(reason) if task.sees_failures else Unscored(reason))
            return

        self.usage.asks += len(asks)
        task.slots = []
        task.n_open = 0
        for ask in asks:
            if type(ask) is Support and self._cascade is None:
                ask = self._who_supports(ask)
            key = (ask, "" if self._ignores_language(ask) else task.language)
            slot = memo.get(key)
            if slot is None:
                slot = memo[key] = Slot(*key, task.charged_to)
                self._open(slot, pending, ready)
            task.slots.append(slot)
            if not slot.known:
                task.n_open += 1
                slot.waiters.append(task)
        if not task.n_open:
            ready.append(task)

    def _who_supports(self, ask: Support) -> Ask:
        """Where there is no verifier, the judge is."""
        if self._verifier is not None:
            return Verify(ask.premise, ask.claim)
        return Choose("support", (ask.premise, ask.claim), windowed="premise")

    def _ignores_language(self, ask: Ask) -> bool:
        return type(ask) is Similar or (
            type(ask) is Verify and self._verifier is not None and not self._verifier.prompted
        )

    def _open(self, slot: Slot, pending: list[Slot], ready: list[Task]) -> None:
        """Answer an ask at once, expand it into a task of its own, or leave it to the next round."""
        ask, room = slot.ask, self._room
        if isinstance(ask, Gathered):
            done = partial(slot.fill, ready=ready)
            ready.append(Task(ask.generator, slot.language, done, ask.charged_to, sees_failures=False))
        elif isinstance(ask, Similar):
            if self._embedder is None:
                slot.fill(Failed("needs_embedder"), ready)
            else:
                pending.append(slot)
        elif isinstance(ask, Verify):
            if not ask.premise.strip():
                slot.fill(Probability(0.0), ready)
            else:
                pending.append(slot)
        elif isinstance(ask, Claims) and (self._claims == "sentences" or room is None):
            slot.fill(claims_from_sentences(ask), ready)
        elif room is None:
            slot.fill(Failed("needs_judge"), ready)
        elif isinstance(ask, Choose) and ask.windowed is not None and _is_blank(ask, slot.language):
            # A blank premise or chunk shows nothing: that needs no judge.
            slot.fill(Probability(0.0), ready)
        elif isinstance(ask, Generate) or (
            isinstance(ask, Choose) and _is_one_call(ask, slot.language, room)
        ):
            pending.append(slot)
        else:
            expansion = self._expansions[type(ask)](ask, slot.language, room)
            done = partial(self._models.fill_calibrated, slot, ready=ready)
            ready.append(Task(expansion, slot.language, done, slot.charged_to, sees_failures=True))


_EXPANSIONS: dict[type, Callable[[Any, str, Room], Generator[Sequence[Ask], list[Any], Any]]] = {
    Choose: expand_choose,
    Claims: expand_claims,
    Questions: expand_questions,
    Reasons: expand_reasons,
}


def _is_one_call(ask: Choose, language: str, room: Room) -> bool:
    if ask.windowed is None:
        return True
    prompt = load(ask.prompt, language)
    return prompt.control is None and room.fits(prompt, ask.values, max_tokens=1)


def _is_blank(ask: Choose, language: str) -> bool:
    return not ask.values[load(ask.prompt, language).fields.index(ask.windowed or "")].strip()
