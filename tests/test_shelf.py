from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from offline_judge.errors import UserError
from offline_judge.shelf import (
    LOCK_NAME,
    FolderSource,
    HubSource,
    Lock,
    PackageSource,
    Shelf,
    check_safe,
    default_root,
    fingerprint,
    lock_files,
    read_manifest,
    verify,
)

MANIFEST = """
name = "tiny"
role = "judge"
description = "a model of nothing"
licence = "Apache-2.0"
languages = ["en"]
parameters = 12
context_length = 64

[source]
kind = "hub"
repo = "someone/Tiny"
"""


def make_model(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def lock(folder: Path, **source: object) -> None:
    Lock(folder.name, source, {}, "2026-01-01T00:00:00+00:00", lock_files(folder)).write(folder)


def write_manifest(root: Path, text: str = MANIFEST, name: str = "tiny") -> Path:
    path = root / f"{name}.toml"
    path.write_text(text)
    return path


# Manifests


def test_manifest_is_read(tmp_path: Path) -> None:
    manifest = read_manifest(write_manifest(tmp_path))
    assert (manifest.name, manifest.role, manifest.languages) == ("tiny", "judge", ("en",))
    assert manifest.source == HubSource("someone/Tiny", "main")
    assert manifest.memory is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("licence =", "license =", "nearest  licence"),
        ("repo =", "repository =", "nearest  repo"),
        ('licence = "Apache-2.0"\n', "", "lacks the key 'licence'"),
        ("parameters = 12", 'parameters = "12"', "parameters must be a whole number"),
        ("parameters = 12", "parameters = true", "parameters must be a whole number"),
        ('["en"]', '"en"', "languages must be a list of texts"),
        ('"judge"', '"referee"', "role must be judge or embedder or verifier"),
        ('"hub"', '"cloud"', "needs a [source] table"),
        ('name = "tiny"', 'name = "huge"', "is of another model"),
        ("[source]", "memory = 3\n[source]", "memory must be a table"),
        ("[source]", "source]", "is not TOML"),
    ],
)
def test_a_wrong_manifest_names_what_is_wrong(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in MANIFEST
    path = write_manifest(tmp_path, MANIFEST.replace(old, new))
    with pytest.raises(UserError) as caught:
        read_manifest(path)
    assert said in str(caught.value)


def test_every_manifest_of_the_checkout_is_sound() -> None:
    manifests = Shelf(Path(__file__).parents[1] / "models").manifests()
    assert {"judge", "embedder"} <= {m.role for m in manifests.values()}
    for manifest in manifests.values():
        source = manifest.source
        assert not isinstance(source, FolderSource), "a path of one machine"
        if isinstance(source, PackageSource):
            assert all("==" in package for package in source.packages)
            assert all(len(sha256) == 64 and int(sha256, 16) for sha256 in source.files.values())
            assert all(member.startswith(source.prefix) for member in source.files)


# Fingerprints and locks


def test_fingerprint_by_hand(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    config, weights = (hashlib.sha256(content).hexdigest() for content in (b"{}", b"weights"))
    by_hand = hashlib.sha256(f"config.json\0{config}\nmodel.safetensors\0{weights}\n".encode()).hexdigest()
    assert fingerprint(folder) == by_hand
    lock(folder)
    assert fingerprint(folder) == by_hand


def test_documents_and_hidden_files_do_not_count(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    before = fingerprint(folder)
    for name in ("README.md", "LICENSE", ".gitattributes", ".cache/note.json", LOCK_NAME):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('{"name": "", "source": {}, "packages": {}, "added_at": "", "files": {}}')
    assert fingerprint(folder) == before
    (folder / "sub").mkdir()
    (folder / "sub" / "tokenizer.json").write_text("{}")
    assert fingerprint(folder) != before


def test_fingerprint_trusts_the_lock_only_while_size_and_mtime_agree(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    lock(folder)
    weights = folder / "model.safetensors"
    stat, before = weights.stat(), fingerprint(folder)
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(folder) == before, "the file was read although its lock agrees"
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert fingerprint(folder) != before
    assert fingerprint(folder) == fingerprint(make_model(tmp_path / "n", b"WEIGHTS"))


def test_verify_names_the_bad_file(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    assert verify(folder) == [f"no {LOCK_NAME}: nothing to verify against"]
    lock(folder)
    assert verify(folder) == []
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    (folder / "extra.json").write_text("{}")
    (folder / "config.json").unlink()
    assert verify(folder) == [
        "config.json: missing",
        "extra.json: not in the lock",
        "model.safetensors: sha256 differs from the lock",
    ]


def test_verify_compares_the_source_with_the_manifest(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "tiny")
    source = 'kind = "packages"\nformat = "gguf"\npackages = ["tiny==1"]\n[source.files]\n"t/t.gguf" = "aa"'
    text = MANIFEST.replace('kind = "hub"\nrepo = "someone/Tiny"', source)
    manifest = read_manifest(write_manifest(tmp_path, text))
    lock(folder, kind="packages", files={"t/t.gguf": "aa"})
    assert verify(folder, manifest) == []
    lock(folder, kind="packages", files={"t/t.gguf": "bb"})
    assert verify(folder, manifest) == ["source t/t.gguf: sha256 differs from the manifest"]


@pytest.mark.parametrize("content", ["{", "[]", '{"files": {}}', '{"files": {"a": {}}}'])
def test_a_broken_lock_is_named(tmp_path: Path, content: str) -> None:
    folder = make_model(tmp_path / "m")
    (folder / LOCK_NAME).write_text(content)
    with pytest.raises(UserError, match=LOCK_NAME):
        fingerprint(folder)


# Safety


def test_a_plain_folder_is_safe(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "training_args.bin").write_bytes(b"")
    (folder / "openvino").mkdir()
    (folder / "openvino" / "openvino_model.bin").write_bytes(b"")
    check_safe(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "sub/config.json"])
def test_auto_map_is_refused(tmp_path: Path, name: str) -> None:
    folder = make_model(tmp_path / "m")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('{"auto_map": {"AutoModel": "modeling.Evil"}}')
    with pytest.raises(UserError, match="code of its own"):
        check_safe(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.PTH", "model.ckpt"])
def test_pickled_weights_are_refused(tmp_path: Path, name: str) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(UserError, match="safetensors only"):
        check_safe(folder)


def test_modules_are_looked_into(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    module = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "2_Dense").mkdir()
    (folder / "modules.json").write_text(json.dumps([module]))
    check_safe(folder)
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="safetensors only"):
        check_safe(folder)
    (folder / "modules.json").write_text(json.dumps([module | {"type": "custom_st.Evil"}]))
    with pytest.raises(UserError, match=r"custom_st\.Evil"):
        check_safe(folder)


def test_no_weights_is_an_error(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights"):
        check_safe(folder)


# The shelf


def test_find_by_name_and_by_path(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "models")
    folder = make_model(shelf.root / "tiny")
    write_manifest(shelf.root)
    by_name, by_path = shelf.find("tiny", "judge"), shelf.find(folder, "judge")
    assert by_name == by_path
    assert by_name.manifest is not None
    assert by_name.fingerprint == fingerprint(folder)
    elsewhere = shelf.find(make_model(tmp_path / "elsewhere" / "tiny"), "embedder")
    assert (elsewhere.name, elsewhere.manifest) == ("tiny", None)


def test_not_found_says_what_was_looked_for_and_how_to_fix_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shelf = Shelf(Path("models"))
    make_model(shelf.root / "tiny")
    make_model(shelf.root / "unnamed")
    (shelf.root / ".building" / "half").mkdir(parents=True)
    write_manifest(shelf.root)
    with pytest.raises(UserError) as caught:
        shelf.find("qwen2.5-7b-instruct", "judge")
    assert str(caught.value) == (
        "model 'qwen2.5-7b-instruct' is not on the shelf models/\n"
        "  looked for  models/qwen2.5-7b-instruct/config.json\n"
        "  shelf has   tiny (judge), unnamed\n"
        "  to fix      on a connected machine: python scripts/shelf.py add qwen2.5-7b-instruct"
    )


@pytest.mark.parametrize(
    ("wanted", "label", "text"),
    [
        ("tinny", "nearest", "tiny"),
        ("someone/Tiny", "to fix", "on a connected machine: python scripts/shelf.py add tiny"),
        ("some/where", "looked for", "some/where/config.json"),
        ("some/where", "shelf has", "no model"),
        ("", "shelf has", "no model"),
    ],
)
def test_not_found_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, label: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_manifest(tmp_path)
    with pytest.raises(UserError) as caught:
        Shelf(tmp_path).find(wanted, "judge")
    assert caught.value.details[label] == text


def test_a_model_of_another_role_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path / "tiny")
    write_manifest(tmp_path)
    with pytest.raises(UserError) as caught:
        Shelf(tmp_path).find("tiny", "embedder")
    assert caught.value.details == {"wanted": "embedder", "it is": "judge", "embedders": "no manifest"}


def test_find_refuses_an_unsafe_model(tmp_path: Path) -> None:
    (make_model(tmp_path / "tiny") / "config.json").write_text('{"auto_map": {}}')
    with pytest.raises(UserError, match="code of its own"):
        Shelf(tmp_path).find("tiny", "judge")


def test_default_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OFFLINE_JUDGE_MODELS", raising=False)
    assert default_root() == Path(__file__).resolve().parents[1] / "models"
    (tmp_path / "models").mkdir()
    assert default_root() == Path("models")
    monkeypatch.setenv("OFFLINE_JUDGE_MODELS", "/weights")
    assert default_root() == Path("/weights")
    assert Shelf().root == Path("/weights")
