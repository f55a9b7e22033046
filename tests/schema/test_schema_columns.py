from __future__ import annotations

import pytest

from offline_judge.errors import UserError
from offline_judge.schema import ALIASES, COLUMNS, open_rows, parse_column_map


def only_row(record, column_map=None):
    (row,) = open_rows([record], column_map)
    return row


@pytest.mark.parametrize(("alias", "field"), [(a, f) for a, f in ALIASES.items() if f != "id"])
def test_alias_is_understood_unasked(alias, field):
    value, expected = (["t"], ("t",)) if field.endswith("contexts") else ("t", "t")
    assert getattr(only_row({alias: value}), field) == expected


@pytest.mark.parametrize("name", ["id", "row_id", "_id"])
def test_id_columns_are_kept(name):
    assert only_row({name: "q-7", "question": "q"}).id == "q-7"


def test_ids_are_made_from_the_position_where_missing():
    rows = list(open_rows([{"question": "a"}, {"id": 5}, {"id": None}, {"id": "  "}, {"id": 6.0}]))
    assert [row.id for row in rows] == ["row-000001", "5", "row-000003", "row-000004", "6"]
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "record",
    [
        {"user_input": "a", "question": "b"},
        {"ground_truth": "a", "ground_truths": ["b"]},
        {"id": "a", "_id": "b"},
    ],
)
def test_two_names_for_one_field(record):
    first, second = record
    with pytest.raises(UserError) as caught:
        only_row(record)
    assert f"{first!r} and {second!r} both mean" in caught.value.message
    assert f": {second!r}}}" in caught.value.details["to fix"]


def test_two_names_are_found_across_rows():
    with pytest.raises(UserError, match="'answer' and 'response' both mean 'response'"):
        list(open_rows([{"answer": "a"}, {"response": "b"}]))


def test_mapping_decides_between_two_names():
    record = {"user_input": "a", "question": "b"}
    assert only_row(record, {"user_input": "question"}).user_input == "b"
    assert only_row(record, {"question": "user_input"}).user_input == "a"


@pytest.mark.parametrize("key", ["user_input", "question"])
def test_map_takes_either_naming(key):
    assert only_row({"query": "q", "id": 1}, {key: "query"}).user_input == "q"


def test_reversed_map_shows_the_right_one():
    with pytest.raises(UserError, match="wrong way round") as caught:
        open_rows([], {"query": "user_input"})
    assert "column_map={'user_input': 'query'}" in caught.value.details["to fix"]
    assert "--map user_input=query" in caught.value.details["to fix"]


def test_misspelt_key_suggests_the_nearest_name():
    with pytest.raises(UserError, match="'user_imput' is no column") as caught:
        open_rows([], {"user_imput": "query"})
    assert "column_map={'user_input': 'query'}" in caught.value.details["to fix"]
    assert all(name in caught.value.details["columns"] for name in COLUMNS)


def test_two_keys_for_one_column():
    with pytest.raises(UserError, match="two columns for 'user_input'"):
        open_rows([], {"question": "a", "user_input": "b"})


@pytest.mark.parametrize("source", [[{"query": "x", "out": "y"}], {"query": ["x"], "out": ["y"]}])
def test_mapped_column_that_the_data_lacks(source):
    with pytest.raises(
        UserError, match="no column 'prompt', which column_map gives for 'user_input'"
    ) as caught:
        list(open_rows(source, {"user_input": "prompt"}))
    assert caught.value.details["data has"] == "query, out"


def test_mapped_column_may_come_in_a_later_row():
    assert [row.user_input for row in open_rows([{"a": 1}, {"query": "q"}], {"user_input": "query"})] == [
        None,
        "q",
    ]


def test_extra_columns_of_any_type_are_ignored():
    assert only_row({"question": "q", "score": object(), 3: 4, "metadata": {"a": [1]}}).user_input == "q"


def test_parse_column_map():
    assert parse_column_map(["question=query", " response = the=answer "]) == {
        "user_input": "query",
        "response": "the=answer",
    }


@pytest.mark.parametrize("item", ["query", "=query", "user_input=", ""])
def test_parse_column_map_refuses(item):
    with pytest.raises(UserError, match="column=yours"):
        parse_column_map([item])


def test_parse_column_map_refuses_doubles_and_reversal():
    with pytest.raises(UserError, match="two columns for 'response'"):
        parse_column_map(["response=a", "response=b"])
    with pytest.raises(UserError, match="wrong way round"):
        parse_column_map(["query=user_input"])
