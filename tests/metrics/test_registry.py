from __future__ import annotations

from dataclasses import dataclass

import pytest

from offline_judge import UserError, metric
from offline_judge.metrics import Faithfulness as TheirFaithfulness
from offline_judge.metrics import registered
from offline_judge.metrics.registry import build, label, parse, split_metrics
from offline_judge.schema import COLUMNS

BUILT_IN = {name: cls for name, cls in registered().items() if cls.__module__.startswith("offline_judge.")}


@pytest.mark.parametrize("cls", BUILT_IN.values(), ids=BUILT_IN)
def test_every_metric_says_what_a_reader_needs(cls):
    assert set(cls.needs) <= set(COLUMNS)
    assert cls.source
    assert cls.version >= 1
    assert len(cls.__doc__.splitlines()) > 3


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("faithfulness", "faithfulness"),
        ("answer_relevancy", "response_relevancy"),
        ("context_utilization", "context_precision_without_reference"),
        ("answer_similarity", "semantic_similarity"),
        ("precision_at_k[k=3]", "precision_at_k[k=3]"),
        ("precision_at_k[k=none]", "precision_at_k"),
        ("factual_correctness[ mode = recall , beta=2 ]", "factual_correctness[mode=recall, beta=2]"),
        ("answer_correctness[weights=(1, 0)]", "answer_correctness[weights=(1, 0)]"),
    ],
)
def test_parse(text, name):
    assert label(parse(text)) == name


def test_a_label_parses_back_to_the_same_metric():
    for text in ("factual_correctness[mode=recall, beta=2]", "answer_correctness[weights=(1, 0), beta=0.5]"):
        assert label(parse(label(parse(text)))) == text


def test_commas_in_brackets_do_not_split():
    assert split_metrics("a, b[x=1, y=2],c") == ["a", "b[x=1, y=2]", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("faithfullness", "nearest  faithfulness"),
        ("faithfulness[treshold=1]", "nearest   threshold"),
        ("faithfulness[", "is not a metric"),
        ("faithfulness[threshold]", "is not a setting"),
        ("factual_correctness[mode=f2]", "mode must be one of"),
        ("factual_correctness[beta=0]", "beta"),
        ("response_relevancy[strictness=0]", "strictness"),
        ("answer_correctness[weights=(0, 0)]", "weights"),
        ("precision_at_k[k=1.5]", "k must be"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(UserError) as error:
        parse(text)
    assert message in str(error.value)


def test_a_clash_names_both_sides():
    with pytest.raises(UserError) as error:

        @metric(source="x", version=1)
        @dataclass(frozen=True)
        class Faithfulness:
            """Another."""

            needs = ("response",)

            def gather(self, row):
                yield []

            def score(self):
                pass

    assert "offline_judge.metrics.faithfulness.Faithfulness" in str(error.value)
    assert "test_a_clash_names_both_sides" in str(error.value)
    assert isinstance(build("faithfulness"), TheirFaithfulness)


def define(**changes):
    body = {
        "__doc__": "A metric.",
        "__module__": __name__,
        "needs": ("response",),
        "gather": lambda self, row: (yield []),
        "score": lambda self: None,
    }
    cls = type("Probe", (), {k: v for k, v in (body | changes).items() if v is not None})
    return dataclass(frozen=True)(cls)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"__doc__": None}, "docstring"),
        ({"gather": None}, "gather"),
        ({"score": None}, "score"),
        ({"needs": ("answer",)}, "unknown columns"),
    ],
)
def test_a_class_that_is_no_metric_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        metric(source="x", version=1)(define(**changes))
    assert "probe" not in registered()
