"""What the doctor finds on shelves and stores that are whole, damaged or empty."""

from __future__ import annotations

import shutil
import socket

import pytest
from click.testing import CliRunner
from rich.console import Console
from tiny_verifiers import make_verifier

from offline_judge.cli import main
from offline_judge.doctor import Finding, Report, examine
from offline_judge.doctor import examination as looked_at
from offline_judge.doctor.report import print_report
from offline_judge.engine.store import Store
from offline_judge.shelf import Shelf


@pytest.fixture
def untried(monkeypatch):
    """Try no model, where models are not what is tested."""
    monkeypatch.setattr(
        looked_at, "try_model", lambda _shelf, role, wanted, _backend: Finding(role, "fine", str(wanted))
    )


@pytest.fixture
def shelf(shelf_model, tmp_path) -> Shelf:
    """A shelf of the smallest embedder alone."""
    source = shelf_model("all-minilm-l6-v2")
    shutil.copytree(source, tmp_path / "models" / source.name)
    shutil.copy(source.parent / f"{source.name}.toml", tmp_path / "models")
    return Shelf(tmp_path / "models")


def states(report: Report, section: str) -> dict[str, str]:
    return {one.name: one.state for one in report.sections[section]}


@pytest.mark.models
def test_judge_and_embedder_are_tried_for_real(shelf_model):
    report = examine(shelf=Shelf(shelf_model("smollm2-135m-instruct").parent))
    judge, _, embedder = report.sections["self-test"]
    assert (judge.state, embedder.state) == ("fine", "fine"), (judge.text, embedder.text)
    assert "smollm2-135m-instruct: P(supported)" in judge.text
    assert "all-minilm-l6-v2: 384 dimensions, cosine 1.00 with itself" in embedder.text
    assert states(report, "connections") == {"beyond this machine": "fine"}
    assert states(report, "packages")["torch"] == "fine"


def test_a_verifier_is_tried_for_real(tmp_path):
    make_verifier(tmp_path / "tiny", "bert")
    report = examine(shelf=Shelf(tmp_path), verifier="tiny")
    judge, verifier, embedder = report.sections["self-test"]
    assert (judge.state, embedder.state) == ("note", "note")
    assert verifier.state == "fine", verifier.text
    assert verifier.text.startswith("tiny: P(supported)")


@pytest.mark.models
def test_a_flipped_bit_in_a_model_is_wrong(shelf, untried):
    assert examine(shelf=shelf).wrong == []
    path = shelf.root / "all-minilm-l6-v2" / "tokenizer.json"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    (found,) = examine(shelf=shelf).wrong
    assert found.name == "all-minilm-l6-v2"
    assert "tokenizer.json: sha256 differs" in found.text
    assert "add it again" in found.to_fix


def test_an_empty_shelf_is_wrong(tmp_path, untried):
    report = examine(shelf=Shelf(tmp_path))
    assert [one.text for one in report.wrong] == ["no model lies here"]
    assert states(report, "self-test") == {"judge": "note", "verifier": "note", "embedder": "note"}


def test_a_model_that_is_not_there_is_wrong(tmp_path):
    report = examine(shelf=Shelf(tmp_path), judge="nobody")
    assert report.sections["self-test"][0].state == "wrong"
    assert "shelf.py add nobody" in report.sections["self-test"][0].to_fix


def test_the_store_is_checked(tmp_path, untried):
    path = tmp_path / "answers.sqlite"
    Store(path).close()
    assert states(examine(shelf=Shelf(tmp_path), store=path), "answer store") == {str(path): "fine"}
    assert states(examine(shelf=Shelf(tmp_path), store=tmp_path / "no"), "answer store") == {
        str(tmp_path / "no"): "fine"
    }
    path.write_bytes(b"this was never a database" * 100)
    assert states(examine(shelf=Shelf(tmp_path), store=path), "answer store") == {str(path): "wrong"}


@pytest.mark.reaches_out
def test_whoever_reaches_out_is_named(tmp_path, monkeypatch):
    def chatty(_shelf, role, _wanted, _backend):
        assert socket.socket().connect_ex(("127.0.0.1", 9)) != 0
        with pytest.raises(OSError, match="192"):
            socket.create_connection(("192.0.2.1", 443))
        return Finding(role, "fine", "")

    monkeypatch.setattr(looked_at, "try_model", chatty)
    report = examine(shelf=Shelf(tmp_path), judge="x")
    (found,) = report.sections["connections"]
    assert (found.name, found.state) == ("192.0.2.1:443", "wrong")
    assert "test_doctor" in found.text


def test_the_command_sets_the_exit_status(tmp_path, monkeypatch, untried):
    monkeypatch.setenv("OFFLINE_JUDGE_MODELS", str(tmp_path))
    result = CliRunner().invoke(main, ["doctor", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "1 thing to mend" in result.output
    monkeypatch.setattr(
        "offline_judge.doctor.examine", lambda **_: Report({"a": [Finding("b", "note", "c")]})
    )
    assert CliRunner().invoke(main, ["doctor"]).exit_code == 0


def test_a_report_prints_every_finding_and_fix(capsys):
    findings = [Finding("one", "fine", "as it should be"), Finding("[two]", "wrong", "broken [x]", "mend it")]
    print_report(Report({"section": findings}), Console(width=80))
    printed = capsys.readouterr().out
    assert "[two]" in printed
    assert "broken [x]" in printed
    assert "to fix: mend it" in printed
    assert "1 thing to mend" in printed
