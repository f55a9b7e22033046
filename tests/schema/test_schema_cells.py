from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_judge.errors import UserError
from offline_judge.schema import Row, open_rows

CANARY = "canary-7f3a"


def only_row(**record):
    (row,) = open_rows([record])
    return row


@pytest.mark.parametrize(
    "value",
    [
        ["a", "", "b"],
        ("a", "", "b"),
        np.array(["a", "", "b"], dtype=object),
        np.array(["a", "", "b"]),
        ["a", None, "b"],
        ["a", float("nan"), "b"],
        ["a", pd.NA, "b"],
        '["a", "", "b"]',
        '["a", null, "b"]',
        " ['a', '', 'b'] ",
        "['a', None, \"b\"]",
        [{"text": "a"}, {"page_content": ""}, {"content": "b", "score": 0.5}],
        [{"text": "a"}, {"text": None}, "b"],
        '[{"text": "a"}, {"text": ""}, {"text": "b"}]',
    ],
)
def test_chunks_in_every_shape(value):
    assert only_row(contexts=value).retrieved_contexts == ("a", "", "b")


@pytest.mark.parametrize("value", [None, float("nan"), pd.NA, pd.NaT, np.float64("nan")])
def test_nulls_are_missing(value):
    row = only_row(
        user_input=value, contexts=value, reference_context_ids=value, ground_truths=value, language=value
    )
    for field in ("user_input", "retrieved_contexts", "reference_context_ids", "reference", "language"):
        assert row.missing(field)


def test_empty_is_not_missing():
    row = only_row(response="", contexts=[], reference=" ")
    assert (row.response, row.retrieved_contexts, row.reference) == ("", (), " ")
    assert not any(map(row.missing, ("response", "retrieved_contexts", "reference")))
    assert row.missing("user_input")
    assert only_row(contexts="[]").retrieved_contexts == ()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" + "-" * 100_000 + "1]",
        "one chunk",
        "[1] Smith says",
        "[citation needed]",
        "",
        "[a, b]",
    ],
)
def test_a_plain_string_is_one_chunk_with_a_note(text):
    source = open_rows([{"contexts": text}, {"contexts": ["a"]}, {"contexts": text}])
    assert [row.retrieved_contexts for row in source] == [(text,), ("a",), (text,)]
    (note,) = source.notes
    assert note == "contexts: 2 cells held one string where a list belongs, taken as one chunk or id"
    list(source)
    assert len(source.notes) == 1
    assert source.notes[0] == note


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (f'["{CANARY}", "cut o', "neither a JSON nor a Python list"),
        ("[{[]: 1}]", "neither a JSON nor a Python list"),
        ("[{1, [2]}]", "neither a JSON nor a Python list"),
        (f"['{CANARY}' 'b']", "printed numpy array"),
        (f"['{CANARY}'\n 'b']", "printed numpy array"),
        ("[1, 2]", "a number (int) as chunk 1"),
        (["a", 3.5], "a number (float) as chunk 2"),
        (["a", True], "true or false (bool) as chunk 2"),
        (["a", [CANARY]], "a list (list) as chunk 2"),
        ([{"body": CANARY}], "an object (dict) as chunk 1"),
        ({"text": [CANARY]}, "an object (dict) where a list of texts belongs"),
        (7, "a number (int) where a list of texts belongs"),
        (b"canary-7f3a", "a value (bytes) where a list of texts belongs"),
    ],
)
def test_what_is_no_list_of_chunks(value, found):
    with pytest.raises(UserError) as caught:
        list(open_rows([{"contexts": []}, {"contexts": value}]))
    assert caught.value.message.startswith("the list, row 2, column 'contexts': ")
    assert found in caught.value.message
    assert CANARY not in str(caught.value)


def test_numpy_repr_is_told_from_quotes_inside_a_chunk():
    chunks = ["""he said "a" "b" and 'c' 'd'""", "x"]
    assert only_row(contexts=repr(chunks)).retrieved_contexts == tuple(chunks)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_printed_lists_are_read_back(chunks):
    for text in (repr(chunks), json.dumps(chunks), json.dumps(chunks, ensure_ascii=False)):
        assert only_row(contexts=text).retrieved_contexts == tuple(chunks)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (3, "a number (int)"),
        (np.int64(3), "a number (int64)"),
        (1.5, "a number (float)"),
        (True, "true or false (bool)"),
        ({"text": CANARY}, "an object (dict)"),
        ([CANARY], "a list (list)"),
        (b"canary-7f3a", "a value (bytes)"),
    ],
)
@pytest.mark.parametrize("column", ["answer", "reference", "language"])
def test_what_is_no_text(column, value, found):
    with pytest.raises(UserError) as caught:
        only_row(**{column: value})
    assert caught.value.message == f"the list, row 1, column {column!r}: {found} where text belongs"
    assert caught.value.details["to fix"]
    assert CANARY not in str(caught.value)


def test_a_conversation_is_refused_with_advice():
    with pytest.raises(UserError, match=r"column 'user_input'.*many turns are not supported") as caught:
        only_row(user_input=[{"role": "user", "content": CANARY}])
    assert "last question" in caught.value.details["to fix"]
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("value", ["t", ["t"], ("t",), np.array(["t"]), "['t']", '["t"]'])
def test_ground_truths_of_one(value):
    assert only_row(ground_truths=value).reference == "t"


def test_ground_truths_of_none_and_of_two():
    assert only_row(ground_truths=[]).reference is None
    with pytest.raises(UserError, match="a list of 2 where one text belongs"):
        only_row(ground_truths=[CANARY, CANARY])


@pytest.mark.parametrize("value", [["1", "b"], [1, "b"], np.array(["1", "b"]), '[1, "b"]', [1.0, "b"]])
def test_chunk_ids(value):
    assert only_row(retrieved_context_ids=value).retrieved_context_ids == ("1", "b")


@pytest.mark.parametrize(
    ("value", "found"), [(["a", None], "nothing as id 2"), ([True], "bool"), ([1.5], "a number (float)")]
)
def test_what_is_no_chunk_id(value, found):
    with pytest.raises(UserError) as caught:
        only_row(retrieved_context_ids=value)
    assert found in caught.value.message


@pytest.mark.parametrize("value", [True, 1.5, {"$oid": CANARY}, ["a"], pytest.param(10**5000, id="huge")])
def test_what_is_no_row_id(value):
    with pytest.raises(UserError, match=r"row 1, column '_id': .* where an id belongs") as caught:
        only_row(_id=value)
    assert CANARY not in str(caught.value)


def test_nul_and_lone_surrogates_are_replaced_and_counted():
    source = open_rows([{"id": "a\0", "response": "x\0y\ud800z\udfff", "contexts": ["\udc80", "ok 😀"]}])
    (row,) = source
    assert row.id == "a\ufffd"
    assert row.response == "x\ufffdy\ufffdz\ufffd"
    assert row.retrieved_contexts == ("\ufffd", "ok 😀")
    assert source.notes == tuple(
        f"{column}: 1 cell held NUL or half a surrogate pair, replaced by U+FFFD"
        for column in ("id", "response", "contexts")
    )


def test_texts_are_plain_str():
    row = only_row(id=np.str_("i"), response=np.str_("r"), contexts=[np.str_("c")], language=np.str_(" ko "))
    assert {type(row.id), type(row.response), type(row.retrieved_contexts[0])} == {str}
    assert row.language == "ko"


def test_context_leaves_out_blank_chunks():
    row = only_row(contexts=["a", " \n", "", " b "])
    assert row.retrieved_contexts == ("a", " \n", "", " b ")
    assert row.context == "a\n\n b "
    assert only_row(contexts=[" "]).context == ""
    assert only_row().context == ""


def test_row_is_frozen():
    with pytest.raises(AttributeError):
        only_row(response="a").response = "b"
    assert "__slots__" in vars(Row)
