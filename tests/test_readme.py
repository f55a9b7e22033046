"""What the README shows is what the code does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from stub_models import StubEmbedder, StubJudge

import offline_judge
from offline_judge.cli import main
from offline_judge.metrics import registered

ROOT = Path(offline_judge.__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def test_the_metric_of_ones_own_works_as_shown(tmp_path):
    (code,) = [block for language, block in BLOCKS if language == "python" and "@metric" in block]
    names: dict = {"__name__": "mine"}
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    row = {"user_input": "The sky is blue, why?", "response": "The sky is blue. It is Tuesday."}
    result = offline_judge.evaluate(
        [row], [names["QuestionGrounding"]()], judge=StubJudge(), embedder=StubEmbedder(), out=tmp_path
    )
    assert result["question_grounding"] == [0.5]
    assert result.soft("question_grounding") == [pytest.approx(0.5)]


def test_every_metric_is_in_the_table():
    for name, cls in registered().items():
        if cls.__module__.startswith("offline_judge."):  # tests register metrics of their own
            assert f"| `{name}`" in README, name


def test_every_command_shown_exists_with_its_flags():
    shown = [
        shlex.split(line.split("#")[0].replace("\\", ""))
        for language, block in BLOCKS
        if language == "bash"
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("offline-judge")
    ]
    assert len(shown) >= 5
    for command in shown:
        flags = [word for word in command if word.startswith("--")]
        group = getattr(main.commands[command[1]], "commands", {})
        path = command[1 : 3 if group else 2]
        usage = CliRunner().invoke(main, [*path, "--help"]).output
        assert usage.startswith("Usage"), command
        assert all(flag in usage for flag in flags), command


def test_the_scripts_shown_exist():
    for script in re.findall(r"^(scripts/\w+\.sh)$", README, re.MULTILINE):
        assert (ROOT / script).stat().st_mode & 0o100, script
