import json
import sys
from typing import ClassVar

import pytest
import wikieval
from floors import density, word_overlap
from labelled_sets import Labelled
from ragas_peer import KeptRagas
from span_overlap import span_overlap
from stub_models import StubEmbedder, StubJudge, fields_of

ROWS = [
    {
        "question": f"Where does the bird number {n} nest?",
        "answer": f"The bird number {n} nests in reeds.",
        "ungrounded_answer": f"The bird number {n} nests on cliffs.",
        "poor_answer": "Birds are nice.'",
        "context_v1": [f"The bird number {n} nests in reeds."],
        "context_v2": [f"The bird number {n} nests in reeds. Trains were late. Cups are round."],
    }
    for n in range(4)
]


def choose(call):
    fields = fields_of(call)
    if "answer_1" in fields:
        return 0.9 if "reeds" in fields["answer_1"] else 0.1
    values = list(fields.values())
    return 0.9 if values[-1].rstrip(".").lower() in values[0].lower() else 0.1


def generate(call):
    if '"score"' in call.schema:
        return json.dumps({"score": 5})
    return StubJudge.write(call)


class OpenedPeer:
    """Answers in RAGAS's place: the response that holds "reeds" has 1.0, no context has a score."""

    asked: ClassVar[list[tuple[str, int]]] = []

    def score(self, rows, metrics):
        (metric,) = metrics
        self.asked.append((metric, len(rows)))
        return {metric: [1.0 * ("reeds" in row["response"]) if "response" in row else None for row in rows]}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the benchmark with models that answer by rule; return its JSON, its Markdown and the judge."""
    folder = tmp_path / "data" / "wikieval"
    folder.mkdir(parents=True)
    (folder / "wikieval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def run(*options):
        judge = StubJudge(choose, generate)

        class Run(wikieval.MeasuredRun):
            def __init__(self, out, *models, **settings):
                super().__init__(out, **settings)
                self.judge, self.embedder = judge, StubEmbedder()

            def ragas(self, environment):
                return KeptRagas(OpenedPeer, self.out / "ragas.jsonl", "stub")

        monkeypatch.setattr(wikieval, "MeasuredRun", Run)
        out = tmp_path / "out"
        monkeypatch.setattr(
            sys, "argv", ["wikieval.py", "--data-folder", str(folder.parent), "--out", str(out), *options]
        )
        wikieval.main()
        return (
            json.loads((out / "wikieval-stub.json").read_text()),
            (out / "wikieval-stub.md").read_text(),
            judge,
        )

    return run


def agreement(result, dimension, method, kind):
    (found,) = [
        one["agreement"]["all"]
        for one in result["methods"]
        if (one["dimension"], one["method"], one["kind"]) == (dimension, method, kind)
    ]
    return found


def test_agreement_ties_and_baselines(run):
    result, markdown, _ = run()
    faithful = agreement(result, "faithfulness", "faithfulness", "soft")
    assert (faithful["agree"], faithful["of"], faithful["ties"]) == (4, 4, 0)
    scores = agreement(result, "faithfulness", "score from 0 to 10", "baseline")
    assert (scores["agree"], scores["ties"], scores["with_a_coin"]) == (0, 4, 0.5)
    # The order of a ranking is drawn; the answer is turned back.
    assert agreement(result, "faithfulness", "ranking", "baseline")["agree"] == 4
    assert agreement(result, "context relevance", "the shorter context", "floor")["agree"] == 4
    assert "RAGAS, gpt-3.5-turbo (published)" in markdown


def test_a_second_run_asks_nothing_and_gives_the_same_table(run):
    first, _, _ = run()
    second, _, judge = run()
    assert judge.calls == []
    assert second["methods"] == first["methods"]


def test_ragas_stands_beside_our_metrics_on_the_same_questions(run):
    OpenedPeer.asked.clear()
    result, markdown, _ = run("--ragas", "3")
    theirs = agreement(result, "faithfulness", "RAGAS 0.4.3 faithfulness", "first 3")
    ours = agreement(result, "faithfulness", "faithfulness", "soft, first 3")
    assert (theirs["agree"], theirs["of"]) == (ours["agree"], ours["of"]) == (3, 3)
    lost = agreement(result, "context relevance", "RAGAS 0.4.3 context_relevance", "first 3")
    assert (lost["agree"], lost["of"], lost["unscored"]) == (0, 3, 3)
    assert OpenedPeer.asked == [(name, 6) for name in wikieval.RAGAS_METRICS.values()]

    OpenedPeer.asked.clear()
    assert run("--ragas", "3")[1] == markdown
    assert OpenedPeer.asked == []


def test_an_unscored_member_is_no_agreement():
    method = wikieval.Method("faithfulness", "m", "soft", [1.0, None, 0.5], [0.0, 0.0, None])
    counts = method.agreement([0, 1, 2])
    assert (counts["agree"], counts["of"], counts["unscored"]) == (1, 3, 2)


def test_word_overlap_by_hand():
    # bird, nests, cliffs: two of three; "the" and "on" are common.
    assert word_overlap("The bird nests in reeds.", "The bird nests on cliffs.") == pytest.approx(2 / 3)
    # 부산 has one pair of characters, 부산에서 has three, of which 부산 is one.
    assert word_overlap("부산", "부산에서") == pytest.approx(1 / 3)
    assert density("birds nest, birds sing", "Which birds?") == pytest.approx(2 / 4)


def test_flagged_sentences_against_marked_spans():
    response = "It is red. It is blue."
    marked = [
        Labelled(
            str(n), str(n), 0.0, response=response, retrieved_contexts=("It is red.",), spans=((11, 22),)
        )
        for n in range(4)
    ]
    by_sentence = [{"It is red.": 0.9, "It is blue.": 0.1}] * 4
    found, n = span_overlap(marked, by_sentence, seed=0)
    assert n == 2
    assert dict(found)["p of the sentence"].value == 1.0
