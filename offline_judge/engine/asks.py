"""Asks: the questions that a metric can yield, and the answers that it is sent.

An ask says what must be known, never who answers or in which language. Two equal asks are one
question: the engine asks it once, whoever wants to know.

| ask | answer |
|---|---|
| `Claims` | `tuple[str, ...]`: what a text states, one short sentence each |
| `Support` | `Probability` that a premise shows a claim to be true |
| `Verify` | `Probability` of the same, from the verifier alone: what a cascade asks first |
| `Choose` | `Probability` of a prompt's first option |
| `Questions` | `tuple[Question, ...]`: what a text could be the answer to |
| `Reasons` | `tuple[Reason | None, ...]`: why each claim is supported or is not |
| `Generate` | the generated JSON, parsed |
| `Similar` | `float`: cosine of the embeddings of two texts |
| `Gathered` | what another generator returned: how a row gathers all its metrics at once |
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

Level: TypeAlias = Literal["high", "low"]
Source: TypeAlias = Literal["context", "reference", "response"]


class Probability(float):
    """A probability that remembers how it was read from a text.

    `window` is (start, end) in characters of a part of a long text, or None where the whole was read at once.
    `excess` says how far that text alone moves the judge (`Control` in `prompts`): what is above 1 has been
    taken off; 0 where it was not asked.
    """

    window: tuple[int, int] | None = None
    excess: float = 0.0

    @classmethod
    def read(cls, value: float, window: tuple[int, int] | None, excess: float = 0.0) -> Probability:
        """Return `value` with where it was read from, and with its excess."""
        probability = cls(value)
        probability.window = window
        probability.excess = excess
        return probability


class Question(NamedTuple):
    """A question generated from a response, and whether the response was noncommittal (1) or not (0)."""

    text: str
    noncommittal: int


class Reason(NamedTuple):
    """A written reason with the verdict (1 supported, 0 not) that the judge reached in writing it."""

    text: str
    verdict: int


@dataclass(frozen=True, slots=True)
class Claims:
    """What does `text` state? `question` helps to resolve its pronouns.

    `atomicity` "high" splits a sentence into single facts, "low" keeps together what belongs
    together; `coverage` "high" takes everything, "low" only what matters for the question.
    """

    text: str
    question: str
    atomicity: Level = "high"
    coverage: Level = "high"


@dataclass(frozen=True, slots=True)
class Support:
    """Does `premise` show that the whole of `claim` is true?"""

    premise: str
    claim: str


@dataclass(frozen=True, slots=True)
class Verify:
    """What does the verifier say to `Support(premise, claim)`? Metrics ask for `Support`."""

    premise: str
    claim: str


@dataclass(frozen=True, slots=True)
class Choose:
    """How probable is the first option of prompt `prompt`, its fields filled with `values`?

    Where the prompt would not fit the model, the text of the field `windowed` is cut into
    overlapping windows and the answer is the maximum over them. Where the prompt has a control, what that
    text alone, or the question alone, moves the judge by is taken off. Without `windowed` the answer is one
    call's, as it is.
    """

    prompt: str
    values: tuple[str, ...]
    windowed: str | None = None


@dataclass(frozen=True, slots=True)
class Questions:
    """Which questions could `text` be the answer to? `n` samples, each with a seed of its own."""

    text: str
    n: int


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why does the source of each check support its claim, or not? The three texts are the sources."""

    checks: tuple[tuple[Source, str], ...]
    context: str
    reference: str
    response: str


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate one JSON text that matches `schema` (JSON text) from a filled prompt.

    `sample` 0 at temperature 0 is greedy; samples are told apart by their number, which is
    also their seed.
    """

    prompt: str
    values: tuple[str, ...]
    schema: str
    max_tokens: int
    temperature: float = 0.0
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Similar:
    """How close are the embeddings of two texts? Undefined (`zero_vector`) where one has no length."""

    a: str
    b: str


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """What does another generator return? Its asks join the round; its answer is what it returned.

    `charged_to` names whose asks they are where their cost is counted.
    """

    generator: Gather
    charged_to: str


Ask: TypeAlias = Claims | Support | Verify | Choose | Questions | Reasons | Generate | Similar | Gathered


@dataclass(frozen=True, slots=True)
class Unscored:
    """No score, with the reason code that says why. Never the same as 0."""

    reason: str


class Check(NamedTuple):
    """A claim that was checked against one text of the row, and the probability that came of it."""

    source: Source
    claim: str
    p: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one row's score is computed from.

    Args:
        values: named numbers, vectors or matrices. A name that begins with `p_` holds
            probabilities: the hard score sees them as verdicts (1 where p >= the metric's
            threshold), the soft score as they are. Lists of one metric have the same rank in
            every row.
        texts: the texts that the numbers belong to, by name, in the order of the numbers. Where
            there is one list, every vector is as long as it.
        flags: codes of what a reader should know, such as "no_contexts".
        checks: the claims for which a reason may be written.
    """

    values: dict[str, Any]
    texts: dict[str, Sequence[str]]
    flags: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


def flat(value: Any) -> Iterable[Any]:
    """Every number of a named value of evidence, be it a number, a vector or a matrix, in order."""
    if not isinstance(value, list | tuple):
        return (value,)
    return (inner for item in value for inner in flat(item))


Gather: TypeAlias = Generator[Sequence[Ask], list[Any], "Evidence | Unscored"]
