from __future__ import annotations

import json
import os
import re

import datasets
import numpy as np
import pandas as pd
import pytest

from offline_judge.errors import UserError
from offline_judge.schema import check, open_rows

datasets.disable_progress_bars()

CANARY = "canary-7f3a"
GOOD = json.dumps({"id": "g", "question": CANARY, "answer": CANARY})
BAD_TYPE = json.dumps({"id": "b", "question": CANARY, "answer": {CANARY: CANARY}})

# file name, content, what the message says after the path
BAD_FILES = {
    "broken JSON": (
        "r.jsonl",
        f'{GOOD}\n\n{{"question": "{CANARY}" oops}}\n',
        ", line 3, column 28: broken JSON",
    ),
    "cut off JSON": ("r.jsonl", f'{GOOD}\n{{"question":\n', ", line 2, column 13: broken JSON"),
    "open string": ("r.jsonl", f'{GOOD}\n{{"question": "{CANARY}\n', ", line 2, column 14: broken JSON"),
    "nested too deeply": ("r.jsonl", f"{GOOD}\n{'[' * 200_000}", ", line 2: broken JSON"),
    "huge number": ("r.jsonl", f'{GOOD}\n{{"n": {"9" * 5000}}}', ", line 2: broken JSON"),
    "a JSON list named .jsonl": ("r.jsonl", f"[\n{GOOD}\n]", ", line 1, column 2: broken JSON"),
    "row is a list": ("r.jsonl", f'{GOOD}\n["{CANARY}"]\n', ", line 2: a list (list) where a row belongs"),
    "row is text": ("r.jsonl", f'"{CANARY}"\n', ", line 1: text (str) where a row belongs"),
    "row is null": ("r.jsonl", f"{GOOD}\nnull\n", ", line 2: a value (null) where a row belongs"),
    "wrong type": (
        "r.jsonl",
        f"\n{GOOD}\n{BAD_TYPE}\n",
        ", line 3, column 'answer': an object (dict) where text",
    ),
    "same id": (
        "r.jsonl",
        f'{GOOD}\n\n{{"id": "b"}}\n{GOOD}\n',
        ": the id 'g' stands twice",
    ),
    "a name twice": (
        "r.jsonl",
        f'{GOOD}\n{{"answer": "{CANARY}", "answer": "b"}}\n',
        ", line 2, column 'answer': the name stands twice",
    ),
    ".json, a name twice": (
        "r.json",
        f'[{GOOD}, {{"answer": "{CANARY}", "x": {{"y": 1, "y": 2}}, "answer": "b"}}]',
        ", row 2, column 'answer': the name stands twice",
    ),
    ".json, a column twice": (
        "r.json",
        f'{{"answer": ["{CANARY}"], "answer": ["b"]}}',
        ": the name 'answer' stands twice",
    ),
    "not UTF-8": (
        "r.jsonl",
        f'{GOOD}\n{{"a": "é{CANARY}'.encode() + b'\xff"}\n',
        ", line 2, column 20: not valid UTF-8",
    ),
    "broken UTF-16": ("r.jsonl", b"\xff\xfe" + GOOD.encode("utf-16-le") + b"\0\xd8{\0", ": not valid UTF-16"),
    "UTF-16 without a mark": ("r.jsonl", GOOD.encode("utf-16-le"), " is not a text file"),
    "binary": ("r.csv", b"PK\x03\x04\0\0\xff\xfe" + CANARY.encode(), " is not a text file"),
    "empty": ("r.jsonl", "", " is empty"),
    "blank": ("r.jsonl", " \n\n", " is empty"),
    "mark alone": ("r.csv", b"\xef\xbb\xbf", " is empty"),
    "empty JSON": ("r.json", "", " is empty"),
    "empty Parquet": ("r.parquet", "", " is empty"),
    "no Parquet": ("r.parquet", f"question\n{CANARY}", " is not a Parquet file, or damaged"),
    "cut Parquet": ("r.parquet", f"PAR1{CANARY}PAR1", " is not a Parquet file, or damaged"),
    "broken .json": (
        "r.json",
        f'[{{"question": "{CANARY}"}},\n {{"a" 1}}]',
        ", line 2, column 7: broken JSON",
    ),
    ".json of lines": ("r.json", f"{GOOD}\n{GOOD}\n", ", line 2, column 1: broken JSON"),
    ".json of one row": ("r.json", GOOD, ": an object (dict) that holds no rows"),
    ".json of text": ("r.json", f'"{CANARY}"', ": text (str) that holds no rows"),
    ".json by pandas": (
        "r.json",
        f'{{"question": {{"0": "{CANARY}"}}}}',
        ": an object (dict) that holds no rows",
    ),
    ".json, bad cell": (
        "r.json",
        f"[{GOOD}, {BAD_TYPE}]",
        ", row 2, column 'answer': an object (dict) where",
    ),
    ".json, unequal": (
        "r.json",
        f'{{"question": ["{CANARY}", "b"], "answer": ["c"]}}',
        ": the columns are not equally",
    ),
    "lost quote": ("r.csv", f'question,answer\na,b\n"{CANARY},d\n"e",f\n', ", line 3: broken CSV"),
    "quote never ends": ("r.csv", f'question,answer\na,"b\nc"\nd,"{CANARY}\n', ", line 4: broken CSV"),
    "text after a quote": ("r.csv", f'question\n"a" {CANARY}\n', ", line 2: broken CSV"),
    "too many fields": (
        "r.csv",
        f"question,answer\na,b\n{CANARY},c,d\n",
        ", line 3: 3 fields under a header of 2",
    ),
    "too few fields": ("r.tsv", f"question\tanswer\n\n{CANARY}\n", ", line 3: 1 fields under a header of 2"),
    "same header": ("r.csv", f"question,question\n{CANARY},b\n", ": two columns are named 'question'"),
    "no header, unequal": (
        "r.json",
        f'{{"What is {CANARY}?": ["a"], "b": []}}',
        ": the columns are not equally",
    ),
    "no header, twice": (
        "r.csv",
        f'"{CANARY}, he said.","{CANARY}, he said."\na,b\n',
        ": two columns are named '(21 characters)'",
    ),
    "semicolons": ("r.csv", f"question;answer\n{CANARY};b\n", ": the header has one field"),
    "csv, same id": (
        "r.csv",
        f"id,answer\nx,{CANARY}\ny,b\nx,c\n",
        ": the id 'x' stands twice in column 'id'",
    ),
    "no such kind": ("r.xlsx", f"PK{CANARY}", ": rows can't be read from a file with the ending '.xlsx'"),
    "no ending": ("rows", CANARY, ": rows can't be read from a file with the ending ''"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file(case, tmp_path):
    name, content, expected = BAD_FILES[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        list(open_rows(path))
    assert caught.value.message.startswith(f"{path}{expected}")
    assert caught.value.details
    assert CANARY not in str(caught.value)


def test_duplicate_id_names_both_lines_and_is_cut(tmp_path):
    path = tmp_path / "r.jsonl"
    row_id = "x" * 70
    path.write_text(
        f'{{"id": "a"}}\n{{"_id": "{row_id}"}}\n'.replace('"id"', '"_id"') + f'\n{{"_id": "{row_id}"}}\n'
    )
    with pytest.raises(UserError, match=f"the id '{'x' * 60}…' stands twice in column '_id'") as caught:
        list(open_rows(path))
    assert caught.value.details["found"] == "lines 2 and 4"


def test_an_id_that_reads_like_a_sentence_is_counted_not_quoted(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(f"{GOOD}\n".replace("canary-7f3a", "The depot, near canary-7f3a, is closed.") * 2)
    with pytest.raises(UserError, match=re.escape("the id '(39 characters)' stands twice")) as caught:
        list(open_rows(path, {"id": "answer"}))
    assert CANARY not in str(caught.value)


def test_a_file_without_a_header_does_not_show_its_first_row(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(f'"Where is the depot of {CANARY}?","In {CANARY}, I think."\na,b\n')
    with pytest.raises(UserError) as caught:
        check(
            open_rows(path), {"faithfulness": ("user_input", "response")}, requested=True
        ).raise_if_stopped()
    assert caught.value.details["data has"] == "(34 characters), (24 characters)"


def test_duplicate_id_from_an_iterator():
    with pytest.raises(UserError, match="the id '1' stands twice") as caught:
        list(open_rows({"id": i % 3} for i in range(1, 9)))
    assert caught.value.details["found"] == "rows 1 and 4"


def test_an_error_is_raised_where_it_stands(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(f"{GOOD}\n{BAD_TYPE}\nnot json\n")
    rows = iter(open_rows(path))
    assert next(rows).id == "g"
    with pytest.raises(UserError, match="line 2, column 'answer'"):
        next(rows)


def test_hint_for_a_list_named_jsonl(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(f"[\n{GOOD}\n]")
    with pytest.raises(UserError) as caught:
        list(open_rows(path))
    assert "name it .json" in caught.value.details["or"]


def test_no_such_file_suggests_near_names(tmp_path):
    (tmp_path / "questions.jsonl").write_text(GOOD)
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(
        UserError, match=re.escape(f"there is no file {tmp_path / 'question.jsonl'}")
    ) as caught:
        open_rows(tmp_path / "question.jsonl")
    assert caught.value.details["similar"] == "questions.jsonl"
    with pytest.raises(UserError, match="there is no file") as caught:
        open_rows(tmp_path / "nowhere" / "questions.jsonl")
    assert "folder does not exist" in caught.value.details["found"]


@pytest.mark.parametrize("text", [f"[{GOOD}]", GOOD, GOOD + "\n" + GOOD, f"[{GOOD}]" * 500])
def test_data_in_place_of_a_path_is_not_quoted(text):
    with pytest.raises(UserError, match="data in place of a path") as caught:
        open_rows(text)
    assert CANARY not in str(caught.value)


def test_a_folder_that_is_no_data_set(tmp_path):
    with pytest.raises(UserError, match="a folder without a saved data set") as caught:
        open_rows(tmp_path)
    assert caught.value.details["looked for"] == str(tmp_path / "state.json")


def test_a_folder_of_splits_names_them(tmp_path):
    split = datasets.Dataset.from_list([{"question": CANARY}])
    data = datasets.DatasetDict(train=split, test=split)
    data.save_to_disk(str(tmp_path / "d"))
    with pytest.raises(UserError, match="holds 2 data sets") as caught:
        open_rows(tmp_path / "d")
    fix = caught.value.details["to fix"]
    assert fix == f"choose one: {tmp_path / 'd' / 'train'}, {tmp_path / 'd' / 'test'}"
    assert [row.user_input for row in open_rows(tmp_path / "d" / "test")] == [CANARY]
    with pytest.raises(UserError, match="a DatasetDict holds 2 data sets") as caught:
        open_rows(data)
    assert "data['train'], data['test']" in caught.value.details["to fix"]


def test_a_damaged_saved_data_set(tmp_path):
    folder = tmp_path / "d"
    datasets.Dataset.from_list([{"question": CANARY}]).save_to_disk(str(folder))
    (file,) = folder.glob("*.arrow")
    file.write_bytes(b"\xff" * 100)
    with pytest.raises(UserError, match=re.escape(f"{file} is not an Arrow stream, or damaged")):
        list(open_rows(folder))
    file.unlink()
    with pytest.raises(UserError, match="data files are missing"):
        open_rows(folder)
    for damage in (
        "{",
        "[]",
        "{}",
        '{"_data_files": 5}',
        '{"_data_files": [{"filename": "../x"}]}',
        "[" * 9999,
    ):
        (folder / "state.json").write_text(damage)
        with pytest.raises(UserError, match=r"state\.json is damaged"):
            open_rows(folder)


def test_a_saved_data_set_whose_offsets_are_damaged(tmp_path):
    folder = tmp_path / "d"
    datasets.Dataset.from_list([{"question": CANARY * 50}] * 9).save_to_disk(str(folder))
    (file,) = folder.glob("*.arrow")
    whole = file.read_bytes()
    n_refused = 0
    for place in range(0, len(whole), 97):  # no damage may kill the process or show a traceback
        file.write_bytes(whole[:place] + b"\xff\x7f" + whole[place + 2 :])
        try:
            list(open_rows(folder))
        except UserError as error:
            n_refused += 1
            assert CANARY not in str(error)
    assert n_refused


def test_a_saved_data_set_of_files_with_other_columns(tmp_path):
    folder = tmp_path / "d"
    datasets.Dataset.from_list([{"question": CANARY}]).save_to_disk(str(folder))
    datasets.Dataset.from_list([{"x": CANARY}]).save_to_disk(str(tmp_path / "e"))
    (file,), (other,) = folder.glob("*.arrow"), (tmp_path / "e").glob("*.arrow")
    (folder / "other.arrow").write_bytes(other.read_bytes())
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": file.name}, {"filename": "other.arrow"}]})
    )
    with pytest.raises(UserError, match="is not an Arrow stream, or damaged"):
        list(open_rows(folder))


def test_parquet_of_a_date_that_python_cannot_hold(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    answers = pa.array([2**62], pa.timestamp("ms"))
    pq.write_table(pa.table({"question": [CANARY], "answer": answers}), tmp_path / "r.parquet")
    with pytest.raises(UserError, match="is not a Parquet file, or damaged"):
        list(open_rows(tmp_path / "r.parquet"))


@pytest.mark.parametrize("value", [np.float64(1), np.array(5)])
def test_a_number_in_place_of_a_column(value):
    with pytest.raises(UserError, match="not all lists"):
        open_rows({"question": value})


def test_bad_cells_of_frames_and_parquet(tmp_path):
    frame = pd.DataFrame({"question": [CANARY, CANARY], "answer": [CANARY, CANARY], "ground_truth": [1, 2]})
    with pytest.raises(UserError, match=r"^the DataFrame, row 1, column 'ground_truth': a number \(int\)"):
        list(open_rows(frame))
    frame.to_parquet(tmp_path / "r.parquet")
    with pytest.raises(UserError, match=r"r\.parquet, row 1, column 'ground_truth': a number \(int\)"):
        list(open_rows(tmp_path / "r.parquet"))
    with pytest.raises(UserError, match=r"^the Dataset, row 1, column 'ground_truth': a number \(int\)"):
        list(open_rows(datasets.Dataset.from_pandas(frame)))


def test_a_frame_with_two_columns_of_one_name():
    with pytest.raises(UserError, match="the DataFrame: two columns are named 'question'"):
        list(open_rows(pd.DataFrame([["a", "b"]], columns=["question", "question"])))


@pytest.mark.parametrize("source", [5, None, b"abc", object()])
def test_what_holds_no_rows(source):
    with pytest.raises(UserError, match="rows can't be read from a value of type") as caught:
        open_rows(source)
    assert "DataFrame" in caught.value.details["to fix"]


def test_a_single_row_in_place_of_a_list():
    with pytest.raises(UserError, match="not all lists") as caught:
        open_rows({"question": CANARY, "contexts": [CANARY]})
    assert CANARY not in str(caught.value)


def test_unequal_lists():
    with pytest.raises(UserError, match="the dict: the columns are not equally long") as caught:
        list(open_rows({"question": [CANARY], "answer": []}))
    assert caught.value.details["found"] == "question 1, answer 0"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "r.jsonl")
    with pytest.raises(UserError, match="not a regular file"):
        open_rows(tmp_path / "r.jsonl")
