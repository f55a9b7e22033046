import numpy as np
import pytest
from agreement_statistics import (
    auc,
    balanced_accuracy,
    best_f1_threshold,
    best_threshold,
    difference,
    f1_of_false,
    pearson,
    spearman,
    wilson,
    with_interval,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

labelled = st.lists(
    st.tuples(st.booleans(), st.integers(0, 8).map(lambda n: n / 8)), min_size=4, max_size=30
).map(lambda pairs: (np.array([float(a) for a, _ in pairs]), np.array([b for _, b in pairs])))


@settings(deadline=None)
@given(labelled)
def test_auc_balanced_accuracy_and_f1_as_in_scikit_learn(pair):
    labels, scores = pair
    assume(0 < labels.sum() < len(labels))
    assert auc(labels, scores) == pytest.approx(metrics.roc_auc_score(labels, scores))
    expected = metrics.balanced_accuracy_score(labels, scores >= 0.5)
    assert balanced_accuracy(0.5)(labels, scores) == pytest.approx(expected)
    expected = metrics.f1_score(1 - labels, scores < 0.5, zero_division=0.0)
    assert f1_of_false(0.5)(labels, scores) == pytest.approx(expected)


@settings(deadline=None)
@given(labelled)
def test_the_best_thresholds_beat_every_other(pair):
    labels, scores = pair
    assume(0 < labels.sum() < len(labels))
    balanced = balanced_accuracy(best_threshold(labels, scores))(labels, scores)
    f1 = f1_of_false(best_f1_threshold(labels, scores))(labels, scores)
    for other in np.linspace(-0.07, 1.07, 40):
        assert balanced >= balanced_accuracy(other)(labels, scores) - 1e-12
        assert f1 >= f1_of_false(other)(labels, scores) - 1e-12


@settings(deadline=None)
@given(labelled)
def test_correlations_as_in_scipy(pair):
    labels, scores = pair
    assume(np.ptp(labels) and np.ptp(scores))
    assert spearman(labels, scores) == pytest.approx(stats.spearmanr(labels, scores).statistic)
    assert pearson(labels, scores) == pytest.approx(stats.pearsonr(labels, scores).statistic)


def test_one_class_or_a_constant_has_no_figure():
    ones = np.ones(4)
    rising = np.arange(4.0)
    assert np.isnan(auc(ones, rising))
    assert np.isnan(balanced_accuracy(0.5)(ones, rising))
    assert np.isnan(spearman(rising, ones))


def test_wilson_by_hand():
    # k = 40, n = 50, z = 1.96: centre (0.8 + z²/100) / (1 + z²/50), half width z √(0.16/50 + z²/10000) / (…)
    z = 1.959964
    width = z * (0.8 * 0.2 / 50 + z**2 / (4 * 50**2)) ** 0.5 / (1 + z**2 / 50)
    centre = (0.8 + z**2 / 100) / (1 + z**2 / 50)
    assert wilson(40, 50) == pytest.approx((0.8, centre - width, centre + width), abs=1e-6)


def test_intervals_resample_whole_groups_and_repeat():
    labels = np.array([1.0, 0.0] * 20)
    scores = np.where(labels > 0, 0.8, 0.2)
    scores[:6] = 0.5
    alone = with_interval(auc, labels, scores, [str(n) for n in range(40)], seed=1)
    # All of the undecided rows in one group: whole resamples have it often or not at all.
    grouped = with_interval(auc, labels, scores, ["same"] * 6 + [str(n) for n in range(34)], seed=1)
    assert alone.value == grouped.value
    assert alone.low <= alone.value <= alone.high
    assert grouped.high - grouped.low > alone.high - alone.low
    assert with_interval(auc, labels, scores, ["a", "b"] * 20, seed=1) == with_interval(
        auc, labels, scores, ["a", "b"] * 20, seed=1
    )


def test_a_score_does_not_beat_itself():
    labels = np.array([1.0, 0.0, 1.0, 0.0])
    scores = np.array([0.1, 0.2, 0.3, 0.4])
    assert difference(auc, auc, labels, scores, scores, list("abcd"), seed=0) == (0, 0, 0)
