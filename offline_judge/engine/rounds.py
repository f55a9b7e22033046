"""The engine: steps every row and every metric together, one batch per backend and round.

A task is a generator (a metric's `gather`, or the expansion of a large ask) that yields asks and is
sent their answers. Each round every task runs until it waits for a model; then all pending asks,
duplicates removed, are looked up in the store, sorted so that prompts with one prefix are neighbours,
and sent as one batch. Answers go to the store as they come and wake the tasks that wait for them.

The core is synchronous: it works in a script, a thread, a notebook and inside a running event loop.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import jsonschema

from offline_judge.backends.chat import THINK_CLOSE
from offline_judge.backends.gpu_memory import gpu_bytes_in_use
from offline_judge.backends.protocol import (
    Answer,
    Call,
    ChooseCall,
    Chosen,
    Embedder,
    Failed,
    GenerateCall,
    Generated,
    Judge,
    Stoppable,
    SupportCall,
    Supported,
    Verifier,
)
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
    CUT,
    Room,
    claims_from_sentences,
    expand_choose,
    expand_claims,
    expand_questions,
    expand_reasons,
    first_failure,
)
from offline_judge.engine.store import Store, key_of
from offline_judge.errors import Stopped, UserError, where
from offline_judge.prompts import load

ClaimsFrom: TypeAlias = Literal["judge", "sentences"]

#: What the asks of a row's own task are charged to.
REASONS = "reasons"


class Progress(Protocol):
    """Where the engine reports to; it never passes row text."""

    def round(self, n_asks: int) -> None:
        """A round begins with `n_asks` asks for the models."""
        ...

    def answered(self, n_asks: int, n_tokens: int) -> None:
        """So many asks were answered with so many tokens (prompt and output)."""
        ...


@dataclass(slots=True)
class Cost:
    """What the asks of one metric cost.

    An ask that several metrics share is charged to the first that asked it. The judge answers the asks of
    all metrics together, so `judge_s` is each round's time shared out by the tokens that were computed
    (prompt without cached ones, and output): the metrics' sum is the run's.
    """

    calls: int = 0
    from_store: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    judge_s: float = 0.0


@dataclass
class Usage:
    """What a run cost. Every count is of this process: an answer from the store costs no tokens."""

    asks: int = 0
    calls: int = 0
    generated: int = 0
    from_store: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    #: Pairs that the verifier computed, the tokens of all their windows, and the claims of a cascade that
    #: its first stage decided or that went to the judge.
    verified: int = 0
    verified_tokens: int = 0
    cascade_decided: int = 0
    cascade_to_judge: int = 0
    embedded: int = 0
    judge_s: float = 0.0
    verifier_s: float = 0.0
    embedder_s: float = 0.0
    #: Rounds that sent something to the judge, of the deepest window of rows.
    rounds: int = 0
    calls_by_prompt: dict[str, int] = field(default_factory=dict)
    #: By metric; "reasons" is what the written reasons cost.
    by_metric: dict[str, Cost] = field(default_factory=dict)
    #: Largest memory in use on the GPU, of all processes, seen at the end of a round; None without a GPU.
    peak_gpu_bytes: int | None = None

    def cost_of(self, label: str) -> Cost:
        """What is charged to a metric so far."""
        cost = self.by_metric.get(label)
        if cost is None:
            cost = self.by_metric[label] = Cost()
        return cost

    def charge_judge(self, seconds: float, computed: Mapping[str, int]) -> None:
        """Add a round's seconds in the judge, shared out by the tokens computed for each metric."""
        self.judge_s += seconds
        total = sum(computed.values())
        for label, n_tokens in computed.items():
            self.cost_of(label).judge_s += seconds * n_tokens / total


class _Slot:
    """One question and, once known, its answer; `waiters` are the tasks to wake."""

    __slots__ = ("answer", "ask", "charged_to", "known", "language", "waiters")

    def __init__(self, ask: Ask, language: str, charged_to: str) -> None:
        self.ask = ask
        self.language = language
        self.charged_to = charged_to
        self.known = False
        self.answer: Any = None
        self.waiters: list[_Task] = []


class _Task:
    """A generator with what it waits for. `done` is called once with what it returned."""

    __slots__ = ("charged_to", "done", "generator", "language", "n_open", "sees_failures", "slots")

    def __init__(
        self,
        generator: Generator[Sequence[Ask], list[Any], Any],
        language: str,
        done: Callable[[Any], None],
        charged_to: str,
        *,
        sees_failures: bool,
    ) -> None:
        self.generator = generator
        self.language = language
        self.charged_to = charged_to
        self.done = done
        self.sees_failures = sees_failures
        self.slots: list[_Slot] | None = None
        self.n_open = 0


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
        self.judge = judge
        self.embedder = embedder
        self.verifier = verifier
        self.cascade = cascade
        self.calibrations = dict(calibrations or {})
        self.store = store or Store(None)
        self.seed = seed
        self.claims = claims
        self.progress = progress
        self.usage = Usage()
        self._room = Room(judge) if judge is not None else None
        self._expansions = dict(_EXPANSIONS)
        if cascade is not None:
            self._expansions[Support] = cascade.expand
        self._stopping = False

    def stop(self) -> None:
        """Let `run` end once what a model is computing is in the store; a signal handler may call it."""
        self._stopping = True
        for model in (self.judge, self.verifier):
            if isinstance(model, Stoppable):
                model.stop()

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
        ready: list[_Task] = []
        for position, (generator, language) in enumerate(tasks):
            results.append(None)
            done = partial(results.__setitem__, position)
            ready.append(_Task(generator, language, done, REASONS, sees_failures=False))
        ready.reverse()

        memo: dict[tuple[Ask, str], _Slot] = {}
        pending: list[_Slot] = []
        n_rounds = 0
        while ready or pending:
            while ready:
                self._advance(ready.pop(), memo, pending, ready)
            n_rounds += self._round(pending, ready)
            pending.clear()
        self.usage.rounds = max(self.usage.rounds, n_rounds)
        if self.cascade is not None:
            self.usage.cascade_decided = self.cascade.n_decided
            self.usage.cascade_to_judge = self.cascade.n_sent
        if self._room is not None:
            self._room.forget()
        return results

    # A task runs ------------------------------------------------------------------------------

    def _advance(
        self,
        task: _Task,
        memo: dict[tuple[Ask, str], _Slot],
        pending: list[_Slot],
        ready: list[_Task],
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
            if type(ask) is Support and self.cascade is None:
                ask = self._who_supports(ask)
            key = (ask, "" if self._ignores_language(ask) else task.language)
            slot = memo.get(key)
            if slot is None:
                slot = memo[key] = _Slot(*key, task.charged_to)
                self._open(slot, pending, ready)
            task.slots.append(slot)
            if not slot.known:
                task.n_open += 1
                slot.waiters.append(task)
        if not task.n_open:
            ready.append(task)

    def _who_supports(self, ask: Support) -> Ask:
        """Where there is no verifier, the judge is."""
        if self.verifier is not None:
            return Verify(ask.premise, ask.claim)
        return Choose("support", (ask.premise, ask.claim), windowed="premise")

    def _ignores_language(self, ask: Ask) -> bool:
        return type(ask) is Similar or (
            type(ask) is Verify and self.verifier is not None and not self.verifier.prompted
        )

    def _open(self, slot: _Slot, pending: list[_Slot], ready: list[_Task]) -> None:
        """Answer an ask at once, expand it into a task of its own, or leave it to the next round."""
        ask, room = slot.ask, self._room
        if isinstance(ask, Gathered):
            done = partial(_fill, slot, ready=ready)
            ready.append(_Task(ask.generator, slot.language, done, ask.charged_to, sees_failures=False))
        elif isinstance(ask, Similar):
            if self.embedder is None:
                _fill(slot, Failed("needs_embedder"), ready)
            else:
                pending.append(slot)
        elif isinstance(ask, Verify):
            if not ask.premise.strip():
                _fill(slot, Probability(0.0), ready)
            else:
                pending.append(slot)
        elif isinstance(ask, Claims) and (self.claims == "sentences" or room is None):
            _fill(slot, claims_from_sentences(ask), ready)
        elif room is None:
            _fill(slot, Failed("needs_judge"), ready)
        elif isinstance(ask, Choose) and ask.windowed is not None and _is_blank(ask, slot.language):
            # A blank premise or chunk shows nothing: that needs no judge.
            _fill(slot, Probability(0.0), ready)
        elif isinstance(ask, Generate) or (isinstance(ask, Choose) and _fits(ask, slot.language, room)):
            pending.append(slot)
        else:
            expansion = self._expansions[type(ask)](ask, slot.language, room)
            done = partial(_fill, slot, ready=ready)
            ready.append(_Task(expansion, slot.language, done, slot.charged_to, sees_failures=True))

    # A round ----------------------------------------------------------------------------------

    def _round(self, pending: list[_Slot], ready: list[_Task]) -> bool:
        """Answer everything pending; return whether the judge was asked."""
        self._check_stop()
        keys = [self._key(slot) for slot in pending]
        known = self.store.get(keys)
        similar: list[tuple[_Slot, bytes]] = []
        asked: list[tuple[_Slot, bytes]] = []
        verify: list[tuple[_Slot, bytes]] = []
        for slot, key in zip(pending, keys, strict=True):
            record = known.get(key)
            if record is not None:
                self.usage.from_store += 1
                self.usage.cost_of(slot.charged_to).from_store += 1
                _fill(slot, self._decode(slot.ask, record), ready)
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

    def _key(self, slot: _Slot) -> bytes:
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

    def _ask_judge(self, asked: list[tuple[_Slot, bytes]], ready: list[_Task]) -> None:
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
        self, slot: _Slot, key: bytes, answer: Answer | Supported, origin: int, ready: list[_Task]
    ) -> None:
        """Put an answer into the store and give it to the tasks that wait for it."""
        record = _encode(answer)
        if record is None:
            _fill(slot, answer, ready)
        else:
            self.store.put(key, record, origin)
            _fill(slot, self._decode(slot.ask, record), ready)

    def _check_stop(self) -> None:
        if self._stopping:
            raise Stopped

    def _count(self, call: Call, slot: _Slot, answer: Answer) -> None:
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

    def _ask_verifier(self, asked: list[tuple[_Slot, bytes]], ready: list[_Task]) -> None:
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

    def _decode(self, ask: Ask, record: dict[str, Any]) -> Any:
        """Return the answer that a stored record gives to `ask`, calibrated where there is a calibration."""
        answer = _decode(ask, record)
        if isinstance(ask, Verify):
            calibrate = self.calibrations.get("verifier")
        elif isinstance(ask, Choose) and ask.prompt == "support":
            calibrate = self.calibrations.get("judge")
        else:
            return answer
        return Probability.within(calibrate(answer), answer.window) if calibrate else answer

    def _ask_embedder(self, asked: list[tuple[_Slot, bytes]], ready: list[_Task]) -> None:
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
                    _fill(slot, failed, ready)
                self.usage.failed += len(block)
            else:
                place = {text: index for index, text in enumerate(texts)}
                left, right = ([place[pair[side]] for pair in pairs] for side in (0, 1))
                cosines = cosine(vectors[left], vectors[right]).tolist()
                for (slot, key), value in zip(block, cosines, strict=True):
                    record = {"cosine": None if math.isnan(value) else value}
                    self.store.put(key, record, origin)
                    _fill(slot, _decode(slot.ask, record), ready)
                self.usage.embedded += len(texts)
            if self.progress is not None:
                self.progress.answered(len(block), 0)
        self.usage.embedder_s += time.perf_counter() - started


#: Pairs of texts that are embedded in one go: as much is lost when the run is killed.
_EMBEDDED_PAIRS = 2048
#: An embedder that fails is given half as much, until the text is found that it can't take, or so often.
_EMBEDDER_FAILURES = 24

#: Half of a \\uXXXX pair in JSON text: half a character, which no tokenizer or file can take.
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][\da-fA-F]{2})\\u[dD][c-fC-F][\da-fA-F]{2}"
)

_EXPANSIONS: dict[type, Callable[[Any, str, Room], Generator[Sequence[Ask], list[Any], Any]]] = {
    Choose: expand_choose,
    Claims: expand_claims,
    Questions: expand_questions,
    Reasons: expand_reasons,
}


def _prefix_order(item: tuple[_Slot, bytes]) -> tuple[bool, str, str, tuple[str, ...]]:
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


def _fits(ask: Choose, language: str, room: Room) -> bool:
    return ask.windowed is None or room.fits(load(ask.prompt, language), ask.values, max_tokens=1)


def _is_blank(ask: Choose, language: str) -> bool:
    return not ask.values[load(ask.prompt, language).fields.index(ask.windowed or "")].strip()


def _fill(slot: _Slot, answer: Any, ready: list[_Task]) -> None:
    """Give a question its answer and wake the tasks that waited for nothing else."""
    slot.answer = answer
    slot.known = True
    for task in slot.waiters:
        task.n_open -= 1
        if not task.n_open:
            ready.append(task)
    slot.waiters.clear()


def _call(slot: _Slot, seed: int) -> Call:
    ask = slot.ask
    assert isinstance(ask, Choose | Generate)
    prompt = load(ask.prompt, slot.language)
    messages = prompt.messages(dict(zip(prompt.fields, ask.values, strict=True)))
    if isinstance(ask, Choose):
        return ChooseCall(messages, prompt.options)
    return GenerateCall(messages, ask.schema, ask.max_tokens, ask.temperature, seed + ask.sample)


def _encode(answer: Answer | Supported) -> dict[str, Any] | None:
    """Return what the store keeps of an answer; a failure is not kept, since a second try may succeed."""
    if isinstance(answer, Supported):
        return {"p": answer.probability, "window": answer.window}
    if isinstance(answer, Chosen):
        return {"p": answer.probabilities}
    if isinstance(answer, Generated):
        return {"text": answer.text, "finish": answer.finish}
    return None


def _decode(ask: Ask, record: dict[str, Any]) -> Any:
    """Return the answer that a stored record gives to `ask`: the only way an answer reaches a task."""
    if isinstance(ask, Similar):
        return Failed("zero_vector") if record["cosine"] is None else record["cosine"]
    if isinstance(ask, Verify):
        window = record["window"]
        return Probability.within(record["p"], window and tuple(window))
    if isinstance(ask, Choose):
        return Probability(record["p"][0])
    assert isinstance(ask, Generate)
    if record["finish"] == "length":
        return Failed(CUT)
    text = _LONE_SURROGATE.sub(r"\\ufffd", record["text"])
    # A reasoning model may think first; what counts stands after its thoughts. The JSON itself may quote
    # a row that holds the mark, so the whole text is tried before it.
    for candidate in (text, text.partition(THINK_CLOSE)[2]):
        try:
            answer = json.loads(candidate, object_pairs_hook=_each_key_once)
        except _KeyTwiceError:
            return Failed("judge_schema")
        except ValueError:
            continue
        return answer if _validator(ask.schema).is_valid(answer) else Failed("judge_schema")
    return Failed("judge_not_json")


class _KeyTwiceError(Exception):
    pass


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    answer = dict(pairs)
    if len(answer) < len(pairs):
        raise _KeyTwiceError
    return answer


@lru_cache(maxsize=4096)
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(schema))
