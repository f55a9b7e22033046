from __future__ import annotations

import json
from itertools import pairwise

from offline_judge.examples import ROWS
from offline_judge.text.language import language_of
from offline_judge.text.sentences import split_sentences

COLUMNS = {"id", "user_input", "response", "retrieved_contexts", "reference"}
EXAMPLES = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def test_every_row_has_every_column_and_is_short() -> None:
    assert len(EXAMPLES) >= 10
    for row in EXAMPLES:
        assert set(row) == COLUMNS
        assert 2 <= len(row["retrieved_contexts"]) <= 3
        for text in (row["user_input"], row["response"], row["reference"], *row["retrieved_contexts"]):
            assert 1 <= len(split_sentences(text)) <= 3
            assert language_of(text) == row["id"].partition("-")[0]


def test_half_are_korean_and_half_english() -> None:
    languages = [row["id"].partition("-")[0] for row in EXAMPLES]
    assert languages.count("ko") == languages.count("en") == len(EXAMPLES) / 2


def test_each_good_answer_is_followed_by_its_bad_one() -> None:
    assert len({row["id"] for row in EXAMPLES}) == len(EXAMPLES)
    for good, bad in list(pairwise(EXAMPLES))[::2]:
        assert good["id"].removesuffix("-good") == bad["id"].removesuffix("-bad")
        assert good["response"] != bad["response"]
        assert {**good, "id": "", "response": ""} == {**bad, "id": "", "response": ""}
