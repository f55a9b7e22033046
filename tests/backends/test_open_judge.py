from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

import offline_judge.backends as backends
from offline_judge.backends import open_judge
from offline_judge.backends.model_folder import combine_fingerprint, find_context_length
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.protocol import ChooseCall
from offline_judge.errors import UserError


def open_tiny(folder, **options):
    return open_judge(folder, **({"name": "t", "fingerprint": "f", "backend": "transformers"} | options))


def test_auto_takes_transformers_where_vllm_is_not_installed(tiny_model, monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: None if name == "vllm" else object())
    assert open_tiny(tiny_model, backend="auto").describe()["backend"] == "transformers"


def test_a_missing_package_is_named_with_the_command(tiny_model, monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="vllm is not installed") as caught:
        open_tiny(tiny_model, backend="vllm")
    assert "offline-judge[vllm]" in caught.value.details["to fix"]


def test_the_fingerprint_holds_what_can_change_an_answer(tiny_model):
    judge = open_tiny(tiny_model)
    assert judge.fingerprint == open_tiny(tiny_model).fingerprint
    assert judge.fingerprint != open_tiny(tiny_model, fingerprint="g").fingerprint
    assert judge.fingerprint != open_tiny(tiny_model, structured_backend="outlines").fingerprint
    assert {"backend", "versions", "dtype", "device", "structured_backend"} <= set(judge.describe())
    assert combine_fingerprint("f", {"a": 1, "b": 2}) == combine_fingerprint("f", {"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "llama"}, "backend 'llama'"),
        ({"structured_backend": "regex"}, "structured_backend 'regex'"),
    ],
)
def test_unknown_options(tiny_model, options, message):
    with pytest.raises(UserError, match=message):
        open_tiny(tiny_model, **options)


def test_context_length_is_the_models_or_shorter(tiny_model):
    assert open_tiny(tiny_model).context_length == 2048
    assert find_context_length(tiny_model, 600) == 600
    with pytest.raises(UserError, match="4096 is more than the model has"):
        find_context_length(tiny_model, 4096)


def test_pickled_weights_and_other_folders_are_refused(tiny_model, tmp_path):
    with pytest.raises(UserError, match="is no model folder"):
        open_tiny(tmp_path / "nothing")
    shutil.copytree(tiny_model, tmp_path / "m", ignore=lambda *_: ["model.safetensors"])
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="no safetensors weights"):
        open_tiny(tmp_path / "m")


def test_a_type_of_weights_that_is_not_known_is_refused(tiny_model):
    with pytest.raises(UserError, match="dtype 'float8' is not known"):
        open_tiny(tiny_model, dtype="float8")


def test_a_model_that_brings_its_own_code_is_not_loaded(tiny_model, tmp_path):
    folder = tmp_path / "own-code"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("open('ran', 'w')\n")
    with pytest.raises(UserError, match="can't be loaded"):
        list(open_tiny(folder).answer([ChooseCall((("user", "x"),), ("Yes", "No"))]))
    assert not (folder / "ran").exists()


def test_offline_variables_win_over_the_users_and_comfort_does_not(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    set_offline_env()
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_importing_the_backends_loads_nothing_heavy():
    code = "import sys, offline_judge.backends; print({'torch', 'vllm', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_weights_are_loaded_with_the_first_call_that_needs_them(tiny_model):
    judge = open_tiny(tiny_model)
    assert judge.n_tokens(["one two"]) == [2]
    assert "_model" not in vars(judge)
    assert len(list(judge.answer([ChooseCall((("user", "x"),), ("Yes", "No"))]))) == 1
    assert "_model" in vars(judge)
