"""The command line, as a user types it; models are stubs where they are not what is tested."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from stub_models import StubEmbedder, StubJudge

import offline_judge
from offline_judge.cli import main

ROWS = [
    {
        "id": f"r{n}",
        "question": "Where is the depot?",
        "answer": f"The depot is in Lund. It has {n} gates.",
        "contexts": ["The depot is in Lund."],
        "ground_truth": "The depot is in Lund.",
    }
    for n in range(3)
]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return path


@pytest.fixture
def cli(monkeypatch, tmp_path):
    """Run the command line in tmp_path with stubs in the models' place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("offline_judge.evaluation.open_models", lambda *_: (StubJudge(), StubEmbedder()))
    return lambda *args: CliRunner().invoke(main, list(map(str, args)), catch_exceptions=False)


def test_evaluate_prints_n_of_n_and_the_run_folder(cli, data):
    result = cli("evaluate", data, "--metrics", "faithfulness,context_recall", "--show-worst")
    assert result.exit_code == 0, result.output
    assert "faithfulness    0.500  0.500  3 of 3" in result.output
    assert "The worst row r0" in result.output
    assert "run folder: runs/rows-" in result.output


def test_the_same_command_finds_its_folder_again(cli, data, tmp_path):
    folders = {cli("evaluate", data, "--metrics", "faithfulness").output.splitlines()[-1] for _ in range(2)}
    assert len(folders) == 1
    assert len([path for path in (tmp_path / "runs").iterdir() if path.is_dir()]) == 1


def test_too_many_unscored_rows_set_the_exit_status(cli, data):
    data.write_text(data.read_text().replace(ROWS[1]["answer"], ""), encoding="utf-8")
    args = ("evaluate", data, "--metrics", "faithfulness")
    assert cli(*args).exit_code == 1
    assert cli(*args, "--max-unscored", "0.34").exit_code == 0


def test_wrong_use_is_exit_status_2_without_a_traceback(cli, data, tmp_path):
    for args, message in [
        (("evaluate", tmp_path / "none.jsonl"), "none.jsonl"),
        (("evaluate", data, "--metrics", "faithfulnes"), "faithfulness"),
        (("evaluate", data, "--metrics", "faithfulness[treshold=1]"), "threshold"),
        (("evaluate", data, "--metrics", "precision_at_k[k=0]"), "k must be 1 or more"),
        (("evaluate", data, "--map", "query=user_input"), "wrong way round"),
        (("evaluate", data, "--max-unscored", "2"), "max_unscored"),
        (("show", tmp_path), "not a run folder"),
        (("rescore", tmp_path, "--set", "nonsense"), "METRIC.SETTING=VALUE"),
    ]:
        result = cli(*args)
        assert result.exit_code == 2, (args, result.output)
        assert message in result.output, (args, result.output)
        assert "Traceback" not in result.output


def test_a_model_that_is_not_on_the_shelf_is_named_before_anything_runs(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        main, ["evaluate", str(data), "--metrics", "faithfulness", "--judge", "no-such-model"]
    )
    assert result.exit_code == 2
    assert "no-such-model" in result.output
    assert "looked for" in result.output


def test_settings_come_from_a_file_and_flags_overrule_it(cli, data, tmp_path):
    config = tmp_path / "eval.toml"
    config.write_text('metrics = ["faithfulness"]\nseed = 5\n[metric.faithfulness]\nthreshold = 0.7\n')
    result = cli("evaluate", data, "--config", config, "--seed", "6", "--name", "x")
    assert result.exit_code == 0, result.output
    record = offline_judge.Result.load(tmp_path / "runs" / "x").record
    assert record["config"]["seed"] == 6
    assert list(record["metrics"]) == ["faithfulness[threshold=0.7]"]
    config.write_text("judg = 'x'\n")
    assert "nearest  judge" in cli("evaluate", data, "--config", config).output


def test_columns_are_mapped(cli, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('query,reply,passages\nWhere?,The depot is in Lund.,"[""The depot is in Lund.""]"\n')
    maps = [
        x for pair in ("user_input=query", "response=reply", "contexts=passages") for x in ("--map", pair)
    ]
    result = cli("evaluate", path, "--metrics", "faithfulness", *maps)
    assert result.exit_code == 0, result.output
    assert "1.000" in result.output


def test_check_counts_without_a_model(cli, data):
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    del rows[1]["ground_truth"]
    data.write_text("\n".join(map(json.dumps, rows)))
    output = cli("check", data).output
    assert "context_recall" in output
    assert "2 of 3" in output
    assert "reference missing in 1: r1" in output


def test_rescore_changes_the_threshold_without_a_model(cli, data, tmp_path):
    assert cli("evaluate", data, "--metrics", "faithfulness,context_recall", "--name", "x").exit_code == 0
    again = cli("rescore", "runs/x", "--set", "faithfulness.threshold=0.05", "--out", "runs/y")
    assert again.exit_code == 0, again.output
    result = offline_judge.Result.load(tmp_path / "runs" / "y")
    assert result["faithfulness[threshold=0.05]"] == [1.0, 1.0, 1.0]
    assert result["context_recall"] == [1.0, 1.0, 1.0]
    assert result.record["rescored_from"]["run"] == "x"


def test_rescoring_with_the_same_settings_gives_the_same_bytes(cli, data, tmp_path):
    cli("evaluate", data, "--name", "x")
    assert cli("rescore", "runs/x", "--set", "*.threshold=0.5", "--out", "runs/y").exit_code == 0
    for file in ("scores.jsonl", "evidence.jsonl"):
        assert (tmp_path / "runs/x" / file).read_bytes() == (tmp_path / "runs/y" / file).read_bytes()


def test_rescore_refuses_what_would_have_to_be_asked(cli, data):
    cli("evaluate", data, "--metrics", "response_relevancy", "--name", "x")
    result = cli("rescore", "runs/x", "--set", "response_relevancy.strictness=5")
    assert result.exit_code == 2
    assert "strictness" in result.output
    assert "evaluate again" in result.output


def test_show_prints_claims_with_probabilities_and_reasons(cli, data):
    cli("evaluate", data, "--metrics", "faithfulness", "--name", "x")
    output = cli("show", "runs/x", "r1").output
    assert "0.90  The depot is in Lund." in output
    assert "0.10  It has 1 gates." in output
    assert "because 1" in output
    assert cli("show", "runs/x", "r9").exit_code == 2


def test_metrics_are_listed_with_source_and_version(cli):
    output = cli("metrics").output
    for text in (
        "faithfulness",
        "answer_relevancy",
        "arXiv:2309.15217",
        "retrieved_contexts",
        "[-1, 1]",
        "version 1",
    ):
        assert text in output


def test_a_metric_of_ones_own_from_a_file(cli, data, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        '''
from dataclasses import dataclass
from offline_judge import Evidence, metric

@metric(source="house rule", version=1)
@dataclass(frozen=True)
class Brevity:
    """1 where the response has at most `words` words, else 0."""
    needs = ("response",)
    words: int = 5
    def gather(self, row):
        yield []
        return Evidence({"short": float(len(row.response.split()) <= self.words)}, {})
    def score(self, short):
        return short.values
'''
    )
    result = cli("evaluate", data, "--import", mine, "--metrics", "brevity,brevity[words=50]")
    assert result.exit_code == 0, result.output
    assert "brevity            0.000" in result.output
    assert "brevity[words=50]  1.000" in result.output


@pytest.mark.reaches_out
def test_a_file_of_metrics_that_reaches_out_is_stopped(cli, data, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("import socket\nsocket.create_connection(('192.0.2.1', 80))\n", encoding="utf-8")
    result = cli("evaluate", data, "--import", mine)
    assert result.exit_code == 2
    assert "a connection to 192.0.2.1:80 was refused" in result.stderr
    assert "asked by  mine, called from offline_judge" in result.stderr


def test_allowed_hosts_come_from_the_file_and_from_flags(cli, data, tmp_path):
    settings = tmp_path / "eval.toml"
    settings.write_text('allow_host = ["10.0.0.5:8000"]', encoding="utf-8")
    common = ("evaluate", data, "--metrics", "faithfulness", "--config", settings, "--name", "run")
    for flags, allowed in ((), ["10.0.0.5:8000"]), (("--allow-host", "judge.example"), ["judge.example"]):
        assert cli(*common, *flags).exit_code == 0
        record = json.loads((tmp_path / "runs" / "run" / "run.json").read_text(encoding="utf-8"))
        assert record["config"]["allow_host"] == allowed
    refused = cli(*common, "--allow-host", "http://judge.example")
    assert refused.exit_code == 2
    assert "HOST:PORT" in refused.stderr


def test_the_cache_is_counted_and_pruned(cli, data, tmp_path):
    assert cli("cache", "stats").exit_code == 2
    cli("evaluate", data, "--metrics", "faithfulness")
    output = cli("cache", "stats").output
    assert "runs/answers.sqlite: " in output
    assert "sound" in output
    assert "stub" in output
    n = int(output.split(": ")[1].split()[0])
    assert n > 3
    for args, message in [((), "nothing says what"), (("--older-than", "soon"), "allowed")]:
        result = cli("cache", "prune", *args)
        assert result.exit_code == 2
        assert message in result.output
    assert "0 answers deleted" in cli("cache", "prune", "--older-than", "2h", "--max-size", "1GB").output
    assert f"{n} answers deleted" in cli("cache", "prune", "--model", "stub").output
    (tmp_path / "runs/answers.sqlite").write_text("spoilt " * 1000)
    result = cli("cache", "stats")
    assert result.exit_code == 2
    assert "the next run sets the file aside" in result.output


def test_fresh_and_redact_are_flags(cli, data, tmp_path):
    assert cli("evaluate", data, "--name", "x", "--fresh", "--redact").exit_code == 0
    config = offline_judge.Result.load(tmp_path / "runs/x").record["config"]
    assert config["fresh"] is config["redact"] is True
    assert "Lund" not in (tmp_path / "runs/x/evidence.jsonl").read_text()
    assert "#" in cli("show", "runs/x", "r1").output


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("seed = 'x'", "setting seed = 'x'"),
        ("seed = true", "a whole number"),
        ("window_rows = 1.5", "a whole number"),
        ("max_unscored = 'all'", "a number"),
        ("out = 5", "setting out = 5"),
        ("redact = 'yes'", "true or false"),
        ("metrics = 5", "a list of texts"),
        ("metrics = 'faithfulness'", "a list of texts"),
        ("metrics = [5]", "a list of texts"),
        ("column_map = 'x'", "a table of texts"),
        ("[column_map]\nuser_input = 5", "a table of texts"),
        ("metric = 5", "[metric.faithfulness]"),
        ("[metric]\nfaithfulness = 5", "[metric.faithfulness]"),
        ("metrics = 5\n[metric.faithfulness]\nthreshold = 0.5", "a list of texts"),
        ("name = '../x'", "the name of one folder"),
        ("judge = ", "is not TOML"),
        ("judge = 'http://127.0.0.1:8000/v1'\nserve = true", "leave serve out"),
        ("judge = 'none'\nserve = true", "leave serve out"),
        ("judge = 'http://127.0.0.1:8000/v1'\ndtype = 'float32'", "leave dtype out"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused(cli, data, tmp_path, content, expected):
    config = tmp_path / "eval.toml"
    config.write_text(content, encoding="utf-8")
    result = cli("evaluate", data, "--config", config)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1\nraise KeyError('k')", "line 2: "),
        ("def f(:\n  pass", "line 1: "),
        ("import nowhere_to_be", "line 1: "),
    ],
)
def test_a_file_of_metrics_that_can_not_be_run(cli, data, tmp_path, code, expected):
    mine = tmp_path / "mine.py"
    mine.write_text(code, encoding="utf-8")
    result = cli("check", data, "--import", mine)
    assert result.exit_code == 2
    assert f"error: {mine}, {expected}the file of metrics can't be run" in result.stderr


def test_a_terminal_is_not_told_what_to_do_by_a_row(cli, data):
    rows = [ROWS[0] | {"answer": "Lund \x1b[2J\x1b]0;owned\x07 \u202egnol."}]
    data.write_text(json.dumps(rows[0]), encoding="utf-8")
    cli("evaluate", data, "--metrics", "faithfulness", "--name", "x")
    output = cli("show", "runs/x", "r0").output
    assert "\x1b" not in output
    assert "\u202e" not in output
    assert r"Lund \x1b[2J\x1b]0;owned\x07 \u202egnol." in output


def test_an_alias_that_is_mapped_the_wrong_way_round(cli, data):
    result = cli("check", data, "--map", "answer=response")
    assert result.exit_code == 2
    assert "no column 'response'" in result.stderr
    assert "'answer' is understood unasked" in result.stderr
