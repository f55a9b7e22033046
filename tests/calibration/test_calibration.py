"""Calibration: the figures against scikit-learn, the fits by hand, and the way into `evaluate`."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference
from tiny_verifiers import make_verifier

import offline_judge
from offline_judge import UserError
from offline_judge.backends.supported_label import SUPPORTED_PAIRS, UNSUPPORTED_PAIRS
from offline_judge.calibration import Calibration, calibrate, read_labels
from offline_judge.calibration.diagram import reliability_svg
from offline_judge.calibration.figures import (
    auc,
    balanced_accuracy,
    calibration_error,
    kappa,
    with_interval,
)
from offline_judge.calibration.fit import best_threshold, cascade_band, fit_applied, fit_isotonic, fit_platt
from offline_judge.cli import main
from offline_judge.schema.text_files import JsonLines


def one(figures, n):
    return figures(np.ones((1, n)))[0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=40))
def test_figures_are_those_of_scikit_learn(rows):
    labels = np.array([float(label) for label, _ in rows])
    p = np.array([level / 8 for _, level in rows])
    verdicts = (p >= 0.5).astype(float)
    n = len(rows)
    if 0 < labels.sum() < n:
        assert one(auc(labels, p), n) == pytest.approx(reference.roc_auc_score(labels, p))
        wanted = reference.balanced_accuracy_score(labels, verdicts)
        assert one(balanced_accuracy(labels, verdicts), n) == pytest.approx(wanted)
        if len(set(verdicts)) == 2:
            assert one(kappa(labels, verdicts), n) == pytest.approx(
                reference.cohen_kappa_score(labels, verdicts)
            )
    else:
        assert np.isnan(one(auc(labels, p), n))


def test_weights_are_repeated_rows():
    rng = np.random.default_rng(0)
    labels, p = rng.integers(0, 2, 30).astype(float), rng.integers(0, 6, 30) / 5
    weights = rng.integers(0, 4, 30)
    repeated = np.repeat(np.arange(30), weights)
    verdicts = (p >= 0.5).astype(float)
    about = {auc: p, balanced_accuracy: verdicts, kappa: verdicts, calibration_error: p}
    for figures, arg in about.items():
        weighted = figures(labels, arg)(weights[None].astype(float))[0]
        plain = one(figures(labels[repeated], arg[repeated]), len(repeated))
        assert weighted == pytest.approx(plain)


def test_calibration_error_by_hand():
    # bin 0.2: p 0.25 twice, one supported: |0.5 - 0.25|; bin 0.9: p 0.95, supported: 0.05; by rows 2:1
    figures = calibration_error(np.array([1.0, 0, 1]), np.array([0.25, 0.25, 0.95]))
    assert one(figures, 3) == pytest.approx((2 * 0.25 + 0.05) / 3)


def test_intervals_are_seeded_and_hold_the_value():
    labels, p, documents = shifted()
    first, again = (with_interval(auc(labels, p), documents, np.random.default_rng(3)) for _ in range(2))
    assert first == again
    assert first.low < first.value < first.high


def test_the_best_threshold_lies_between_two_probabilities():
    labels, p = np.array([0.0, 0, 0, 1, 0, 1, 1]), np.array([0.1, 0.1, 0.2, 0.3, 0.4, 0.8, 0.9])
    assert 0.2 < best_threshold(labels, p) < 0.3 or 0.4 < best_threshold(labels, p) < 0.8
    assert best_threshold(np.array([0.0, 0, 1, 1]), np.array([0.01, 0.02, 0.03, 0.99])) < 0.03


def shifted(n=400, seed=0):
    """A model that ranks well but calls nearly everything unsupported, with 20 documents."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n).astype(float)
    p = 1 / (1 + np.exp(-(3 * (2 * labels - 1) + 1.5 * rng.normal(size=n) - 4)))
    return labels, p, [f"d{place % 20}" for place in range(n)]


def test_what_evaluate_applies_maps_the_threshold_to_a_half_and_keeps_the_order():
    labels, p, _ = shifted()
    line = fit_applied(labels, p)
    at = best_threshold(labels, p)
    assert line(np.array([at]))[0] == pytest.approx(0.5)
    order = np.argsort(p)
    assert (np.diff(line(p[order])) >= 0).all()


def test_the_curves_calibrate():
    labels, p, _ = shifted()
    raw = one(calibration_error(labels, p), len(p))
    assert raw > 0.3
    assert one(calibration_error(labels, fit_platt(labels, p)(p)), len(p)) < 0.05
    assert one(calibration_error(labels, fit_isotonic(labels, p)(p)), len(p)) < 0.05


def test_cascade_thresholds_for_a_share_and_for_an_agreement():
    labels, p, _ = shifted()
    calibrated = fit_applied(labels, p)(p)
    band = cascade_band(labels, calibrated, share=0.3)
    sent = (calibrated > band.low) & (calibrated < band.high)
    assert sent.mean() == pytest.approx(band.share_sent) and band.share_sent <= 0.3
    assert band.low < 0.5 < band.high
    least = cascade_band(labels, calibrated, agreement=0.999)
    kept = (calibrated <= least.low) | (calibrated >= least.high)
    assert ((calibrated >= 0.5) == labels)[kept].mean() >= 0.999
    assert cascade_band(labels, calibrated, share=0.0)[:3] == (0.5, 0.5, 0.0)
    assert cascade_band(1 - labels, calibrated, agreement=1.0).share_sent == 1.0


def fit(labels, p, documents, **settings):
    return calibrate(
        labels, p, documents, model="m", kind="encoder", fingerprint="f", about={"file": "x"}, **settings
    )


def test_held_out_rows_are_called_better_than_at_a_half():
    found = fit(*shifted())
    assert found.figures["balanced_accuracy"][0] > found.figures["balanced_accuracy_at_half"][0] + 0.1
    assert found.figures["balanced_accuracy"][0] > 0.9
    assert found.figures["ece_platt"][0] < found.figures["ece"][0]
    assert found(found.threshold) == pytest.approx(0.5)
    assert fit(*shifted()) == found
    assert fit(*shifted(), seed=1).figures["auc"][0] == found.figures["auc"][0]


def test_labels_that_say_nothing_are_refused():
    labels, p, documents = shifted()
    with pytest.raises(UserError, match="do not rank"):
        fit(1 - labels, p, documents)
    with pytest.raises(UserError, match="too few labelled claims") as caught:
        fit(np.r_[np.ones(9), np.zeros(50)], np.linspace(0, 1, 59), ["d"] * 59)
    assert caught.value.details["found"] == "9 supported, 50 not"
    with pytest.raises(UserError, match="too few documents"):
        fit(labels, p, ["d"] * len(p))


def test_it_is_kept_and_found_again(tmp_path):
    found = fit(*shifted())
    path = found.save(tmp_path)
    assert Calibration.read(path) == found
    path.write_text(path.read_text().replace('"slope": ', '"slope": -'))
    with pytest.raises(UserError, match="can't be used"):
        Calibration.read(path)
    path.write_text("{}")
    with pytest.raises(UserError, match="no calibration"):
        Calibration.read(path)


def test_the_picture_is_svg_with_a_point_per_bin():
    found = fit(*shifted())
    picture = ET.fromstring(reliability_svg(found))
    circles = picture.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == sum(len(points) for points in found.figures["reliability"].values())


# Labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "premise,claim\na,b\n", "line 2 has no label"),
        ("x.csv", "premise,claim,label\na,b,maybe secret\n", "line 2, column 'label' is not understood"),
        ("x.csv", "premise,claim,label\na,b,0.3\n", "not understood"),
        ("x.csv", "premise,claim,label\n", "holds no labelled claims"),
        (
            "x.jsonl",
            '{"premise": "a", "claim": "b", "label": 1}\n[1]\n',
            r"line 2: a list \(list\) where a row belongs",
        ),
        ("x.jsonl", '{"premise": "a", "claim": " ", "label": 1}\n', "line 1 has no claim"),
        ("x.xlsx", "", "with the ending '.xlsx'"),
        ("x.csv", 'premise,claim,label\na,"b,1\n', "line 2: broken CSV"),
        ("x.csv", "it says a secret.,claim,label\na,b,1\n", "line 2 has no premise"),
    ],
)
def test_labels_that_can_not_be_read_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_labels(tmp_path / name)
    assert "secret" not in str(caught.value)


def test_labels_are_read_from_words_and_numbers(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("premise\tclaim\tlabel\tdocument\na\tb\tTrue\td1\na\tc\tneutral\td1\na\td\t1.0\t\n")
    assert [(row.label, row.document) for row in read_labels(path)] == [(1, "d1"), (0, "d1"), (1, "a")]
    path.write_text("premise\tclaim\tlabel\na\tb\t0.25\n")
    assert read_labels(path, probabilities=True)[0].label == 0.25


def test_text_that_no_model_takes_is_replaced_in_labels_as_in_rows(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"premise,claim,label\na\0b,c,1\n")
    (tmp_path / "x.jsonl").write_text(r'{"premise": "a", "claim": "half \ud83d", "label": 0}')
    assert read_labels(tmp_path / "x.csv")[0].premise == "a\ufffdb"
    assert read_labels(tmp_path / "x.jsonl")[0].claim == "half \ufffd"


def test_labels_that_fail_while_they_are_read_are_one_error(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    path.write_text('{"premise": "a", "claim": "b", "label": 1}')

    def fails(self, used):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(JsonLines, "records", fails)
    with pytest.raises(UserError, match=r"x\.jsonl can't be read"):
        read_labels(path)


# The way into a run ---------------------------------------------------------------------------


def test_a_calibration_is_used_by_evaluate_and_stands_in_its_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_JUDGE_MODELS", str(tmp_path / "shelf"))
    make_verifier(tmp_path / "shelf" / "tiny")
    pairs = [(*pair, 1) for pair in SUPPORTED_PAIRS] + [(*pair, 0) for pair in UNSUPPORTED_PAIRS]
    lines = [{"premise": a, "claim": b, "label": label} for a, b, label in pairs * 2]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def cli(*args):
        result = CliRunner().invoke(main, list(args), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    wanted = ("--labels", "labels.jsonl", "--verifier", "tiny", "--share", "0.2")
    output = cli("calibrate", *wanted, "--device", "cpu")
    assert "1.000 (1.000 to 1.000)" in output
    (kept,) = (tmp_path / "shelf" / "calibrations").glob("tiny-*.json")
    assert kept.with_suffix(".svg").is_file()

    row = {"question": "q", "answer": "The museum opens at nine.", "contexts": [SUPPORTED_PAIRS[0][0]]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    common = ("evaluate", "rows.jsonl", "--judge", "none", "--verifier", "tiny", "--metrics", "faithfulness")
    cli(*common, "--name", "with", "--device", "cpu")
    cli(*common, "--name", "without", "--device", "cpu", "--calibration", "none")
    runs = {name: offline_judge.Result.load(tmp_path / "runs" / name) for name in ("with", "without")}
    found = Calibration.read(kept)
    assert runs["with"].record["calibrations"]["verifier"]["threshold"] == found.threshold
    assert runs["without"].record["calibrations"] == {}
    (raw,) = runs["without"].soft("faithfulness")
    assert runs["with"].soft("faithfulness") == [pytest.approx(found(raw))]
    assert [one.record["usage"]["from_store"] for one in runs.values()] == [1, 1]  # asked by calibrate
    other = make_verifier(tmp_path / "other", labels=("LABEL_0", "LABEL_1"))
    with pytest.raises(UserError, match="of another model"):
        offline_judge.evaluate([row], ["faithfulness"], judge="none", verifier=other, calibration=str(kept))
