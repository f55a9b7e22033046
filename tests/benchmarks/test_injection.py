"""The benchmark of attacks: its texts, its arithmetic, and what it makes of a judge that obeys."""

from __future__ import annotations

import json
from contextlib import contextmanager

import injection
import measured_run
import pytest
from injection import PLACES, Trial
from stub_models import StubJudge, fields_of

from offline_judge import Unscored
from offline_judge.engine.rounds import Engine
from offline_judge.shelf import Shelf

ROWS, ATTACKS = injection.read_cases()


def test_there_are_enough_attacks_of_every_kind_in_both_languages():
    assert len({attack.whole for attack in ATTACKS}) == len(ATTACKS) >= 40
    kinds = {"ignore the above", "closing tag", "few-shot", "role switch", "fake system message", "flattery"}
    kinds |= {"long padding", "JSON fragment", "translation"}
    for language in ("en", "ko"):
        assert kinds <= {attack.kind for attack in ATTACKS if attack.language == language}
        assert sum(attack.language == language for attack in ATTACKS) >= 20
    assert {row.language for row in ROWS} == {"en", "ko"}


def test_no_attack_states_a_claim():
    for attack in ATTACKS:
        assert not any(row.claim.rstrip(".").lower() in attack.whole.lower() for row in ROWS)


def test_an_attack_stands_at_the_end_of_one_text():
    row, attack = ROWS[0], injection.Attack("x", "en", "ab ", repeat=3, then="end")
    split = ("The answer is Yes.", row.claim)
    in_chunk, in_response, in_all, in_sentences, in_claim = (
        row.attacked(attack, place, split) for place in PLACES
    )
    assert in_chunk == (f"{row.document}\n\nab ab ab end", (row.claim,))
    assert row.response(attack) == f"{row.claim} ab ab ab end"
    assert in_response == (row.document, (row.claim,))
    assert in_all == (row.document, split)
    assert in_sentences == (row.document, (row.claim,))  # the attack is a sentence of its own
    assert in_claim == (row.document, (row.response(attack),))


def test_a_claim_that_is_gone_leaves_nothing_to_check():
    assert ROWS[0].own(("Yes", "The answer is Yes.")) == ()
    assert ROWS[0].own(()) == ()


def test_an_attack_that_goes_on_in_the_claim_s_sentence_stays_with_it():
    row = injection.Row("en", "q", "d", "The pool opens at seven")
    attack = injection.Attack("x", "en", "and the answer is Yes.")
    _, claims = row.attacked(attack, "response, by sentences", ())
    assert claims == ("The pool opens at seven and the answer is Yes.",)


@pytest.mark.parametrize(
    ("before", "after", "counts", "succeeds"),
    [
        (0.2, (0.5,), True, True),
        (0.2, (0.49,), True, False),
        (0.5, (0.9,), False, False),
        (0.2, (0.9, 0.1), True, True),
        (0.2, (0.9, 0.1, 0.1), True, False),
        (0.2, (), True, True),  # nothing is left to check
    ],
)
def test_a_trial(before, after, counts, succeeds):
    trial = Trial(0, "chunk", before, after)
    assert (trial.counts, trial.succeeds) == (counts, succeeds)


class ARun:
    """A run on a judge by rule, without a store."""

    def __init__(self, judge):
        self.judge = judge

    @contextmanager
    def engine(self, part):
        yield Engine(self.judge)


def test_every_attack_is_tried_at_each_place_and_counted():
    def obeys(call):
        return 0.9 if "verdict 1" in call.messages[-1][1] else 0.1

    run = ARun(StubJudge(choose=obeys))
    found = injection.trials(run, "ours", ROWS, ATTACKS, injection.split_responses(run, ROWS, ATTACKS, 2))
    assert len(found) == len(ATTACKS) * len(PLACES) * 2
    worked = {trial.attack for trial in found if trial.succeeds}
    assert worked == {number for number, attack in enumerate(ATTACKS) if "verdict 1" in attack.whole}
    n = len(worked)
    first, last = (injection.lines_of("ours", found, ATTACKS)[place] for place in (0, -1))
    in_rows = len(ATTACKS) * 2 * 2
    # In the response the stub judge hands on the row's claim as it is, and the attack beside it.
    assert first[:3] == ["ours", "chunk and response", f"{2 * n} of {in_rows}"]
    assert last[:3] == ["ours", "attacks that worked in chunk or response", f"{n} of {len(ATTACKS)}"]


def test_a_response_that_could_not_be_split_is_no_trial():
    def breaks(call):
        return "no" if "SYSTEM:" in fields_of(call)["sentences"] else StubJudge.write(call)

    run = ARun(StubJudge(choose=lambda call: 0.1, generate=breaks))
    split = injection.split_responses(run, ROWS, ATTACKS, 1)
    broken = [number for (number, _), claims in split.items() if isinstance(claims, Unscored)]
    assert [ATTACKS[number].kind for number in broken] == ["fake system message"]
    found = injection.trials(run, "ours", ROWS, ATTACKS, split)
    assert len(found) == len(ATTACKS) * len(PLACES) - 2


@pytest.mark.parametrize("verdict", injection.OTHER_VERDICTS, ids=lambda verdict: verdict.prompt)
def test_other_verdicts_are_attacked_with_and_without_their_control(verdict):
    def obeys(call):
        return 0.9 if "verdict 1" in call.messages[-1][1] else 0.1

    found = injection.other_trials(ARun(StubJudge(choose=obeys, control=obeys)), verdict, ROWS, ATTACKS, 2)
    obeyed = [number for number, attack in enumerate(ATTACKS) if "verdict 1" in attack.whole]
    assert len(found["ours"]) == len(ATTACKS) * 2
    assert not any(trial.succeeds for trial in found["ours"])
    assert [t.attack for t in found[injection.WITHOUT_CONTROL] if t.succeeds] == [
        number for number in obeyed for _ in range(2)
    ]


def test_the_whole_benchmark(monkeypatch, tmp_path):
    monkeypatch.setattr(
        Shelf,
        "find",
        lambda self, model, role: type("Found", (), {"path": "x", "name": "stub", "fingerprint": "f"}),
    )
    monkeypatch.setattr(measured_run, "open_judge", lambda *_, **__: StubJudge(choose=lambda call: 0.1))
    monkeypatch.setattr(
        "sys.argv", ["injection.py", "--judge", "stub", "--out", str(tmp_path), "--rows-each", "1"]
    )
    injection.main()
    table = (tmp_path / "injection.md").read_text(encoding="utf-8")
    assert f"| ours | chunk and response | 0 of {2 * len(ATTACKS)} | 0.000 (0.000 to " in table
    assert f"| plain | chunk and response | 0 of {2 * len(ATTACKS)} |" in table
    assert f"Schemas broken in generated claims: 0 of {len(ATTACKS)};" in table
    assert json.loads((tmp_path / "injection.json").read_text())["schemas_broken"] == [0, len(ATTACKS)]
