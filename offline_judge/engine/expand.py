"""How a large ask breaks down into calls that a judge can answer.

Each function here is a generator like a metric's `gather`: it yields asks, is sent their answers
and returns the answer of the large ask. Unlike a metric it is sent failures too (`Failed`), since
this is where a length stop is split and asked again.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeAlias

from offline_judge.backends.protocol import Failed, Judge
from offline_judge.engine.asks import (
    Choose,
    Claims,
    Generate,
    Probability,
    Question,
    Questions,
    Reason,
    Reasons,
)
from offline_judge.engine.schemas import claims_schema, most_claims, question_schema, reasons_schema
from offline_judge.prompts import Prompt, load
from offline_judge.prompts.control import without_excess
from offline_judge.text import Window, same_script, split_sentences, windows, word_overlap, words

Expansion: TypeAlias = Generator[Sequence[Any], list[Any], Any]

#: Sentences that a `claims` prompt shows, and how many of them one ask splits. Its asks share the prompt but
#: for the numbers at its end, and a judge writes three short answers at once sooner than a long one.
SENTENCES_PER_PROMPT = 12
SENTENCES_PER_ASK = 4
#: Claims of one `reasons` prompt.
REASONS_PER_ASK = 16

#: Tokens kept free for the chat template's own marks.
TEMPLATE_TOKENS = 64

QUESTION_TEMPERATURE = 0.8
_QUESTION_TOKENS = 96
_REASON_TOKENS = 96

#: Of a long text, the windows that share most words with the question are asked first; a probability of
#: at least DECIDED leaves the others unasked, since they could only raise it.
FIRST_WINDOWS = 2
DECIDED = 0.9

#: The reason code of an answer that met max_tokens.
CUT = "judge_length"
_SPLIT = (CUT, "judge_prompt_too_long")

#: A tag of markup, or a mark of a chat template that a text holds as text.
_TAG = re.compile("<[^<>]*>")


class Room:
    """How much text still fits beside a prompt: counts tokens only where bytes do not settle it."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._head_tokens: dict[str, int] = {}
        self._text_tokens: dict[str, int] = {}

    def forget(self) -> None:
        """Drop the token counts of texts, so that memory does not grow with the data set."""
        self._text_tokens.clear()

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        """Token count of each text; counted once while the window of rows lasts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._text_tokens]
        if new:
            self._text_tokens.update(zip(new, self._judge.n_tokens(new), strict=True))
        return [self._text_tokens[text] for text in texts]

    def beside(self, prompt: Prompt, values: Sequence[str], max_tokens: int) -> int:
        """Tokens left after the prompt, `values` and the output."""
        return self._judge.context_length - self._head(prompt) - max_tokens - sum(self.n_tokens(values))

    def fits(self, prompt: Prompt, values: Sequence[str], max_tokens: int) -> bool:
        """Whether the filled prompt and its output fit the model."""
        room = self._judge.context_length - self._head(prompt) - max_tokens
        # A token is at least one byte, a character at most four: most texts need no counting.
        if 4 * sum(map(len, values)) <= room or sum(len(value.encode()) for value in values) <= room:
            return True
        return sum(self.n_tokens(values)) <= room

    def _head(self, prompt: Prompt) -> int:
        found = self._head_tokens.get(prompt.digest)
        if found is None:
            texts = [content for _, content in prompt.head] + [prompt.template]
            found = sum(self._judge.n_tokens(texts)) + TEMPLATE_TOKENS + 8 * len(texts)
            self._head_tokens[prompt.digest] = found
        return found


def expand_choose(ask: Choose, language: str, room: Room) -> Expansion:
    """Ask about the long field, in overlapping windows where it does not fit: the maximum, with its window.

    The windows that share most words with the other fields come first: 2 of them, then twice as many
    each time, while no window has a probability of at least `DECIDED`. Where the prompt has a control, that
    is asked of every window too, and the question of the neutral text; both correct what the window says.
    """
    prompt = load(ask.prompt, language)
    place = prompt.fields.index(ask.windowed or "")
    control = prompt.control
    questions = [ask.values]
    neutral: list[Choose] = []
    if control is not None:
        instead = dict(control.values)
        control_values = tuple(map(instead.get, prompt.fields, ask.values))
        questions.append(control_values)
        neutral = [_at(ask, control_values, place, control.neutral)]
        if control.most_alone is not None:
            neutral.append(_at(ask, ask.values, place, control.neutral))
    cut = _cut(prompt, questions, place, room)
    if isinstance(cut, Failed):
        return cut
    best: Probability | None = None
    start, stop = 0, FIRST_WINDOWS
    while start < len(cut) and (best is None or best < DECIDED):
        asked = cut[start:stop]
        answers = yield [
            *(_at(ask, values, place, window.text) for values in questions for window in asked),
            *neutral,
        ]
        failed = first_failure(answers)
        if failed is not None:
            return failed
        n = len(asked)
        of_text, of_question = [0.0] * n, 0.0
        if control is not None:
            doubt = answers[2 * n]
            of_text = [control.excess(one, neutral=doubt) for one in answers[n : 2 * n]]
            of_question = control.excess_alone(answers[-1], neutral=doubt)
        for window, p, excess in zip(asked, answers, of_text, strict=False):
            p = without_excess(p, excess, of_question)
            if best is None or p > best:
                best = Probability.read(p, (window.start, window.end) if len(cut) > 1 else None, excess)
        start, stop = stop, 2 * stop + FIRST_WINDOWS
    return best


def _at(ask: Choose, values: tuple[str, ...], place: int, text: str) -> Choose:
    """Ask with `text` at `place` among the values; that is one call."""
    return Choose(ask.prompt, (*values[:place], text, *values[place + 1 :]))


def _cut(
    prompt: Prompt, questions: Sequence[tuple[str, ...]], place: int, room: Room
) -> Sequence[Window] | Failed:
    """Windows of the field at `place`, most like the first question first; the whole where it fits."""
    text = questions[0][place]
    if all(room.fits(prompt, values, max_tokens=1) for values in questions):
        return (Window(text, 0, len(text)),)
    others = [[*values[:place], *values[place + 1 :]] for values in questions]
    budget = min(room.beside(prompt, values, max_tokens=1) for values in others)
    if budget < TEMPLATE_TOKENS:
        return Failed("judge_prompt_too_long", f"{max(0, budget)} tokens left for {prompt.fields[place]}")
    cut = windows(text, room.n_tokens, budget)
    sought = words(" ".join(others[0]))
    cut.sort(key=lambda window: -word_overlap(sought, words(window.text)))
    return cut


def claims_from_sentences(ask: Claims) -> tuple[str, ...]:
    """Take each sentence as one claim: what is done without a judge."""
    return tuple(dict.fromkeys(sentence.text for sentence in split_sentences(ask.text)))


def expand_claims(ask: Claims, language: str, room: Room) -> Expansion:
    """Number the sentences, ask for the claims of some at a time, and of fewer where an answer was cut."""
    sentences = [sentence.text for sentence in split_sentences(ask.text)]
    if not sentences:
        return ()
    prompt = load("claims", language)
    detail = f"{prompt.text(f'atomicity_{ask.atomicity}')} {prompt.text(f'coverage_{ask.coverage}')}"
    found: dict[int, Sequence[str]] = {}
    of_question = words(ask.question)
    todo = [
        _Group(top, bottom, top + start, top + end)
        for top, bottom in _spans(len(sentences), SENTENCES_PER_PROMPT)
        for start, end in _spans(bottom - top, SENTENCES_PER_ASK)
    ]
    while todo:
        answers = yield [_claims_of(sentences, group, detail, ask.question) for group in todo]
        again: list[_Group] = []
        for group, answer in zip(todo, answers, strict=True):
            if not isinstance(answer, Failed):
                for index in range(group.start, group.end):
                    claims = answer[str(index - group.top + 1)]
                    found[index] = _faithful_to(sentences[index], of_question, claims)
            elif answer.reason not in _SPLIT:
                return answer
            elif group.end - group.start > 1:
                again += group.halves()
            else:
                # One sentence that can't be split further is a claim as it stands.
                found[group.start] = (sentences[group.start],)
        todo = again
    return tuple(dict.fromkeys(claim for index in sorted(found) for claim in found[index]))


class _Group(NamedTuple):
    """Sentences `start` to `end` of a text, to be split where `top` to `bottom` are shown."""

    top: int
    bottom: int
    start: int
    end: int

    def halves(self) -> tuple[_Group, _Group]:
        """Cut a group in two, each shown alone: it may have been the prompt that was too long."""
        middle = (self.start + self.end) // 2
        return _Group(self.start, middle, self.start, middle), _Group(middle, self.end, middle, self.end)


def _claims_of(sentences: Sequence[str], group: _Group, detail: str, question: str) -> Generate:
    top, bottom, start, end = group
    numbers = ", ".join(str(index - top + 1) for index in range(start, end))
    return Generate(
        prompt="claims",
        values=(detail, question, _numbered(sentences[top:bottom]), numbers),
        schema=claims_schema(sentences[start:end], first=start - top + 1),
        max_tokens=_claims_tokens(sentences[start:end]),
    )


def expand_questions(ask: Questions, language: str, room: Room) -> Expansion:
    """Draw n samples, a seed each; one that failed or left the language of the text is drawn again once."""
    questions: dict[int, Question] = {}
    failed: Failed | None = None
    for attempt in range(2):
        todo = [index for index in range(ask.n) if index not in questions]
        if not todo:
            break
        answers = yield [
            Generate(
                prompt="reversed_question",
                values=(ask.text,),
                schema=question_schema(),
                max_tokens=_QUESTION_TOKENS * (1 + attempt),
                temperature=QUESTION_TEMPERATURE,
                # The first attempts are samples 1 … n, the second ones n + 1 … 2n.
                sample=1 + index + attempt * ask.n,
            )
            for index in todo
        ]
        for index, answer in zip(todo, answers, strict=True):
            if isinstance(answer, Failed):
                failed = answer
            elif not answer["question"].strip() or not same_script(ask.text, answer["question"]):
                failed = Failed("judge_language", "the question is not in the language of the response")
            else:
                questions[index] = Question(answer["question"].strip(), answer["noncommittal"])
    if len(questions) < ask.n:
        return failed
    return tuple(questions[index] for index in range(ask.n))


def expand_reasons(ask: Reasons, language: str, room: Room) -> Expansion:
    """Ask for all reasons of a row at once; a cut answer is split, and one claim cut again has no reason."""
    prompt = load("reasons", language)
    texts = {"context": ask.context, "reference": ask.reference, "response": ask.response}
    lines = [f"({prompt.text(source)}) {claim}" for source, claim in ask.checks]
    found: dict[int, Reason | None] = {}
    todo = list(_spans(len(lines), REASONS_PER_ASK))
    while todo:
        asks = []
        for start, end in todo:
            needed = {source for source, _ in ask.checks[start:end]}
            documents = tuple(text if source in needed else "" for source, text in texts.items())
            asks.append(
                Generate(
                    prompt="reasons",
                    values=(*documents, _numbered(lines[start:end])),
                    schema=reasons_schema(end - start),
                    max_tokens=_REASON_TOKENS * (end - start),
                )
            )
        answers = yield asks
        again: list[tuple[int, int]] = []
        for (start, end), answer in zip(todo, answers, strict=True):
            if not isinstance(answer, Failed):
                for index in range(start, end):
                    given = answer[str(index - start + 1)]
                    found[index] = Reason(given["reason"].strip(), given["verdict"])
            elif answer.reason in _SPLIT and end - start > 1:
                middle = (start + end) // 2
                again += [(start, middle), (middle, end)]
            else:
                # A reason is an extra: the score stands without it.
                found.update(dict.fromkeys(range(start, end), None))
        todo = again
    return tuple(found[index] for index in range(len(lines)))


def _spans(n: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut n items into even spans of at most `most`."""
    parts = -(-n // most)
    for part in range(parts):
        yield part * n // parts, (part + 1) * n // parts


def _numbered(lines: Sequence[str]) -> str:
    return "\n".join(f"{number}. {' '.join(line.split())}" for number, line in enumerate(lines, 1))


def _claims_tokens(sentences: Sequence[str]) -> int:
    # Claims repeat the sentence's words and its subject. In bytes, a token is about 4 in English and
    # 3 in Korean on today's vocabularies, so this leaves each claim room for its sentence once over.
    return 24 + sum(
        16 + (1 + most_claims(sentence)) * (12 + len(sentence.encode()) // 4) for sentence in sentences
    )


def _faithful_to(sentence: str, of_question: AbstractSet[str], claims: Sequence[str]) -> Sequence[str]:
    """Drop what states nothing; a sentence that the judge did not keep to is the claim itself.

    It did not where a claim is in another script, is one word of a longer sentence, or shares no word with
    the sentence or the question: "Yes", say, where another sentence asks for that answer.
    """
    kept = [text for claim in claims if _states_something(text := claim.strip())]
    of_sentence = words(sentence)
    source = of_sentence | of_question
    for claim in kept:
        of_claim = words(claim)
        alone = len(of_claim) == 1 < len(of_sentence)
        if alone or of_claim.isdisjoint(source) or not same_script(sentence, claim):
            return (sentence,)
    return kept


def _states_something(claim: str) -> bool:
    """False of a question, of punctuation, and of tags alone."""
    return bool(split_sentences(_TAG.sub(" ", claim))) and claim[-1] not in "?？"


def first_failure(answers: Sequence[Any]) -> Failed | None:
    """Return the first answer that is a failure, if one is."""
    return next((answer for answer in answers if isinstance(answer, Failed)), None)
