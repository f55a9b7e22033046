"""Models that answer by rule, for tests in which the model is not what is tested."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

import torch

from offline_judge.backends.protocol import (
    Answer,
    Call,
    ChooseCall,
    Chosen,
    Failed,
    GenerateCall,
    Generated,
    SupportCall,
    Supported,
    TokenCount,
)
from offline_judge.prompts import LANGUAGES, catalogue, load

_FIELD = re.compile(r"<(\w+)>\n(.*?)\n</\1>", re.DOTALL)


def fields_of(call: Call) -> dict[str, str]:
    """The fields of a call's last message, by tag."""
    return dict(_FIELD.findall(call.messages[-1][1]))


def numbered(text: str) -> list[str]:
    return re.findall(r"^\d+\. (.*)$", text, re.MULTILINE)


_CONTROLS = {
    text
    for language in LANGUAGES
    for prompt_id in catalogue()
    if (control := load(prompt_id, language).control) is not None
    for text in (control.neutral, *(text for _, text in control.values))
}


def is_control(call: Call) -> bool:
    """Whether a call asks something of which the answer is known, whatever the text says."""
    return not _CONTROLS.isdisjoint(fields_of(call).values())


def contains(call: ChooseCall) -> float:
    """0.9 where the last field's text stands in the first field's, else 0.1."""
    values = list(fields_of(call).values())
    return 0.9 if values[-1].rstrip(".").lower() in values[0].lower() else 0.1


def row(**changes):
    """A row that `StubJudge` can judge."""
    return {
        "id": "r1",
        "user_input": "Where is the depot?",
        "response": "The depot is in Lund. It opens at nine.",
        "retrieved_contexts": ["The depot is in Lund.", "Buses are red."],
        "reference": "The depot is in Lund.",
    } | changes


class StubJudge:
    """Each sentence is one claim; a claim is supported where the premise holds it word for word.

    `control` answers what the texts' controls ask.
    """

    name = "stub"
    fingerprint = "stub-judge"

    def __init__(
        self,
        choose: Callable[[ChooseCall], float] = contains,
        generate: Callable[[GenerateCall], str | Failed | Generated] | None = None,
        context_length: int = 8192,
        control: Callable[[ChooseCall], float] = lambda call: 0.0,
    ) -> None:
        self.context_length = context_length
        self._control = control
        self.calls: list[Call] = []
        self.batches: list[list[Call]] = []
        self._choose = choose
        self._generate = generate or self.write

    def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        self.batches.append(list(calls))
        for position, call in enumerate(calls):
            self.calls.append(call)
            tokens = TokenCount(prompt=10, cached=5, output=1)
            if isinstance(call, ChooseCall):
                p = self._control(call) if is_control(call) else self._choose(call)
                yield position, Chosen((p, 1 - p), tokens)
                continue
            text = self._generate(call)
            yield position, Generated(text, "stop", tokens) if isinstance(text, str) else text

    @staticmethod
    def write(call: GenerateCall) -> str:
        fields = fields_of(call)
        if "sentences" in fields:
            sentences = numbered(fields["sentences"])
            found = {n: [sentences[int(n) - 1]] for n in fields["numbers"].split(", ")}
        elif "statements" in fields:
            found = {
                str(n): {"reason": f"because {n}", "verdict": 0}
                for n, _ in enumerate(numbered(fields["statements"]), 1)
            }
        else:
            found = {"noncommittal": 0, "question": f"Q{call.seed} {fields['answer']}?"[:200]}
        return json.dumps(found, ensure_ascii=False)

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def describe(self) -> dict[str, object]:
        return {"backend": "stub"}

    def close(self) -> None:
        pass

    @property
    def generated(self) -> list[GenerateCall]:
        return [call for call in self.calls if isinstance(call, GenerateCall)]

    @property
    def chosen(self) -> list[ChooseCall]:
        return [call for call in self.calls if isinstance(call, ChooseCall) and not is_control(call)]

    @property
    def controls(self) -> list[ChooseCall]:
        return [call for call in self.calls if isinstance(call, ChooseCall) and is_control(call)]


class StubEmbedder:
    """Counts letters: texts with the same letters have cosine 1, a text without letters is a zero vector."""

    name = "stub"
    fingerprint = "stub-embedder"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        self.texts.extend(texts)
        return torch.tensor(
            [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        ).float()

    def describe(self) -> dict[str, object]:
        return {"backend": "stub"}

    def close(self) -> None:
        pass


class StubVerifier:
    """0.95 where the premise holds the claim word for word, 0.05 where it shares no word, else 0.4."""

    name = "stub"
    fingerprint = "stub-verifier"
    prompted = False

    def __init__(self) -> None:
        self.calls: list[SupportCall] = []
        self.batches: list[int] = []

    def verify(self, calls: Sequence[SupportCall]) -> Iterator[tuple[int, Supported | Failed]]:
        self.batches.append(len(calls))
        for position, call in enumerate(calls):
            self.calls.append(call)
            claim, premise = call.claim.rstrip(".").lower(), call.premise.lower()
            p = 0.95 if claim in premise else 0.4 if set(claim.split()) & set(premise.split()) else 0.05
            yield position, Supported(p, (0, 7), len(premise.split()))

    def describe(self) -> dict[str, object]:
        return {"backend": "stub"}

    def close(self) -> None:
        pass
