"""Training a tiny verifier of random weights on a task that a word tells apart."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import numpy as np
import pytest
from tiny_verifiers import make_verifier

from offline_judge.calibration import LabelledClaim
from offline_judge.errors import UserError

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_verifier.py"
spec = importlib.util.spec_from_file_location("train_verifier", SCRIPT)
assert spec and spec.loader
train_verifier = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train_verifier)


def toy(n_documents: int = 40) -> list[dict]:
    """Of each document one claim that a museum opens, which is true, and one that it closes, which is not."""
    rng = random.Random(0)
    rows = []
    for number in range(n_documents):
        hour = rng.randint(1, 9)
        premise = f"The museum on day {number} opens at {hour}."
        for _ in range(2):
            claim = f"The museum {{}} at {rng.randint(1, 9)}."
            rows.append({"premise": premise, "claim": claim.format("opens"), "label": 0.95})
            rows.append({"premise": premise, "claim": claim.format("never closes"), "label": 0.05})
    return rows


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, toy())))
    return path


def test_a_random_model_is_lifted_above_chance_and_training_goes_on(labels, tmp_path, capsys):
    base = make_verifier(tmp_path / "base", taught=False)
    out = tmp_path / "trained"
    args = ["--labels", str(labels), "--base", str(base), "--out", str(out), "--device", "cpu"]
    args += ["--learning-rate", "3e-3", "--max-tokens", "64"]
    assert train_verifier.main([*args, "--epochs", "1"]) == 0
    assert "going on" not in capsys.readouterr().out
    assert train_verifier.main([*args, "--epochs", "4"]) == 0
    assert "going on from" in capsys.readouterr().out
    found = json.loads((out / "figures.json").read_text())
    assert found["after training"]["AUC"][0] > 0.95
    assert found["after training"]["balanced accuracy"][1] > 0.5
    card = (out / "README.md").read_text()
    assert "128 claims of 32 documents for training" in card
    assert "| after training | 1.000" in card or "| after training | 0.9" in card
    config = json.loads((out / "config.json").read_text())
    assert config["id2label"] == {"0": "supported"}
    assert list(out.glob("*.safetensors"))


def test_no_document_lies_in_two_parts():
    rows = [LabelledClaim("p", f"c{n}", n % 2, f"d{n // 3}") for n in range(300)]
    split = train_verifier.split_by_document(rows, np.random.default_rng(1))
    documents = [{row.document for row in part} for part in split]
    assert sum(map(len, split)) == 300
    assert not (documents[0] & documents[1] or documents[0] & documents[2] or documents[1] & documents[2])
    assert [len(part) for part in documents] == [80, 10, 10]


def test_too_few_documents_are_named():
    with pytest.raises(UserError, match="too few documents"):
        train_verifier.split_by_document([LabelledClaim("p", "c", 1, "d")], np.random.default_rng(0))


def test_the_head_starts_from_what_the_base_knows(tmp_path):
    from offline_judge.backends.supported_label import SUPPORTED_PAIRS, UNSUPPORTED_PAIRS

    base = make_verifier(tmp_path / "base")
    encoder = train_verifier.open_base(base, "cpu", 128)
    yes, no = (encoder.predict(list(pairs)) for pairs in (SUPPORTED_PAIRS, UNSUPPORTED_PAIRS))
    assert yes.min() > no.max()
