from __future__ import annotations

import pytest

from offline_judge.errors import UserError
from offline_judge.schema import check, open_rows

NEEDS = {
    "faithfulness": ("user_input", "response", "retrieved_contexts"),
    "context_recall": ("user_input", "retrieved_contexts", "reference"),
}


def test_every_row_is_looked_at():
    full = {"question": "q", "answer": "a", "contexts": ["c"], "ground_truth": "t"}
    records = [full, {**full, "ground_truth": None}, full, {**full, "contexts": None, "ground_truth": None}]
    records += [{**full, "ground_truth": None}] * 3 + [{**full, "answer": "", "contexts": []}]
    coverage = check(open_rows(records), NEEDS, requested=True)
    assert coverage.n_rows == 8
    assert coverage.table() == [
        ("faithfulness", "7 of 8", "retrieved_contexts missing in 1: row-000004"),
        (
            "context_recall",
            "3 of 8",
            "retrieved_contexts missing in 1: row-000004; "
            "reference missing in 5: row-000002, row-000004, row-000005, …",
        ),
    ]
    recall = coverage.metrics[1]
    assert [(gap.column, gap.n_rows) for gap in recall.gaps] == [("retrieved_contexts", 1), ("reference", 5)]
    assert coverage.stopped() == ()
    coverage.raise_if_stopped()


def test_the_whole_data_is_read_once():
    reads = []
    records = (reads.append(i) or {"question": "q"} for i in range(5))
    check(open_rows(records), NEEDS, requested=False)
    assert reads == [0, 1, 2, 3, 4]


def test_a_requested_metric_that_no_row_can_score():
    records = [{"question": "q", "answer": "a", "contexts": [], "refrence": "t"}] * 2
    coverage = check(open_rows(records), NEEDS, requested=True)
    assert coverage.table()[1][1:] == ("0 of 2", "reference missing in every row")
    assert coverage.stopped() == ("context_recall",)
    with pytest.raises(UserError, match="1 metric can't be scored for any of 2 rows") as caught:
        coverage.raise_if_stopped()
    assert caught.value.details == {
        "context_recall": "no row has reference",
        "data has": "question, answer, contexts, refrence",
        "to fix": "--map reference=refrence, or leave out context_recall",
    }


def test_a_metric_of_the_default_set_may_be_left_out_but_not_all():
    records = [{"question": "q", "answer": "a", "contexts": []}]
    check(open_rows(records), NEEDS, requested=False).raise_if_stopped()
    with pytest.raises(UserError, match="2 metrics can't be scored") as caught:
        check(open_rows([{"query": "q"}]), NEEDS, requested=False).raise_if_stopped()
    assert caught.value.details["faithfulness"] == "no row has user_input or response or retrieved_contexts"
    assert caught.value.details["data has"] == "query"
    assert "--map reference=YOUR_COLUMN" in caught.value.details["to fix"]


def test_columns_that_never_meet_in_one_row():
    records = [{"question": "q", "answer": "a"}, {"question": "q", "contexts": ["c"]}]
    coverage = check(list(open_rows(records)), {"faithfulness": NEEDS["faithfulness"]}, requested=True)
    assert coverage.columns == ("user_input", "response", "retrieved_contexts")
    with pytest.raises(UserError) as caught:
        coverage.raise_if_stopped()
    assert (
        caught.value.details["faithfulness"] == "no row has all of user_input, response, retrieved_contexts"
    )
    assert caught.value.details["to fix"] == "leave out faithfulness"


@pytest.mark.parametrize("source", [[], {}, {"question": []}, iter(())])
def test_no_rows(source):
    with pytest.raises(UserError, match="there are no rows"):
        check(open_rows(source), NEEDS, requested=True)


def test_a_header_alone_has_no_rows(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("question,answer\n")
    with pytest.raises(UserError, match="there are no rows"):
        check(open_rows(path), NEEDS, requested=True)


def test_what_reading_raises_comes_through():
    with pytest.raises(UserError, match="row 2, column 'answer'"):
        check(open_rows([{"answer": "a"}, {"answer": 3}]), NEEDS, requested=True)
