from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from stub_models import StubEmbedder, StubJudge, row

import offline_judge
from offline_judge import UserError
from offline_judge.cli import main

WET, DRY = "The depot is in Lund. It rains.", "The depot is in Lund."


@pytest.fixture
def run(tmp_path):
    """A run of rows with these responses; the stub judge supports what stands in the context."""

    def run(name, responses, metrics=("faithfulness",), judge=None, **settings):
        rows = [row(id=f"r{i}", response=response) for i, response in enumerate(responses)]
        return offline_judge.evaluate(
            rows,
            list(metrics),
            judge=judge or StubJudge(),
            embedder=StubEmbedder(),
            reasons="none",
            out=tmp_path,
            name=name,
            **settings,
        ).folder

    return run


def edit(folder, change):
    path = folder / "run.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_rows_are_matched_by_id_and_counted(run):
    metrics = ("faithfulness", "noise_sensitivity")
    first = run("first", [WET, WET, DRY, ""], metrics)
    second = run("second", [DRY, WET, WET, WET], metrics)
    faithful, noise = offline_judge.compare(first, second)
    assert (faithful.metric, faithful.n_scored, faithful.n_rows) == ("faithfulness", 3, 4)
    assert faithful.first == faithful.second == pytest.approx(2 / 3)
    assert (faithful.n_better, faithful.n_worse) == (1, 1)
    assert faithful.difference.value == 0
    assert faithful.difference.low < 0 < faithful.difference.high
    assert noise.better == "lower"


def test_a_lower_score_is_better_where_the_metric_says_so(run):
    first = run("first", [WET], ["noise_sensitivity"])
    second = run("second", [WET], ["noise_sensitivity"])
    path = second / "scores.jsonl"
    line = json.loads(path.read_text())
    line["scores"]["noise_sensitivity"] = 1.0
    path.write_text(json.dumps(line) + "\n")
    (noise,) = offline_judge.compare(first, second)
    assert (noise.n_better, noise.n_worse) == (0, 1)
    assert noise.difference.value == 1.0 - noise.first


def test_equal_runs_differ_by_nothing(run):
    first, second = (run(name, [WET, DRY]) for name in ("first", "second"))
    (found,) = offline_judge.compare(first, second)
    assert found.difference == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda r: r["metrics"]["faithfulness"].update(version=2), "formula of faithfulness"),
        (lambda r: r["metrics"]["faithfulness"]["settings"].update(threshold=0.7), "faithfulness.threshold"),
        (lambda r: r["prompts"]["support"].update(ko="v2 0"), "prompt support, ko"),
        (lambda r: r["models"]["judge"].update(fingerprint="0" * 64), "judge"),
        (lambda r: r["models"].update(embedder={"name": "e", "fingerprint": "0"}), "embedder"),
        (lambda r: r["config"].update(claims="sentences"), "claims"),
        (lambda r: r.update(calibrations={"support": {}}), "calibrations"),
    ],
)
def test_what_was_scored_in_another_way_is_refused_by_name(run, change, named):
    first, second = (run(name, [WET]) for name in ("first", "second"))
    edit(second, change)
    with pytest.raises(UserError, match="do not compare") as error:
        offline_judge.compare(first, second)
    assert named in str(error.value)


def test_a_prompt_that_only_one_release_knows_is_no_difference(run):
    first, second = (run(name, [WET]) for name in ("first", "second"))
    edit(second, lambda record: record["prompts"].pop("chunk_useful"))
    assert offline_judge.compare(first, second)


def test_runs_that_share_no_row_or_metric_are_refused(run, tmp_path):
    first = run("first", [WET])
    with pytest.raises(UserError, match="no metric"):
        offline_judge.compare(first, run("other", [WET], ["context_recall"]))
    second = run("second", [WET])
    path = second / "scores.jsonl"
    path.write_text(path.read_text().replace('"r0"', '"elsewhere"'))
    with pytest.raises(UserError, match="no row"):
        offline_judge.compare(first, second)


def test_the_command_prints_one_table(run):
    first, second = run("first", [WET, WET]), run("second", [DRY, WET])
    done = CliRunner().invoke(main, ["compare", str(first), str(second)])
    assert done.exit_code == 0, done.output
    head, line = done.output.splitlines()[:2]
    assert head.split()[:3] == ["metric", "first", "second"]
    assert line.split()[:4] == ["faithfulness", "0.500", "0.750", "+0.250"]
    assert "2 of 2" in line
