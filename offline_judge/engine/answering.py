"""One round: everything pending is answered by the store, the judge, the verifier or the embedder."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from offline_judge.backends.gpu_memory import gpu_bytes_in_use
from offline_judge.backends.protocol import (
    Answer,
    Call,
    ChooseCall,
    Embedder,
    Failed,
    GenerateCall,
    Judge,
    Stoppable,
    SupportCall,
    Supported,
    Verifier,
)
from offline_judge.engine.asks import Choose, Generate, Probability, Similar, Verify
from offline_judge.engine.records import decode, encode
from offline_judge.engine.store import Store, key_of
from offline_judge.engine.tasks import Slot, Task
from offline_judge.engine.usage import Usage
from offline_judge.errors import Stopped, UserError, where
from offline_judge.prompts import load


class Progress(Protocol):
    """Where the engine reports to; it never passes row text."""

    def round(self, n_asks: int) -> None:
        """A round begins with `n_asks` asks for the models."""
        ...

    def answered(self, n_asks: int, n_tokens: int) -> None:
        """So many asks were answered with so many tokens (prompt and output)."""
        ...


class Answering:
    """The store and the models, and what one round of asks does with them.

    Args: as of `Engine`; `usage` is counted up.
    """

    def __init__(
        self,
        judge: Judge | None,
        embedder: Embedder | None,
        verifier: Verifier | None,
        *,
        calibrations: Mapping[str, Callable[[float], float]],
        store: Store,
        seed: int,
        progress: Progress | None,
        usage: Usage,
    ) -> None:
        self.judge = judge
        self.embedder = embedder
        self.verifier = verifier
        self.calibrations = calibrations
        self.store = store
        self.seed = seed
        self.progress = progress
        self.usage = usage
        self._stopping = False

    def stop(self) -> None:
        """Let `answer` end once what a model is computing is in the store."""
        self._stopping = True
        for model in (self.judge, self.verifier):
            if isinstance(model, Stoppable):
                model.stop()

    def answer(self, pending: list[Slot], ready: list[Task]) -> bool:
        """Answer everything pending; return whether the judge was asked."""
        self._check_stop()
        keys = [self._key(slot) for slot in pending]
        known = self.store.get(keys)
        similar: list[tuple[Slot, bytes]] = []
        asked: list[tuple[Slot, bytes]] = []
        verify: list[tuple[Slot, bytes]] = []
        for slot, key in zip(pending, keys, strict=True):
            record = known.get(key)
            if record is not None:
                self.usage.from_store += 1
                self.usage.cost_of(slot.charged_to).from_store += 1
                self.fill_calibrated(slot, decode(slot.ask, record), ready)
            else:
                kind = type(slot.ask)
                (similar if kind is Similar else verify if kind is Verify else asked).append((slot, key))
        if self.progress is not None:
            self.progress.round(len(similar) + len(verify) + len(asked))
        try:
            self._ask_verifier(verify, ready)
            self._ask_judge(asked, ready)
            self._ask_embedder(similar, ready)
        finally:
            self.store.flush()
        in_use = gpu_bytes_in_use()
        if in_use is not None:
            self.usage.peak_gpu_bytes = max(self.usage.peak_gpu_bytes or 0, in_use)
        return bool(asked)

    def _key(self, slot: Slot) -> bytes:
        """Hash everything that could change the answer."""
        ask = slot.ask
        if isinstance(ask, Similar):
            assert self.embedder is not None
            return key_of("similar", self.embedder.fingerprint, ask.a, ask.b)
        if isinstance(ask, Verify):
            assert self.verifier is not None
            return key_of("support", self.verifier.fingerprint, slot.language, ask.premise, ask.claim)
        assert self.judge is not None
        assert isinstance(ask, Choose | Generate)
        prompt = load(ask.prompt, slot.language)
        about = (self.judge.fingerprint, prompt.id, str(prompt.version), prompt.digest, *ask.values)
        if isinstance(ask, Choose):
            return key_of("choose", *about)
        seed = ask.sample + self.seed if ask.temperature else 0
        return key_of("generate", ask.schema, f"{ask.max_tokens} {ask.temperature} {seed}", *about)

    def _ask_judge(self, asked: list[tuple[Slot, bytes]], ready: list[Task]) -> None:
        if not asked or self.judge is None:
            return
        # What takes longest comes first. Neighbours share a prefix: the same prompt, then its fields in
        # the template's order.
        asked.sort(key=_prefix_order)
        self._check_stop()
        calls = [_call(slot, self.seed) for slot, _ in asked]
        origin = self.store.origin(self.judge.name, self.judge.fingerprint)
        computed: Counter[str] = Counter()
        started = time.perf_counter()
        try:
            for position, answer in _unbroken("judge", self.judge.name, self.judge.answer(calls)):
                slot, key = asked[position]
                computed[slot.charged_to] += _n_computed(answer)
                self._keep(slot, key, answer, origin, ready)
                self._count(calls[position], slot, answer)
                if self._stopping and not _ends_early(self.judge):
                    break
        finally:
            self.usage.charge_judge(time.perf_counter() - started, computed)
        self._check_stop()

    def _keep(
        self, slot: Slot, key: bytes, answer: Answer | Supported, origin: int, ready: list[Task]
    ) -> None:
        """Put an answer into the store and give it to the tasks that wait for it."""
        record = encode(answer)
        if record is None:
            slot.fill(answer, ready)
        else:
            self.store.put(key, record, origin)
            self.fill_calibrated(slot, decode(slot.ask, record), ready)

    def _check_stop(self) -> None:
        if self._stopping:
            raise Stopped

    def _count(self, call: Call, slot: Slot, answer: Answer) -> None:
        usage, name = self.usage, slot.ask.prompt  # type: ignore[union-attr]
        cost = usage.cost_of(slot.charged_to)
        usage.calls += 1
        cost.calls += 1
        usage.generated += isinstance(call, GenerateCall)
        usage.failed += isinstance(slot.answer, Failed)
        usage.calls_by_prompt[name] = usage.calls_by_prompt.get(name, 0) + 1
        n_tokens = 0
        if not isinstance(answer, Failed):
            for total in (usage, cost):
                total.prompt_tokens += answer.tokens.prompt
                total.cached_tokens += answer.tokens.cached
                total.output_tokens += answer.tokens.output
            n_tokens = answer.tokens.prompt + answer.tokens.output
        if self.progress is not None:
            self.progress.answered(1, n_tokens)

    def _ask_verifier(self, asked: list[tuple[Slot, bytes]], ready: list[Task]) -> None:
        """Send all pairs of the round at once; the verifier orders them as suits it."""
        if not asked or self.verifier is None:
            return
        self._check_stop()
        started = time.perf_counter()
        origin = self.store.origin(self.verifier.name, self.verifier.fingerprint)
        calls = [SupportCall(slot.ask.premise, slot.ask.claim, slot.language or "en") for slot, _ in asked]  # type: ignore[union-attr]
        for position, answer in _unbroken("verifier", self.verifier.name, self.verifier.verify(calls)):
            slot, key = asked[position]
            self._keep(slot, key, answer, origin, ready)
            self.usage.failed += isinstance(answer, Failed)
            n_tokens = answer.n_tokens if isinstance(answer, Supported) else 0
            self.usage.verified += 1
            self.usage.verified_tokens += n_tokens
            if self.progress is not None:
                self.progress.answered(1, n_tokens)
            if self._stopping and not _ends_early(self.verifier):
                break
        self.usage.verifier_s += time.perf_counter() - started
        self._check_stop()

    def fill_calibrated(self, slot: Slot, answer: Any, ready: list[Task]) -> None:
        """Fill `slot` with what its model says, calibrated where there is a calibration.

        A judge's `support` is calibrated once its windows and its control have been read: one calibrates
        what a run would use.
        """
        ask, calibrate = slot.ask, None
        if isinstance(ask, Verify):
            calibrate = self.calibrations.get("verifier")
        elif isinstance(ask, Choose) and ask.prompt == "support" and ask.windowed is not None:
            calibrate = self.calibrations.get("judge")
        if calibrate is not None and isinstance(answer, Probability):
            answer = Probability.read(calibrate(answer), answer.window, answer.excess)
        slot.fill(answer, ready)

    def _ask_embedder(self, asked: list[tuple[Slot, bytes]], ready: list[Task]) -> None:
        """Embed each distinct text once and take all cosines in one operation; in a large round, in a few."""
        if not asked or self.embedder is None:
            return
        from offline_judge.numeric import cosine

        started = time.perf_counter()
        origin = self.store.origin(self.embedder.name, self.embedder.fingerprint)
        blocks = [asked[start : start + _EMBEDDED_PAIRS] for start in range(0, len(asked), _EMBEDDED_PAIRS)]
        n_failed = 0
        while blocks:
            self._check_stop()
            block = blocks.pop()
            pairs = [(slot.ask.a, slot.ask.b) for slot, _ in block]  # type: ignore[union-attr]
            texts = list(dict.fromkeys(text for pair in pairs for text in pair))
            try:
                vectors = self.embedder.embed(texts)
            except UserError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, what does not need it can be scored
                n_failed += 1
                middle = len(block) // 2
                if middle and n_failed <= _EMBEDDER_FAILURES:
                    blocks += [block[middle:], block[:middle]]
                    continue
                failed = _embedder_failure(error)
                for slot, _ in block:
                    slot.fill(failed, ready)
                self.usage.failed += len(block)
            else:
                place = {text: index for index, text in enumerate(texts)}
                left, right = ([place[pair[side]] for pair in pairs] for side in (0, 1))
                cosines = cosine(vectors[left], vectors[right]).tolist()
                for (slot, key), value in zip(block, cosines, strict=True):
                    record = {"cosine": None if math.isnan(value) else value}
                    self.store.put(key, record, origin)
                    slot.fill(decode(slot.ask, record), ready)
                self.usage.embedded += len(texts)
            if self.progress is not None:
                self.progress.answered(len(block), 0)
        self.usage.embedder_s += time.perf_counter() - started


#: Pairs of texts that are embedded in one go: as much is lost when the run is killed.
_EMBEDDED_PAIRS = 2048
#: An embedder that fails is given half as much, until the text is found that it can't take, or so often.
_EMBEDDER_FAILURES = 24


def _prefix_order(item: tuple[Slot, bytes]) -> tuple[bool, str, str, tuple[str, ...]]:
    ask = item[0].ask
    assert isinstance(ask, Choose | Generate)
    return isinstance(ask, Choose), ask.prompt, item[0].language, ask.values


_Answer = TypeVar("_Answer")


def _unbroken(role: str, name: str, answers: Iterator[tuple[int, _Answer]]) -> Iterator[tuple[int, _Answer]]:
    """Pass on a model's answers; where it breaks down, say so in one message that quotes nothing."""
    try:
        yield from answers
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, its message may quote a prompt
        raise UserError(
            f"the {role} {name!r} broke down",
            {
                "found": where(error),
                "kept": "every answer that was known before",
                "to fix": "give the same command again: it goes on where it stopped",
            },
        ) from None  # a traceback would show the error's message, which may quote a prompt


def _n_computed(answer: Answer) -> int:
    """Tokens that the judge had to compute: those of the prompt that were not cached, and the output."""
    if isinstance(answer, Failed):
        return 1
    return max(1, answer.tokens.prompt - answer.tokens.cached + answer.tokens.output)


def _ends_early(model: Judge | Verifier) -> bool:
    """Tell a model to stop, if it can: the first time may have come before its batch began."""
    if not isinstance(model, Stoppable):
        return False
    model.stop()
    return True


def _embedder_failure(error: Exception) -> Failed:
    from offline_judge.backends.batching import is_out_of_memory

    return Failed("embedder_out_of_memory" if is_out_of_memory(error) else "embedder_error", where(error))


def _call(slot: Slot, seed: int) -> Call:
    ask = slot.ask
    assert isinstance(ask, Choose | Generate)
    prompt = load(ask.prompt, slot.language)
    messages = prompt.messages(dict(zip(prompt.fields, ask.values, strict=True)))
    if isinstance(ask, Choose):
        return ChooseCall(messages, prompt.options)
    return GenerateCall(messages, ask.schema, ask.max_tokens, ask.temperature, seed + ask.sample)
