import json
import sys

import agreement
import agreement_statistics
import numpy as np
import pytest
import verifier_agreement
from labelled_sets import Labelled
from ragas_peer import KeptRagas
from scipy import stats
from stub_models import StubJudge
from tiny_verifiers import make_verifier


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def data(tmp_path):
    """Two sets that the stub judges right: what the premise holds word for word is supported."""
    fm2 = [
        {
            "id": f"f{n}",
            "claim": f"Bird {n} nests in {'reeds' if n % 2 else 'trees'}.",
            "label": "SUPPORTS" if n % 2 else "REFUTES",
            "gold_evidence": [f"Bird {n} nests in reeds.", "It sings."],
        }
        for n in range(12)
    ]
    write(tmp_path / "fm2" / "dev.jsonl", fm2)
    ragtruth = [
        {
            "id": f"r{n}",
            "source_id": f"s{n // 2}",
            "query": "Where?",
            "context": "passage 1:It is red.\n\npassage 2:It is old.",
            "response": "It is red. It is old." if n % 2 else "It is red. It is blue.",
            "hallucinated": n % 2 == 0,
            "spans": [] if n % 2 else [{"start": 11, "end": 22}],
        }
        for n in range(16)
    ]
    write(tmp_path / "ragtruth_qa_test" / "ragtruth_qa_test.jsonl", ragtruth)
    return tmp_path


class OpenedPeer:
    """Answers in RAGAS's place: right about every row, but without a score for the first."""

    def score(self, rows, metrics):
        (metric,) = metrics
        scores = [float(row["response"] in " ".join(row["retrieved_contexts"])) for row in rows]
        return {metric: [None, *scores[1:]]}


def run(module, monkeypatch, data, out, judges, *options):
    """Run a benchmark with stub judges in place of models; return its Markdown."""

    class Run(agreement.MeasuredRun):
        def __init__(self, out, judge=None, embedder=None, verifier=None, **settings):
            super().__init__(out, **settings)
            self.judge = judges.get(judge)

        def ragas(self, environment):
            return KeptRagas(OpenedPeer, self.out / "ragas.jsonl", "stub")

    monkeypatch.setattr(module, "MeasuredRun", Run)
    monkeypatch.setattr(agreement_statistics, "N_RESAMPLES", 50)
    monkeypatch.setattr(sys, "argv", ["benchmark", "--data-folder", str(data), "--out", str(out), *options])
    module.main()
    (found,) = out.glob("*agreement*.md")
    return found.read_text(encoding="utf-8")


def test_every_figure_of_a_judge_that_is_always_right(data, tmp_path, monkeypatch):
    judge = StubJudge()
    options = ("--judge", "stub", "--sets", "fm2,ragtruth_qa_test")
    table = run(agreement, monkeypatch, data, tmp_path / "out", {"stub": judge}, *options)
    right, held_out = "1.000 (1.000 to 1.000)", "threshold from the other half"
    assert f"| fm2 | AUC | claim_supported | 12 | {right} |" in table
    assert f"| ragtruth_qa_test | AUC | least supported sentence | 16 | {right} |" in table
    assert f"F1 of the unsupported, {held_out} | faithfulness, soft | 8 | {right} |" in table
    assert f"F1 of marked characters, {held_out} | p of the sentence | 8 | {right} |" in table
    assert "Llama-2-13B" in table

    again = StubJudge()
    assert run(agreement, monkeypatch, data, tmp_path / "out", {"stub": again}, *options) == table
    assert again.calls == []


def test_ragas_stands_beside_the_rest_on_the_rows_that_it_could_score(data, tmp_path, monkeypatch):
    options = ("--judge", "stub", "--sets", "fm2", "--ragas", "8")
    table = run(agreement, monkeypatch, data, tmp_path / "out", {"stub": StubJudge()}, *options)
    right = "1.000 (1.000 to 1.000)"
    for method in ("claim_supported", "RAGAS 0.4.3 faithfulness"):
        assert f"| fm2, first 8 | AUC | {method} | 7 (1 unscored) | {right} |" in table
    assert f"| fm2 | AUC | claim_supported | 12 | {right} |" in table


def test_a_pair_is_scored_as_two_rows_whose_difference_counts():
    task = agreement.SETS["ragchecker_meta"]
    row = Labelled("7", "7", 1.0, user_input="q", response="one", other="two", reference="r")
    assert [one["response"] for one in task.rows(row)] == ["one", "two"]
    assert agreement.second_less_first([0.25, 1.0, None, 0.5]) == [0.75, None]


def test_each_person_is_held_against_the_mean_of_the_others(monkeypatch):
    monkeypatch.setattr(agreement_statistics, "N_RESAMPLES", 50)
    by_row = [[4, 4, 3], [1, 2, 1], [3, 1, 4], [2, 3, 2], [4, 1, 1], [3, 3, 4], [1, 4]]
    rows = [Labelled(str(n), str(n), 1.0, ratings={"faithfulness": one}) for n, one in enumerate(by_row)]
    (found,) = agreement.people(agreement.SETS["mtrag_human"], rows, seed=0)
    first, second, third = zip(*by_row[:6], strict=True)
    pairs = ((first, second, third), (second, first, third), (third, first, second))
    each = [stats.spearmanr(one, np.add(a, b)).statistic for one, a, b in pairs]
    assert found.figure.value == pytest.approx(np.mean(each), abs=1e-12)
    assert (found.n, found.method) == (6, "one person with the mean of the others")
    assert agreement.people(agreement.SETS["fm2"], rows, seed=0) == []


def test_two_people_are_held_against_each_other(monkeypatch):
    monkeypatch.setattr(agreement_statistics, "N_RESAMPLES", 50)
    by_row = [[2, 1], [-1, 0], [0, -2], [1, 2]]
    rows = [Labelled(str(n), str(n), 1.0, ratings={"preference": one}) for n, one in enumerate(by_row)]
    (found,) = agreement.people(agreement.SETS["ragchecker_meta"], rows, seed=0)
    first, second = zip(*by_row, strict=True)
    assert found.figure.value == pytest.approx(stats.pearsonr(first, second).statistic, abs=1e-12)
    assert found.method == "one person with the other"


def test_the_cascade_ends_where_its_second_stage_is(data, tmp_path, monkeypatch):
    cheap, right = StubJudge(lambda call: 0.5), StubJudge()
    cheap.name, cheap.fingerprint, right.name, right.fingerprint = "cheap", "c", "right", "r"
    table = run(
        verifier_agreement,
        monkeypatch,
        data,
        tmp_path / "out",
        {"a": cheap, "b": right},
        "--judges",
        "a,b",
        "--sets",
        "fm2",
    )
    assert "| fm2 | cheap | 12 | 0.500 (0.500 to 0.500) |" in table
    assert "| fm2 | right | 12 | 1.000 (1.000 to 1.000) |" in table
    assert "| fm2 | 1.00 | 1.000 (1.000 to 1.000) |" in table


def test_an_encoder_is_measured_without_a_judge(data, tmp_path, monkeypatch):
    folder = make_verifier(tmp_path / "tiny-nli")
    monkeypatch.setattr(agreement_statistics, "N_RESAMPLES", 50)
    options = ["--verifier", str(folder), "--sets", "fm2,ragtruth_qa_test", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["benchmark", "--data-folder", str(data), *options])
    verifier_agreement.main()
    table = (tmp_path / "out" / "verifier_agreement.md").read_text(encoding="utf-8")
    assert "| fm2 | tiny-nli | 12 |" in table
    assert "| ragtruth_qa_test | tiny-nli | 16 |" in table
    assert "Cascade" not in table
