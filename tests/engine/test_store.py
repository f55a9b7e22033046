from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from offline_judge import UserError
from offline_judge.engine.store import Store, key_of


def test_what_was_put_is_found_again_in_a_new_process(tmp_path):
    store = Store(tmp_path / "deep" / "answers.sqlite")
    store.put(key_of("a"), {"text": "한국어 \ud800", "p": [0.25]})
    store.close()
    assert Store(tmp_path / "deep" / "answers.sqlite").get([key_of("a"), key_of("b")]) == {
        key_of("a"): {"text": "한국어 \ud800", "p": [0.25]}
    }


def test_keys_of_different_parts_differ():
    keys = {
        key_of(*parts) for parts in [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("1:a",)]
    }
    assert len(keys) == 6


def test_many_keys_are_looked_up_at_once(tmp_path):
    store = Store(None)
    for n in range(5000):
        store.put(key_of(str(n)), {"n": n})
    store.flush()
    assert len(store.get(key_of(str(n)) for n in range(0, 10000, 2))) == 2500


def test_a_process_that_is_killed_loses_nothing_it_was_slow_over(tmp_path):
    code = f"""
import os, signal, time
from pathlib import Path
from offline_judge.engine.store import Store, key_of
store = Store(Path({str(tmp_path / "s.sqlite")!r}))
for n in range(5):
    time.sleep(0.06)
    store.put(key_of(str(n)), {{"n": n}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(Store(tmp_path / "s.sqlite").get(key_of(str(n)) for n in range(5))) == 5


def test_two_stores_share_a_file(tmp_path):
    one, two = Store(tmp_path / "s"), Store(tmp_path / "s")
    for n in range(100):
        (one if n % 2 else two).put(key_of(str(n)), {"n": n})
        (one if n % 3 else two).flush()
    one.flush()
    two.flush()
    assert len(one.get(key_of(str(n)) for n in range(100))) == 100


def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a data base, and longer than a header " * 50)
    with pytest.raises(UserError, match="answer store"):
        Store(path)
    assert path.read_text().startswith("not a data base")


def test_a_store_of_another_format_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "s") as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(UserError, match="another version"):
        Store(tmp_path / "s")
