from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import datasets
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_judge.errors import UserError
from offline_judge.schema import Row, open_rows

datasets.disable_progress_bars()

RECORDS = [
    {
        "id": "a",
        "user_input": "Wann?\r\nGenau.",
        "response": 'She said "no", then\nleft.',
        "retrieved_contexts": ["first, chunk", "", 'it\'s "two"'],
        "reference": None,
        "reference_contexts": ["r"],
        "retrieved_context_ids": ["d1", "d2", "d3"],
        "reference_context_ids": [],
        "language": "de",
    },
    {
        "id": "b",
        "user_input": "교통비 영수증은 언제 첨부하나요?",
        "response": "10만원을 넘으면 첨부합니다. 😀\u2028",
        "retrieved_contexts": [],
        "reference": " ",
        "reference_contexts": None,
        "retrieved_context_ids": None,
        "reference_context_ids": ["7"],
        "language": None,
    },
]
ROWS = [
    Row(index=i, **{k: tuple(v) if isinstance(v, list) else v for k, v in record.items()})
    for i, record in enumerate(RECORDS)
]


def columns(records=RECORDS):
    return {name: [record[name] for record in records] for name in records[0]}


def write_csv(path, listed=json.dumps, delimiter=","):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(RECORDS[0])
        for record in RECORDS:
            writer.writerow([listed(v) if isinstance(v, list) else v for v in record.values()])
    return path


def write_text(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def json_lines(records=RECORDS):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def saved_pandas_csv(path):
    pd.DataFrame(RECORDS).to_csv(path)  # with the index: a column without a name
    return path


def saved_parquet(path):
    pd.DataFrame(RECORDS).to_parquet(path)
    return path


def saved_dataset(path, **options):
    datasets.Dataset.from_list(RECORDS).save_to_disk(str(path), **options)
    return path


SOURCES = {
    "jsonl": lambda d: write_text(d / "r.jsonl", json_lines()),
    "ndjson without a last line break": lambda d: write_text(d / "r.ndjson", json_lines().rstrip("\n")),
    "jsonl, CRLF, blank lines": lambda d: write_text(
        d / "r.jsonl", "\n" + json_lines().replace("\n", "\r\n\r\n")
    ),
    "jsonl, UTF-8 mark": lambda d: write_text(d / "r.jsonl", json_lines(), "utf-8-sig"),
    "jsonl, UTF-16": lambda d: write_text(d / "r.jsonl", json_lines(), "utf-16"),
    "jsonl, UTF-16 BE": lambda d: write_text(d / "r.jsonl", "\ufeff" + json_lines(), "utf-16-be"),
    "jsonl, UTF-32": lambda d: write_text(d / "R.JSONL", json_lines(), "utf-32"),
    "json list": lambda d: write_text(d / "r.json", json.dumps(RECORDS, indent=1)),
    "json data": lambda d: write_text(d / "r.json", json.dumps({"version": 1, "data": RECORDS})),
    "json columns": lambda d: write_text(d / "r.json", json.dumps(columns())),
    "csv with JSON lists": lambda d: write_csv(d / "r.csv"),
    "csv with Python lists": lambda d: write_csv(d / "r.csv", repr),
    "tsv": lambda d: write_csv(d / "r.tsv", delimiter="\t"),
    "csv from pandas": lambda d: saved_pandas_csv(d / "r.csv"),
    "parquet": lambda d: saved_parquet(d / "r.parquet"),
    "saved Dataset": lambda d: saved_dataset(d / "r"),
    "saved Dataset, two files": lambda d: saved_dataset(d / "r", num_shards=2),
    "DataFrame": lambda d: pd.DataFrame(RECORDS),
    "DataFrame read from csv": lambda d: pd.read_csv(saved_pandas_csv(d / "r.csv")),
    "DataFrame read from parquet": lambda d: pd.read_parquet(saved_parquet(d / "r.parquet")),
    "DataFrame, arrow types": lambda d: pd.read_parquet(
        saved_parquet(d / "r.parquet"), dtype_backend="pyarrow"
    ),
    "Dataset": lambda d: datasets.Dataset.from_list(RECORDS),
    "Dataset, numpy format": lambda d: datasets.Dataset.from_list(RECORDS).with_format("numpy"),
    "IterableDataset": lambda d: datasets.Dataset.from_list(RECORDS).to_iterable_dataset(),
    "list": lambda d: RECORDS,
    "tuple": lambda d: tuple(RECORDS),
    "dict of lists": lambda d: columns(),
    "generator": lambda d: (record for record in RECORDS),
    "map": lambda d: map(dict, RECORDS),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_rows_twice(kind, tmp_path):
    with open_rows(SOURCES[kind](tmp_path)) as source:
        assert source.n_rows is None
        assert list(source) == ROWS
        assert source.n_rows == 2
        assert list(source) == ROWS
        assert set(RECORDS[0]) <= {*source.columns}
        assert source.notes == ()
        with open_rows(RECORDS) as other:
            assert source.fingerprint() == other.fingerprint()


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_refuses_a_map_to_columns_that_it_lacks(kind, tmp_path):
    column_map = dict.fromkeys(RECORDS[0], "nowhere")
    with pytest.raises(UserError, match="no column 'nowhere'"):
        list(open_rows(SOURCES[kind](tmp_path), column_map))


@pytest.mark.parametrize("make", [pd.DataFrame, datasets.Dataset.from_dict, lambda c: c, "parquet", "arrow"])
def test_data_of_unknown_columns_alone_has_rows(make, tmp_path):
    data = {"x": [1, 2, 3]}
    if make == "parquet":
        source = tmp_path / "x.parquet"
        pd.DataFrame(data).to_parquet(source)
    elif make == "arrow":
        source = tmp_path / "x"
        datasets.Dataset.from_dict(data).save_to_disk(str(source))
    else:
        source = make(data)
    assert [row.id for row in open_rows(source)] == ["row-000001", "row-000002", "row-000003"]


def test_name_is_the_stem(tmp_path):
    assert open_rows(str(SOURCES["jsonl"](tmp_path))).name == "r"
    assert open_rows(SOURCES["saved Dataset"](tmp_path)).name == "r"
    assert open_rows(RECORDS).name == "rows"


def test_fingerprint_changes_with_the_rows():
    prints = {
        open_rows(records).fingerprint()
        for records in (
            RECORDS,
            RECORDS[::-1],
            RECORDS[:1],
            [RECORDS[0], {**RECORDS[1], "response": "x"}],
            [RECORDS[0], {**RECORDS[1], "retrieved_contexts": None}],
            [RECORDS[0], {**RECORDS[1], "language": "ko"}],
        )
    }
    assert len(prints) == 6


def test_an_iterator_is_spooled_privately_and_deleted(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = open_rows(iter(RECORDS))
    assert list(tmp_path.iterdir()) == []
    first = iter(source)
    assert next(first) == ROWS[0]
    (spool,) = tmp_path.iterdir()
    assert stat.S_IMODE(spool.stat().st_mode) == 0o600
    assert list(source) == ROWS
    source.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="has been read already"):
        list(source)


def test_the_spool_goes_with_its_source_and_after_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = open_rows(iter(RECORDS))
    list(source)
    assert len(list(tmp_path.iterdir())) == 1
    del source
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="row 2"):
        list(open_rows(iter([RECORDS[0], 5])))
    assert list(tmp_path.iterdir()) == []


def test_rows_are_read_one_at_a_time(tmp_path):
    path = tmp_path / "big.jsonl"
    line = json.dumps({"question": "q" * 4000})
    path.write_text(f"{line}\n" * 5000)
    source = open_rows(path)
    tracemalloc.start()
    n_rows = sum(1 for _ in source)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_rows == source.n_rows == 5000
    assert peak_bytes < 2_000_000 < path.stat().st_size / 8


def test_a_large_cell_is_read(tmp_path):
    path = write_text(tmp_path / "r.csv", 'question\n"' + "x" * 300_000 + '"\n')
    assert [len(row.user_input) for row in open_rows(path)] == [300_000]


def test_an_empty_csv_cell_is_missing(tmp_path):
    path = write_text(tmp_path / "r.csv", 'question,answer,contexts\nq,,\n\nq,"",[]\n')
    rows = list(open_rows(path))
    assert [row.response for row in rows] == [None, None]
    assert [row.retrieved_contexts for row in rows] == [None, ()]


def test_nul_in_a_csv_is_replaced(tmp_path):
    source = open_rows(write_text(tmp_path / "r.csv", "question,answer\nq" + "x" * 50 + "\0,a\n"))
    assert [row.user_input for row in source] == ["q" + "x" * 50 + "\ufffd"]
    assert source.notes == ("question: 1 cell held NUL or half a surrogate pair, replaced by U+FFFD",)


# CSV has no other name for a null than the empty cell; what can't be encoded is tested above.
odd_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
records = st.lists(
    st.fixed_dictionaries({"question": odd_text, "answer": odd_text, "contexts": st.lists(odd_text)}),
    min_size=1,
)


@settings(max_examples=60, deadline=None)
@given(records=records)
def test_odd_text_through_csv_and_jsonl(records):
    with tempfile.TemporaryDirectory() as folder:
        lines, table = Path(folder, "r.jsonl"), Path(folder, "r.csv")
        write_text(lines, json_lines(records))
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerow(("question", "answer", "contexts"))
            writer.writerows((r["question"], r["answer"], json.dumps(r["contexts"])) for r in records)
        expected = [(r["question"], r["answer"], tuple(r["contexts"])) for r in records]
        got = [(row.user_input, row.response, row.retrieved_contexts) for row in open_rows(lines)]
        assert got == expected
        got = [(row.user_input, row.response, row.retrieved_contexts) for row in open_rows(table)]
        assert got == [(q or None, a or None, c) for q, a, c in expected]


def test_import_is_light():
    code = (
        "import sys, offline_judge.schema\n"
        "print(*{'numpy', 'pyarrow', 'pandas', 'datasets', 'torch'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == ""
