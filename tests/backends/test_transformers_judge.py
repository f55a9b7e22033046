from __future__ import annotations

import json
import math
from collections.abc import Sequence

import jsonschema
import pytest
import torch

from offline_judge.backends import batching, choice_reader, prefix_groups
from offline_judge.backends.protocol import ChooseCall, Chosen, Failed, GenerateCall, Generated
from offline_judge.backends.transformers_judge import TransformersJudge

TEXTS = [
    "The sun is a star.",
    "10만원을 넘으면 영수증을 첨부합니다.",
    "最初の大会は1967年に開かれました",
    "a" * 90,
]


def claims_schema(n: int) -> str:
    item = {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 1}
    keys = [str(i) for i in range(1, n + 1)]
    return json.dumps(
        {
            "type": "object",
            "properties": dict.fromkeys(keys, item),
            "required": keys,
            "additionalProperties": False,
        }
    )


def generate(n_keys=1, text="The sun is a star.", max_tokens=900, temperature=0.0, seed=0):
    messages = (("system", "Answer in JSON."), ("user", f"List the claims: {text}"))
    return GenerateCall(messages, claims_schema(n_keys), max_tokens, temperature, seed)


def choose(premise: str, claim: str, options=("1", "0")):
    return ChooseCall((("user", f"Document: {premise}\nClaim: {claim}\nSupported?"),), options)


def answers(judge, calls: Sequence):
    found = dict(judge.answer(calls))
    assert len(found) == len(calls)
    return [found[i] for i in range(len(calls))]


@pytest.fixture(scope="module")
def tiny(tiny_model):
    """Random weights: nothing but the constraint makes its text JSON."""
    judge = TransformersJudge(tiny_model, name="tiny", fingerprint="f", device="cpu")
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def smollm(shelf_model):
    judge = TransformersJudge(
        shelf_model("smollm2-135m-instruct"), name="smollm2", fingerprint="f", device="cpu"
    )
    yield judge
    judge.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_generation_holds_to_its_own_schema(tiny, temperature):
    calls = [generate(n, TEXTS[n % len(TEXTS)], temperature=temperature, seed=n) for n in range(1, 21)]
    for call, answer in zip(calls, answers(tiny, calls), strict=True):
        assert isinstance(answer, Generated)
        assert answer.finish == "stop"
        jsonschema.validate(json.loads(answer.text), json.loads(call.schema))


def test_outlines_holds_the_schema_as_well(tiny_model):
    judge = TransformersJudge(
        tiny_model, name="tiny", fingerprint="f", device="cpu", structured_backend="outlines"
    )
    schema = {"type": "object", "properties": {"v": {"enum": [0, 1]}, "w": {"enum": ["한국", "é"]}}}
    schema |= {"required": ["v", "w"], "additionalProperties": False}
    calls = [GenerateCall((("user", "Q"),), json.dumps(schema), 40, 1.0, seed) for seed in range(12)]
    texts = [answer.text for answer in answers(judge, calls)]
    for text in texts:
        jsonschema.validate(json.loads(text), schema)
    assert len(set(texts)) > 1


def test_a_real_model_answers_in_the_schema(smollm):
    (answer,) = answers(smollm, [generate(2, TEXTS[1])])
    jsonschema.validate(json.loads(answer.text), json.loads(claims_schema(2)))
    assert answer.tokens.prompt > 20
    assert answer.tokens.cached == 0
    assert answer.tokens.output > 4


def test_seeds_differ_and_a_seed_is_the_same_whatever_else_is_in_the_batch(tiny):
    sampled = [generate(1, temperature=0.9, seed=seed) for seed in (1, 2, 3)]
    alone = [answers(tiny, [call])[0].text for call in sampled]
    assert len(set(alone)) == 3
    crowd = [generate(n, TEXTS[n % 4], temperature=0.9, seed=9) for n in range(1, 5)]
    together = answers(tiny, [*crowd[:2], *sampled, *crowd[2:]])
    assert [answer.text for answer in together[2:5]] == alone


def test_greedy_answers_do_not_depend_on_the_batch(tiny):
    calls = [generate(2, text) for text in TEXTS]
    assert [a.text for a in answers(tiny, calls)] == [answers(tiny, [call])[0].text for call in calls]


def test_the_token_limit_is_a_length_stop(tiny):
    short, enough = answers(tiny, [generate(4, max_tokens=5), generate(4)])
    assert (short.finish, short.tokens.output) == ("length", 5)
    assert enough.finish == "stop"


def test_probabilities_are_a_softmax_over_the_options(smollm):
    (answer,) = answers(smollm, [choose("The sun is a star.", "The sun is a star.", ("1", "0", "x"))])
    assert math.isclose(sum(answer.probabilities), 1, abs_tol=1e-12)
    assert len(set(answer.probabilities)) == 3
    (turned,) = answers(smollm, [choose("The sun is a star.", "The sun is a star.", ("x", "1", "0"))])
    assert turned.probabilities == pytest.approx(
        (answer.probabilities[2], *answer.probabilities[:2]), abs=1e-6
    )


def test_prefix_cache_changes_the_cost_but_not_the_probabilities(tiny, monkeypatch):
    premises = [" ".join(f"{word}{i}" for i in range(60)) for word in ("tree", "stone", "sea")]
    calls = [choose(premise, f"claim {'long ' * i}{i}") for premise in premises for i in range(6)]
    cached = answers(tiny, calls)
    monkeypatch.setattr(prefix_groups, "MIN_PREFIX", 10**9)
    plain = answers(tiny, calls)
    assert sum(answer.tokens.cached for answer in plain) == 0
    assert sum(a.tokens.cached for a in cached) > 0.6 * sum(a.tokens.prompt for a in cached)
    for one, other in zip(cached, plain, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    # The probabilities say something: the prompts differ in them by far more than the tolerance.
    first = [answer.probabilities[0] for answer in plain]
    assert max(first) - min(first) > 1e-3


def test_a_plain_forward_pass_gives_the_same_probabilities(tiny, tiny_model):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    calls = [choose("word " * 100, f"claim {i}") for i in range(3)]
    for call, answer in zip(calls, answers(tiny, calls), strict=True):
        ids = tiny._chat.token_ids(call.messages)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        expected = logits[list(tiny._chat.first_token_ids(call.options))].softmax(dim=0)
        assert answer.probabilities == pytest.approx(expected.tolist(), abs=1e-5)


def test_one_bad_call_fails_alone(tiny):
    calls = [
        choose("x", "y"),
        choose("word " * 3000, "y"),
        generate(max_tokens=5000),
        GenerateCall((("user", "Q"),), '{"type": "nonsense"}', 10),
        generate(),
    ]
    found = answers(tiny, calls)
    assert isinstance(found[0], Chosen)
    assert [answer.reason for answer in found[1:4]] == [
        "judge_prompt_too_long",
        "judge_prompt_too_long",
        "judge_error",
    ]
    assert "context 2048" in found[1].detail
    assert isinstance(found[4], Generated)


def test_out_of_memory_halves_the_batch_and_goes_on(tiny, monkeypatch):
    sizes = []
    run = choice_reader.ChoiceReader._run

    def only_two_fit(self, batch, prefix):
        sizes.append(len(batch))
        if len(batch) > 2 or len(batch[0].ids) > 300:
            raise torch.OutOfMemoryError("no memory")
        return run(self, batch, prefix)

    monkeypatch.setattr(choice_reader.ChoiceReader, "_run", only_two_fit)
    found = answers(tiny, [*(choose("x", f"claim {i}") for i in range(5)), choose("word " * 300, "y")])
    assert all(isinstance(answer, Chosen) for answer in found[:5])
    assert isinstance(found[5], Failed)
    assert found[5].reason == "judge_out_of_memory"
    assert sizes[0] == 6


def test_batches_hold_to_the_token_budget_and_the_longest_comes_first(tiny):
    prompts = [tiny._chat.prepare(i, choose("x " * n, "y"), 2048) for i, n in enumerate([5, 900, 300, 900])]
    cut = list(batching.batches(prompts * 10, lambda prompt: len(prompt.ids), torch.device("cpu")))
    assert sum(len(batch) for batch in cut) == 40
    assert all(len(batch) * len(batch[0].ids) <= 16384 for batch in cut)
    lengths = [len(prompt.ids) for batch in cut for prompt in batch]
    assert lengths == sorted(lengths, reverse=True)


def test_token_counts_of_texts_are_without_the_template(tiny):
    assert tiny.n_tokens(["", "The sun", "The sun is"]) == [0, 2, 3]


# Memory that does not suffice, and stopping ------------------------------------------------------


PREMISES = [" ".join(f"{word}{n}" for n in range(60)) for word in ("tree", "sea", "iron")]
CHOICES = [choose(premise, f"The {n}th word is long.") for premise in PREMISES for n in range(20)]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        MemoryError(),
    ],
)
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_memory_that_runs_out_half_way_changes_no_answer(tiny, monkeypatch, error, at):
    """In the last layer, when the layers before have extended the keys and values of the prefix."""
    expected = answers(tiny, CHOICES)
    layer = tiny._model[0]._model.model.layers[-1]
    plain, n_passes = layer.forward, 0

    def forward(*args, **kwargs):
        nonlocal n_passes
        n_passes += 1
        if n_passes == at:
            raise error
        return plain(*args, **kwargs)

    monkeypatch.setattr(layer, "forward", forward)
    found = answers(tiny, CHOICES)
    assert n_passes > at
    for one, other in zip(found, expected, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_another_error_is_not_taken_for_a_lack_of_memory(tiny, monkeypatch):
    def forward(*args, **kwargs):
        raise RuntimeError("a shape does not fit")

    monkeypatch.setattr(tiny._model[0]._model.model.layers[-1], "forward", forward)
    with pytest.raises(RuntimeError, match="shape"):
        list(tiny.answer(CHOICES))


def test_after_stop_the_batch_under_way_is_given_and_no_other_begun(tiny):
    calls = [*CHOICES, *(generate(text=text) for text in TEXTS)]
    seen = []
    for position, _ in tiny.answer(calls):
        seen.append(position)
        tiny.stop()
    assert 1 < len(seen) <= 16
    assert len(answers(tiny, calls)) == len(calls)  # the next time it is whole again
