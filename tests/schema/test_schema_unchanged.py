"""A file that changes while it is read: one error, whatever else it looks like by then."""

from __future__ import annotations

import json
import os

import datasets
import pandas as pd
import pytest

from offline_judge.errors import UserError
from offline_judge.schema import open_rows, source

datasets.disable_progress_bars()

CANARY = "canary-7f3a"
LINE = json.dumps({"question": CANARY}) + "\n"


def append(path, text):
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(LINE * 3)
    return path


@pytest.mark.parametrize("more", [LINE, '{"question": "cut o'])
def test_a_file_that_grows_while_it_is_read(path, more, monkeypatch):
    rows = iter(open_rows(path))
    next(rows)
    append(path, more)
    with pytest.raises(UserError, match="changed while it was read") as caught:
        list(rows)
    assert caught.value.details["found"].startswith(f"{3 * len(LINE)} bytes at first, ")
    assert "a copy" in caught.value.details["to fix"]
    assert CANARY not in str(caught.value)


def test_a_file_that_grows_without_end_is_not_waited_for(path, monkeypatch):
    monkeypatch.setattr(source, "_ROWS_PER_LOOK", 10)
    n_read = 0
    with pytest.raises(UserError, match="changed while it was read"):
        for _ in open_rows(path):
            n_read += 1
            append(path, LINE)  # faster than it is read
            assert n_read < 1000


def test_a_file_that_grows_between_two_passes(path):
    rows = open_rows(path)
    assert len(list(rows)) == 3
    append(path, LINE)
    with pytest.raises(UserError, match="changed while it was read"):
        rows.fingerprint()


def test_a_file_written_anew_with_the_same_length(path):
    rows = open_rows(path)
    list(rows)
    path.write_text(LINE.replace("7f3a", "7f3b") * 3)
    os.utime(path, ns=(1, 1))
    with pytest.raises(UserError, match="changed while it was read") as caught:
        list(rows)
    assert "written anew" in caught.value.details["found"]


def test_a_file_that_is_gone(path):
    rows = open_rows(path)
    list(rows)
    path.unlink()
    with pytest.raises(UserError, match="changed while it was read") as caught:
        list(rows)
    assert "No such file" in caught.value.details["found"]


@pytest.mark.parametrize("kind", ["json", "csv", "parquet", "folder"])
def test_every_kind_of_file_is_watched(kind, tmp_path):
    path = tmp_path / f"r.{kind}"
    frame = pd.DataFrame({"question": [CANARY] * 3})
    if kind == "json":
        frame.to_json(path, orient="records")
    elif kind == "csv":
        frame.to_csv(path)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        datasets.Dataset.from_pandas(frame).save_to_disk(str(path))
    rows = open_rows(path)
    assert len(list(rows)) == 3
    (changed,) = path.glob("*.arrow") if path.is_dir() else [path]
    changed.write_bytes(changed.read_bytes()[:-9])
    with pytest.raises(UserError, match="changed while it was read"):
        list(rows)
