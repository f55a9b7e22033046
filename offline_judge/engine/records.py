"""What the store keeps of an answer, and the answer that a kept record gives to an ask.

Every answer passes through both, also one that was just computed: a run that goes on from the store can't
score differently from one that was not interrupted.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import jsonschema

from offline_judge.backends.chat import THINK_CLOSE
from offline_judge.backends.protocol import Answer, Chosen, Failed, Generated, Supported
from offline_judge.engine.asks import Ask, Choose, Generate, Probability, Similar, Verify
from offline_judge.engine.expand import CUT

#: Half of a \\uXXXX pair in JSON text: half a character, which no tokenizer or file can take.
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][\da-fA-F]{2})\\u[dD][c-fC-F][\da-fA-F]{2}"
)


def encode(answer: Answer | Supported) -> dict[str, Any] | None:
    """Return what the store keeps of an answer; a failure is not kept, since a second try may succeed."""
    if isinstance(answer, Supported):
        return {"p": answer.probability, "window": answer.window, "excess": answer.excess}
    if isinstance(answer, Chosen):
        return {"p": answer.probabilities}
    if isinstance(answer, Generated):
        return {"text": answer.text, "finish": answer.finish}
    return None


def decode(ask: Ask, record: dict[str, Any]) -> Any:
    """Return the answer that a stored record gives to `ask`: the only way an answer reaches a task."""
    if isinstance(ask, Similar):
        return Failed("zero_vector") if record["cosine"] is None else record["cosine"]
    if isinstance(ask, Verify):
        window = record["window"]
        return Probability.read(record["p"], window and tuple(window), record.get("excess", 0.0))
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
