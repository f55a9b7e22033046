from __future__ import annotations

import json

import pytest
import torch

from offline_judge.backends.chat import Chat
from offline_judge.backends.json_constraint import (
    STRUCTURED_BACKENDS,
    check_structured_backend,
    constraint_factory,
    schema_for,
)
from offline_judge.errors import UserError


def schema(**properties):
    return json.dumps(
        {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    )


CLAIMS = schema(a={"type": "array", "items": {"type": "string"}, "maxItems": 2}, v={"enum": [0, 1]})


@pytest.fixture(scope="module")
def tokenizer(shelf_model):
    return Chat.load(shelf_model("smollm2-135m-instruct")).tokenizer


@pytest.fixture(scope="module", params=STRUCTURED_BACKENDS)
def constrain(request, tokenizer):
    return constraint_factory(request.param, tokenizer, 49152)


def allowed_until(constraint, token_ids):
    """Number of tokens that the constraint lets pass, and whether it then calls the text complete."""
    complete = False
    for index, token_id in enumerate(token_ids):
        bitmask = torch.zeros(1, 49152 // 32, dtype=torch.int32)
        constraint.write_mask(bitmask, 0)
        if complete or not (bitmask[0, token_id // 32] >> token_id % 32) & 1:
            return index, complete
        complete = constraint.accept(token_id)
    return len(token_ids), complete


def holds(constrain, tokenizer, schema_text, text):
    ids = tokenizer(text)["input_ids"]
    return allowed_until(constrain(schema_text), ids) == (len(ids), True)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ["The sun.", "x"], "v": 0}',
        '{"a":[],"v":1}',
        '{"a": ["10만원을 넘으면 첨부합니다."], "v": 1}',
        '{"a": ["最初の大会は1967年\\n \\" {"], "v": 1}',
    ],
)
def test_json_of_the_schema_passes(constrain, tokenizer, text):
    assert holds(constrain, tokenizer, CLAIMS, text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [], "v": 2}',
        '{"v": 1, "a": []}',
        '{"a": ["x", "y", "z"], "v": 0}',
        '{"a": [], "v": 0, "b": 1}',
        '{"a": [],  "v": 0}',
        '{"a": [],\n"v": 0}',
        '{"a": ["x\ny"], "v": 0}',
        'Sure! {"a": [], "v": 0}',
    ],
)
def test_anything_else_is_stopped(constrain, tokenizer, text):
    assert not holds(constrain, tokenizer, CLAIMS, text)


def test_guidance_holds_max_length_in_characters(tokenizer):
    constrain = constraint_factory("guidance", tokenizer, 49152)
    bounded = schema(a={"type": "string", "maxLength": 5})
    assert holds(constrain, tokenizer, bounded, '{"a": "한국어의바"}')
    assert not holds(constrain, tokenizer, bounded, '{"a": "한국어의바다"}')


def test_outlines_is_spared_max_length_but_not_a_property_of_that_name():
    text = schema(maxLength={"type": "string", "maxLength": 300}, properties={"enum": ["maxLength"]})
    cleaned = json.loads(schema_for("outlines", text))
    assert cleaned["properties"] == {"maxLength": {"type": "string"}, "properties": {"enum": ["maxLength"]}}
    assert cleaned["required"] == ["maxLength", "properties"]


@pytest.mark.parametrize("text", ['{"type": "nonsense"}', "[1]", "not json"])
def test_a_schema_that_cannot_be_held_is_a_value_error(tokenizer, text):
    with pytest.raises(ValueError):
        constraint_factory("guidance", tokenizer, 49152)(text)


def test_unknown_engine():
    with pytest.raises(UserError, match="'xgrammer' is not known"):
        check_structured_backend("xgrammer")
