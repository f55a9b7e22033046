"""What the engine asks of a model: three small protocols and the plain records that cross them.

A backend gets calls that are already sorted so that neighbours share a prefix, and yields each
answer as soon as it is known, in any order, with the position of its call. It never raises for
one bad call: that call's answer is a `Failed` with a reason code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from offline_judge.prompts import Message

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """Generate one JSON text that matches `schema` (itself JSON text).

    Greedy where `temperature` is 0; otherwise sampled with `seed` alone, so that the same call
    gives the same answer whatever else is in its batch.
    """

    messages: tuple[Message, ...]
    schema: str
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ChooseCall:
    """Probability of each of `options` as the very next text, renormalised over the options.

    Read at one token, the first of each option, so no two options may begin with one token.
    """

    messages: tuple[Message, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of one call: prompt (all of them), cached (those served from a prefix cache), output."""

    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The raw text; `finish` is "length" where it met max_tokens and is therefore cut."""

    text: str
    finish: Literal["stop", "length"]
    tokens: TokenCount


@dataclass(frozen=True, slots=True)
class Chosen:
    """Probabilities in the order of the call's options; they sum to 1."""

    probabilities: tuple[float, ...]
    tokens: TokenCount


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer. `reason` is a code such as "judge_prompt_too_long"; `detail` never holds row text."""

    reason: str
    detail: str = ""


def chosen_from(
    logprobs: Mapping[int, float], option_ids: Sequence[int], tokens: TokenCount
) -> Chosen | Failed:
    """Renormalise the log-probabilities of the options' first tokens: p_i = exp(l_i) / sum_j exp(l_j).

    An option without a log-probability counts as 0.

    Returns:
        `Failed` with `judge_no_logprobs` where no option has one.
    """
    weights = [math.exp(logprobs[token_id]) if token_id in logprobs else 0.0 for token_id in option_ids]
    total = math.fsum(weights)
    if not total > 0:
        return Failed("judge_no_logprobs", f"none of {len(option_ids)} options")
    return Chosen(tuple(weight / total for weight in weights), tokens)


@dataclass(frozen=True, slots=True)
class SupportCall:
    """Does `premise` show that the whole of `claim` is true?

    `language` is that of the prompt, for a verifier that has one (`prompted`).
    """

    premise: str
    claim: str
    language: str = "en"


@dataclass(frozen=True, slots=True)
class Supported:
    """P(premise supports claim), and what it took.

    `window` is where in the premise it was read, (start, end) in characters, or None where the
    premise was read as a whole. `n_tokens` counts those of all windows that were read. `excess` says how far
    that text alone moves a verifier that measures it (`Control` in `prompts`); 0 where it does not.
    """

    probability: float
    window: tuple[int, int] | None
    n_tokens: int
    excess: float = 0.0


Call: TypeAlias = GenerateCall | ChooseCall
Answer: TypeAlias = Generated | Chosen | Failed


class Judge(Protocol):
    """An instruct LLM. Build one with `offline_judge.backends.open_judge`."""

    name: str
    #: Hash of the model's files and of every setting that could change an answer.
    fingerprint: str
    #: Prompt and output tokens together.
    context_length: int

    def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        """Yield (position in calls, answer) exactly once for every call, each as soon as it is known."""
        ...

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without a chat template."""
        ...

    def describe(self) -> dict[str, object]:
        """Backend, versions, device, dtype, decoding settings: what the run record keeps.

        "notes", where there are any, is a list of what the user should know.
        """
        ...

    def close(self) -> None:
        """Free the model's memory. The judge can't be used afterwards."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """A judge or verifier that can end early. One that can't is left after the answer that it gives next."""

    def stop(self) -> None:
        """Let the `answer` or `verify` under way end early: it yields what is computed and starts nothing.

        Called from a signal handler or another thread, perhaps more than once. The next call is not
        concerned.
        """
        ...


class Verifier(Protocol):
    """A model that says how probable it is that a premise supports a claim.

    Build an encoder with `offline_judge.backends.open_verifier`; `JudgeVerifier` makes one of a judge.
    """

    name: str
    #: Hash of the model's files and of every setting that could change an answer.
    fingerprint: str
    #: Whether a prompt in the call's language is part of the question.
    prompted: bool

    def verify(self, calls: Sequence[SupportCall]) -> Iterator[tuple[int, Supported | Failed]]:
        """Yield (position in calls, answer) exactly once for every call, each as soon as it is known.

        An answer depends on its own call alone, never on what else is in the batch.
        """
        ...

    def describe(self) -> dict[str, object]:
        """Backend, versions, device, dtype, labels: what the run record keeps."""
        ...

    def close(self) -> None:
        """Free the model's memory. The verifier can't be used afterwards."""
        ...


class Embedder(Protocol):
    """A sentence embedding model."""

    name: str
    fingerprint: str

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embed each text: (N, D) float32 on the embedder's device, rows in the order of `texts`."""
        ...

    def describe(self) -> dict[str, object]:
        """Backend, versions, device, dtype: what the run record keeps."""
        ...

    def close(self) -> None:
        """Free the model's memory."""
        ...
