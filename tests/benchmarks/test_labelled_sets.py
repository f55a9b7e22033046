import json
import random

import labelled_sets as sets
import pytest

from offline_judge import UserError


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def q2(tmp_path):
    rows = [
        {"knowledge": f"k{n // 3}", "message": "m", "response": f"r{n}", "consistent": n % 2 == 0}
        for n in range(30)
    ]
    write(tmp_path / "q2_wow" / "q2.jsonl", rows)
    return tmp_path


def test_a_sample_is_whole_groups_and_grows_with_n(q2):
    small = sets.load(sets.q2_wow, q2, sets.Sample(6, 0))
    large = sets.load(sets.q2_wow, q2, sets.Sample(15, 0))
    assert len(small) == 6 and len(large) == 15
    assert large[:6] == small
    assert all(sum(row.group == one.group for row in small) == 3 for one in small)
    assert sets.load(sets.q2_wow, q2, sets.Sample(6, 1)) != small
    assert len(sets.load(sets.q2_wow, q2, sets.Sample(6, 0), per_group=1)) == 6


def test_a_sample_of_single_rows_is_the_first_of_all_of_them_shuffled(q2):
    rows = list(sets.q2_wow(q2))
    random.Random(3).shuffle(rows)
    assert sets.load(sets.q2_wow, q2, sets.Sample(7, 3, single_rows=True)) == rows[:7]


def test_halves_share_no_group(q2):
    rows = sets.load(sets.q2_wow, q2, sets.Sample(30, 0))
    first, second = sets.halves(rows, lambda row: row.group, seed=0)
    assert sorted(first + second) == list(range(30))
    assert not {rows[n].group for n in first} & {rows[n].group for n in second}


def test_the_stray_quote_of_poor_answers_is_taken_off(tmp_path):
    write(tmp_path / "wikieval" / "wikieval.jsonl", [{"poor_answer": "It's not known.' "}])
    assert sets.wikieval(tmp_path)[0]["poor_answer"] == "It's not known."


def test_the_two_people_of_a_pair_become_one_row(tmp_path):
    rating = {
        "instance_id": 3,
        "query": "q",
        "gt_answer": "g",
        "model1": {"response": "a"},
        "model2": {"response": "b"},
    }
    rows = [rating | {"overall_label": 2}, rating | {"overall_label": -1}]
    write(tmp_path / "ragchecker_meta" / "human_labeled.jsonl", rows)
    (row,) = sets.ragchecker_meta(tmp_path)
    assert (row.label, row.ratings["preference"], row.response, row.other) == (0.5, [2, -1], "a", "b")


def test_a_missing_set_names_the_file_and_the_option(tmp_path):
    with pytest.raises(UserError, match="set wice") as error:
        sets.load(sets.wice, tmp_path, sets.Sample(5, 0))
    assert "--data-folder" in error.value.details["to fix"]
