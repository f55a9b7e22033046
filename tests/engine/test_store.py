from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import time

import pytest

from offline_judge import UserError
from offline_judge.engine.store import Store, key_of
from offline_judge.engine.store_contents import contents, prune


def keys(n):
    return [key_of(str(number)) for number in range(n)]


def fill(path, n, model="m", fingerprint="f", **settings):
    store = Store(path, **settings)
    for number, key in enumerate(keys(n)):
        store.put(key, {"n": number, "by": model}, store.origin(model, fingerprint))
    store.close()


def found(path, n):
    store = Store(path)
    try:
        return store.get(keys(n))
    finally:
        store.close()


def test_what_was_put_is_found_again_in_a_new_process(tmp_path):
    store = Store(tmp_path / "deep" / "answers.sqlite")
    store.put(key_of("a"), {"text": "한국어 \ud800", "p": [0.25]}, 1)
    store.close()
    assert Store(tmp_path / "deep" / "answers.sqlite").get([key_of("a"), key_of("b")]) == {
        key_of("a"): {"text": "한국어 \ud800", "p": [0.25]}
    }


def test_keys_of_different_parts_differ():
    keys = {
        key_of(*parts) for parts in [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("1:a",)]
    }
    assert len(keys) == 6


def test_many_keys_are_looked_up_at_once():
    store = Store(None)
    for n, key in enumerate(keys(5000)):
        store.put(key, {"n": n}, 1)
    store.flush()
    assert len(store.get(key_of(str(n)) for n in range(0, 10000, 2))) == 2500


# Killed, shared, full ---------------------------------------------------------------------------


def python(code, **settings):
    return subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=600, **settings
    )


def test_an_answer_is_on_disk_while_the_judge_is_slow_over_the_next(tmp_path):
    # Answers 2 and 3 come within the time that a commit may wait; then nothing more is put.
    code = f"""
import os, signal, time
from pathlib import Path
from offline_judge.engine.store import Store, key_of
store = Store(Path({str(tmp_path / "s.sqlite")!r}))
for n in range(3):
    store.put(key_of(str(n)), {{"n": n}}, 1)
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert python(code).returncode == -9
    assert len(found(tmp_path / "s.sqlite", 3)) == 3


def test_two_stores_share_a_file(tmp_path):
    one, two = Store(tmp_path / "s"), Store(tmp_path / "s")
    for n, key in enumerate(keys(100)):
        (one if n % 2 else two).put(key, {"n": n}, 1)
        (one if n % 3 else two).flush()
    one.flush()
    two.flush()
    assert len(one.get(keys(100))) == 100


FULL = """
import json, sys
from pathlib import Path
from offline_judge import UserError
from offline_judge.engine.store import Store, key_of
{limit}
store = Store(Path({path!r}))
n_known = 0
try:
    for n in range(20_000):
        store.put(key_of(str(n)), {{"n": n, "text": "x" * 300}}, 1)
        store.flush()
        n_known = n + 1
except UserError as error:
    print(json.dumps([n_known, str(error)]))
store.close()
"""


def check_full(done, path):
    assert done.returncode == 0, done.stderr
    n_known, message = json.loads(done.stdout)
    assert message.startswith("the answer store can't be written")
    assert "give the same command again" in message or "--store" in message
    assert n_known > 100
    assert len(found(path, n_known)) == n_known


def test_a_limit_of_file_size_stops_with_one_error_and_loses_nothing(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))"
    done = python(FULL.format(limit=limit, path=str(tmp_path / "s.sqlite")))
    check_full(done, tmp_path / "s.sqlite")


def test_a_full_disk_stops_with_one_error_and_loses_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        done = python(FULL.format(limit="", path=str(disk / "s.sqlite")))
        assert "full" in done.stdout
        check_full(done, disk / "s.sqlite")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_files_and_folders_are_private(tmp_path):
    before = os.umask(0)
    try:
        store = Store(tmp_path / "a" / "b" / "s.sqlite")
        store.put(key_of("a"), {}, 1)
        store.flush()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("s.sqlite*")} == {0o600}
    assert len(list((tmp_path / "a").rglob("s.sqlite*"))) == 3  # the journal and its index too
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# Damaged and foreign files ----------------------------------------------------------------------


def other_data_base(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE customers (name TEXT)")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("not a data base, and longer than a header " * 50),
        lambda path: path.write_bytes(path.read_bytes()[:16] + os.urandom(len(path.read_bytes()) - 16)),
        lambda path: path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2]),
        lambda path: (path.unlink(), other_data_base(path)),
    ],
    ids=["text", "noise", "half", "another program's"],
)
def test_a_file_that_is_no_sound_store_is_set_aside(tmp_path, caplog, spoil):
    path = tmp_path / "s.sqlite"
    fill(path, 2000)
    spoil(path)
    spoilt = path.read_bytes()
    store = Store(path)
    known = store.get(keys(2000))
    for number, key in enumerate(keys(2000)):
        if key not in known:
            store.put(key, {"n": number}, store.origin("m", "f"))
    store.close()
    assert len(found(path, 2000)) == 2000
    (aside,) = [one for one in tmp_path.glob("s.sqlite.damaged-1*") if one.suffix == ".damaged-1"]
    assert aside.read_bytes() == spoilt
    assert len(caplog.records) == 1
    assert "set aside as s.sqlite.damaged-1" in caplog.text
    assert contents(path).set_aside == (aside,)


def test_damage_that_shows_in_a_later_page_is_met_while_running(tmp_path, caplog):
    path = tmp_path / "s.sqlite"
    fill(path, 20_000)
    bytes_ = bytearray(path.read_bytes())
    bytes_[40_960:] = os.urandom(len(bytes_) - 40_960)
    path.write_bytes(bytes_)
    store = Store(path)  # the first pages are sound
    assert caplog.records == []
    assert len(store.get(keys(20_000))) < 20_000
    store.put(key_of("new"), {"n": 1}, store.origin("m", "f"))
    store.close()
    assert len(caplog.records) == 1
    assert Store(path).get([key_of("new")]) == {key_of("new"): {"n": 1}}


def test_an_answer_whose_text_is_spoilt_is_asked_again(tmp_path):
    path = tmp_path / "s.sqlite"
    fill(path, 1)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE answers SET answer = CAST(X'7B22FF' AS TEXT)")
    assert found(path, 1) == {}


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path):
    fill(tmp_path / "s", 1)
    with sqlite3.connect(tmp_path / "s") as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(UserError, match="newer version"):
        Store(tmp_path / "s")
    assert not list(tmp_path.glob("*damaged*"))


def test_a_store_of_the_first_format_is_taken_over(tmp_path):
    path = tmp_path / "s"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID")
        db.executemany("INSERT INTO answers VALUES (?, ?)", [(key, '{"p":[0.5]}') for key in keys(1000)])
        db.execute("PRAGMA user_version=1")
    assert found(path, 1000) == {key: {"p": [0.5]} for key in keys(1000)}
    assert contents(path).n_answers == 1000


# Fresh, contents, pruning -----------------------------------------------------------------------


def test_a_fresh_store_finds_its_own_answers_alone_and_replaces_the_others(tmp_path):
    path = tmp_path / "s"
    fill(path, 10, model="old")
    store = Store(path, fresh=True)
    assert store.get(keys(10)) == {}
    store.put(keys(10)[3], {"n": 3, "by": "new"}, store.origin("old", "f"))
    store.flush()
    assert store.get(keys(10)) == {keys(10)[3]: {"n": 3, "by": "new"}}
    store.close()
    assert [answer["by"] for _, answer in sorted(found(path, 10).items(), key=lambda item: item[1]["n"])] == [
        "new" if n == 3 else "old" for n in range(10)
    ]


def test_contents_by_model(tmp_path):
    path = tmp_path / "s"
    fill(path, 10, "a", "1" * 64)
    store = Store(path)
    for key in range(30):
        store.put(key_of("b", str(key)), {"n": key}, store.origin("b", "2" * 64))
    store.close()
    found = contents(path)
    assert [(one.model, one.n_answers) for one in found.models] == [("b", 30), ("a", 10)]
    assert found.n_answers == 40
    assert found.problem == ""
    assert found.n_bytes == path.stat().st_size
    assert abs(found.models[0].first - time.time()) < 100


def test_pruning_by_model_age_and_size(tmp_path):
    path = tmp_path / "s"
    fill(path, 100, "a", "1" * 64)
    store = Store(path)
    for key in range(5000):
        store.put(key_of("b", str(key)), {"text": "x" * 200}, store.origin("b", "2" * 64))
    store.close()
    assert prune(path, model="nobody") == 0
    assert prune(path, model="1") == 0  # too short for a fingerprint
    assert prune(path, model="11111111") == 100
    assert prune(path, older_than_s=3600) == 0
    before = path.stat().st_size
    n = prune(path, max_bytes=before // 2)
    assert 0.4 * 5000 < n < 0.6 * 5000
    assert before * 0.4 < path.stat().st_size <= before // 2
    kept = Store(path).get(key_of("b", str(key)) for key in range(5000))
    assert set(kept) == {key_of("b", str(key)) for key in range(n, 5000)}  # the oldest are gone
    with sqlite3.connect(path) as db:
        db.execute("UPDATE origins SET started = started - 7200")
    assert prune(path, older_than_s=3600) == 5000 - n
    assert contents(path).models == ()


def test_pruning_under_a_running_store(tmp_path):
    path = tmp_path / "s"
    store = Store(path)
    for key in keys(1000):
        store.put(key, {}, store.origin("m", "f"))
    store.flush()
    assert prune(path, model="m") == 1000
    assert store.get(keys(1000)) == {}
    store.put(keys(1)[0], {"n": 1}, store.origin("m", "f"))
    store.close()
    assert contents(path).models[0].n_answers == 1


def test_there_is_nothing_to_prune_where_there_is_no_store(tmp_path):
    with pytest.raises(UserError, match="no answer store"):
        prune(tmp_path / "none", model="m")
    assert not (tmp_path / "none").exists()
    (tmp_path / "notes").write_text("nothing of ours " * 100)
    with pytest.raises(UserError, match="can't be read"):
        contents(tmp_path / "notes")
