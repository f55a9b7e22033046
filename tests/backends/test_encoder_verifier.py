"""Cross-encoders of every family through the whole path, against a plain transformers loop."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tiny_verifiers import FAMILIES, NLI, make_verifier

from offline_judge.backends import open_verifier
from offline_judge.backends.protocol import Failed, SupportCall, Supported
from offline_judge.errors import UserError
from offline_judge.text import windows

FILLER = " ".join(f"Nothing of note happened on day {n} of the year." for n in range(60))
PREMISES = (
    "The museum opens at nine and closes at five every day.",
    "Maria bought three red apples.\n\nThe bridge was built in 1932 and is 503 metres long.",
    "서울의 수도는 어디입니까? 열쇠는 매트 아래에 있다. " + FILLER,
    FILLER + " The key is under the mat.",
)
CLAIMS = ("The museum opens at nine.", "The key is under the mat.", "열쇠는 있다.", "Apples " * 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def make(family):
        if family not in made:
            made[family] = make_verifier(tmp_path_factory.mktemp(family) / "m", family)
        return made[family]

    return make


def load(path, **settings):
    return open_verifier(path, name="tiny", fingerprint="f", device="cpu", **settings)


def answers(verifier, pairs):
    found = dict(verifier.verify([SupportCall(*pair) for pair in pairs]))
    assert sorted(found) == list(range(len(pairs)))
    return [found[position] for position in range(len(pairs))]


def plain_loop(path, premise, claim):
    """P(entailment) and its window, one pair after another, by transformers alone."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    n_special = tokenizer.num_special_tokens_to_add(pair=True)

    def n_tokens(texts):
        return [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]

    n_premise, n_claim = n_tokens([premise, claim])
    cut = [(premise, None)]
    if n_premise + n_claim + n_special > 128:
        kept = 64 if n_claim <= 64 and 128 - n_special - 64 >= 32 else n_claim
        parts = windows(premise, n_tokens, 128 - n_special - kept)
        cut = [(part.text, (part.start, part.end)) for part in parts]
    best = (-1.0, None)
    for text, span in cut:
        with torch.inference_mode():
            inputs = tokenizer(text, claim, return_tensors="pt")
            assert inputs["input_ids"].shape[1] <= 128
            p = model(**inputs).logits.softmax(dim=1)[0, 0].item()
        if p > best[0] + 1e-6:
            best = (p, span)
    return best


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_a_plain_transformers_loop(family, folder):
    path = folder(family)
    pairs = [(premise, claim) for premise in PREMISES for claim in CLAIMS[:3]]
    verifier = load(path)
    found = answers(verifier, pairs)
    for (premise, claim), answer in zip(pairs, found, strict=True):
        p, span = plain_loop(path, premise, claim)
        assert answer.probability == pytest.approx(p, abs=2e-5)
        if span is None or answer.window is None:
            assert answer.window is span is None
    assert any(answer.window for answer in found)
    assert verifier.describe()["supported_label"] == "entailment"
    assert verifier.describe()["device"] == "cpu"


@pytest.mark.parametrize(
    "labels", [("SUPPORTED", "REFUTES"), ("LABEL_0", "LABEL_1"), ("not_entailment", "entailment")]
)
def test_two_way_models_and_unnamed_labels_are_understood(labels, tmp_path):
    supported = 0 if labels[0] == "SUPPORTED" else 1
    verifier = load(make_verifier(tmp_path / "m", labels=labels, supported=supported))
    assert verifier.label.index == supported
    yes, no = answers(verifier, [(PREMISES[0], CLAIMS[0]), (PREMISES[0], "The museum never opens.")])
    assert yes.probability > 0.8 > 0.2 > no.probability


def test_a_single_logit_is_a_sigmoid(tmp_path):
    verifier = load(make_verifier(tmp_path / "m", labels=("LABEL_0",)))
    yes, no = answers(verifier, [(PREMISES[0], CLAIMS[0]), (PREMISES[0], "The museum never opens.")])
    assert 1 >= yes.probability > 0.8 > 0.2 > no.probability >= 0


def test_a_sentence_transformers_cross_encoder_folder_works(tmp_path):
    from sentence_transformers import CrossEncoder

    source = make_verifier(tmp_path / "source", labels=("LABEL_0",))
    encoder = CrossEncoder(str(source), device="cpu", local_files_only=True)
    encoder.save_pretrained(str(tmp_path / "saved"))
    pairs = [(PREMISES[0], CLAIMS[0]), (PREMISES[1], CLAIMS[1])]
    found = [answer.probability for answer in answers(load(tmp_path / "saved"), pairs)]
    assert found == pytest.approx(encoder.predict(pairs).tolist(), abs=1e-5)


# Labels ---------------------------------------------------------------------------------------


def test_swapped_labels_are_refused(tmp_path):
    path = make_verifier(tmp_path / "m", labels=NLI, supported=2)
    with pytest.raises(UserError, match="'entailment' does not recognise") as caught:
        load(path)
    assert "swapped" in caught.value.details["found"]
    assert "mean" in caught.value.details["'contradiction'"]


def test_labels_that_can_not_be_told_apart_are_refused(tmp_path):
    path = make_verifier(tmp_path / "m", labels=("LABEL_0", "LABEL_1", "LABEL_2"), taught=False)
    with pytest.raises(UserError, match="which label means supported") as caught:
        load(path)
    assert {"'LABEL_0'", "'LABEL_1'", "'LABEL_2'"} <= set(caught.value.details)


def test_a_model_without_a_trained_head_is_refused(tmp_path):
    from transformers import AutoModelForSequenceClassification

    path = make_verifier(tmp_path / "m", taught=False)
    AutoModelForSequenceClassification.from_pretrained(path).bert.save_pretrained(path)
    with pytest.raises(UserError, match="holds no sequence classifier"):
        load(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(
        json.dumps(config | {"architectures": ["BertForSequenceClassification"]})
    )
    with pytest.raises(UserError, match="lacks weights") as caught:
        load(path)
    assert "classifier.bias" in caught.value.details["missing"]


def test_pickled_weights_are_not_loaded(folder, tmp_path):
    shutil.copytree(folder("bert"), tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(UserError, match="no safetensors weights"):
        load(tmp_path / "m")


# Work -----------------------------------------------------------------------------------------


def test_equal_pairs_and_premises_are_computed_and_tokenised_once(folder, monkeypatch):
    verifier = load(folder("bert"))
    encoded, rows = [], []
    encode, forward = verifier._encoder.encode, verifier._forward
    monkeypatch.setattr(verifier._encoder, "encode", lambda texts: encoded.extend(texts) or encode(texts))
    monkeypatch.setattr(verifier, "_forward", lambda pairs: rows.append(len(pairs)) or forward(pairs))
    pairs = [(PREMISES[0], CLAIMS[0]), (PREMISES[0], CLAIMS[1])] * 5
    found = answers(verifier, pairs)
    assert sum(rows) == 2
    assert sorted(encoded) == sorted([PREMISES[0], CLAIMS[0], CLAIMS[1]])
    assert found[0::2] == [found[0]] * 5


def test_an_answer_does_not_depend_on_its_batch(folder):
    verifier = load(folder("deberta_v3"))
    pairs = [(premise, claim) for premise in PREMISES for claim in CLAIMS[:3]]
    together = answers(verifier, pairs)
    for pair, answer in zip(pairs, together, strict=True):
        (alone,) = answers(verifier, [pair])
        assert alone.probability == pytest.approx(answer.probability, abs=2e-5)
        assert (alone.n_tokens, alone.window is None) == (answer.n_tokens, answer.window is None)


def test_a_claim_that_leaves_no_room_fails_by_name(folder):
    long, short = answers(load(folder("bert")), [(FILLER, "word " * 200), (PREMISES[0], CLAIMS[0])])
    assert long == Failed("verifier_claim_too_long", long.detail)
    assert isinstance(short, Supported)


def test_out_of_memory_halves_the_budget_and_goes_on(folder, monkeypatch):
    verifier = load(folder("bert"))
    plain = verifier._forward
    sizes = []

    def small_machine(pairs):
        if len(pairs) > 3:
            raise torch.OutOfMemoryError("no")
        sizes.append(len(pairs))
        return plain(pairs)

    pairs = [(premise, claim) for premise in PREMISES[:2] for claim in CLAIMS[:3]]
    wanted = answers(verifier, pairs)
    monkeypatch.setattr(verifier, "_forward", small_machine)
    found = answers(verifier, pairs)
    assert [one.probability for one in found] == pytest.approx([one.probability for one in wanted], abs=2e-5)
    assert sum(sizes) == 6
    assert verifier.describe()["out_of_memory"] >= 1

    def no_machine(pairs):
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(verifier, "_forward", no_machine)
    assert {one.reason for one in answers(verifier, pairs)} == {"verifier_out_of_memory"}


def test_after_stop_the_batch_under_way_is_given_and_no_other_begun(folder, monkeypatch):
    verifier = load(folder("bert"))
    monkeypatch.setattr(verifier._budget, "max_tokens", 128)
    calls = [SupportCall(f"The museum opens at {n}.", f"It opens at {n}.") for n in range(40)]
    seen = []
    for position, _ in verifier.verify(calls):
        seen.append(position)
        verifier.stop()
    assert 1 < len(seen) < 20
    assert len(dict(verifier.verify(calls))) == 40  # the next time it is whole again
