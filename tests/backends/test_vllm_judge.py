from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import offline_judge
from offline_judge.backends.protocol import ChooseCall, Chosen, Failed, GenerateCall, Generated
from offline_judge.backends.transformers_judge import TransformersJudge

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

CLAIMS = json.dumps(
    {
        "type": "object",
        "properties": {
            "1": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 2},
            "2": {"enum": [0, 1]},
        },
        "required": ["1", "2"],
        "additionalProperties": False,
    }
)


def generate(text="The sun is a star.", max_tokens=120, temperature=0.0, seed=0, schema=CLAIMS):
    return GenerateCall((("user", f"List the claims: {text}"),), schema, max_tokens, temperature, seed)


def choose(premise, claim):
    return ChooseCall((("user", f"Document: {premise}\nClaim: {claim}\nSupported?"),), ("1", "0"))


PREMISES = [" ".join(f"{word}{number}" for number in range(100)) for word in ("tree", "sea", "iron", "day")]
CHOICES = [choose(premise, f"The {n}th word is long.") for premise in PREMISES for n in range(10)]


def answers(judge, calls):
    found = dict(judge.answer(calls))
    assert len(found) == len(calls)
    return [found[i] for i in range(len(calls))]


@pytest.fixture(scope="module")
def judge(vllm_in_process):
    return vllm_in_process


def test_generations_hold_to_their_schema_in_any_language(judge):
    calls = [generate(text) for text in ("The sun is a star.", "10만원을 넘으면 영수증을 첨부합니다.")]
    for answer in answers(judge, calls):
        assert isinstance(answer, Generated)
        assert answer.finish == "stop"
        jsonschema.validate(json.loads(answer.text), json.loads(CLAIMS))


def test_seeds_give_different_samples_and_the_token_limit_is_a_length_stop(judge):
    sampled = answers(judge, [generate(temperature=1.0, seed=seed) for seed in (1, 2, 3, 1)])
    assert len({answer.text for answer in sampled}) == 3
    assert sampled[0].text == sampled[3].text
    (short,) = answers(judge, [generate(max_tokens=3)])
    assert (short.finish, short.tokens.output) == ("length", 3)


def test_read_outs_agree_with_transformers_and_shared_prefixes_are_cached(judge, shelf_model):
    found = answers(judge, CHOICES)
    assert sum(answer.tokens.cached for answer in found) > 0.7 * sum(a.tokens.prompt for a in found)
    other = TransformersJudge(
        shelf_model("smollm2-135m-instruct"), name="smollm2", fingerprint="f", device="cpu"
    )
    few = CHOICES[::10]
    for one, reference in zip(found[::10], answers(other, few), strict=True):
        assert sum(one.probabilities) == pytest.approx(1, abs=1e-9)
        assert one.tokens.prompt == reference.tokens.prompt
        assert one.probabilities == pytest.approx(reference.probabilities, abs=2e-2)


def test_one_bad_call_fails_alone(judge):
    bad = generate(schema='{"type": "nonsense"}')
    found = answers(judge, [choose("x", "y"), choose("word " * 3000, "y"), bad, generate()])
    assert isinstance(found[0], Chosen)
    assert [answer.reason for answer in found[1:3]] == ["judge_prompt_too_long", "judge_error"]
    assert isinstance(found[3], Generated)


def test_calls_that_nobody_waits_for_are_given_up(judge):
    asking = judge.answer(CHOICES)
    next(asking)
    asking.close()
    assert not judge._llm.llm_engine.has_unfinished_requests()
    assert not isinstance(answers(judge, CHOICES[:1])[0], Failed)


def test_a_plain_script_says_nothing_and_leaves_no_process(shelf_model, tmp_path):
    """No main guard, one engine, closed: what stdout and stderr hold is what the script prints."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, torch\n"
        "from offline_judge.backends import open_judge\n"
        "from offline_judge.backends.protocol import ChooseCall\n"
        f"folder = pathlib.Path({str(shelf_model('smollm2-135m-instruct'))!r})\n"
        "judge = open_judge(folder, name='s', fingerprint='f', backend='vllm', context_length=512)\n"
        "print(len(list(judge.answer([ChooseCall((('user', 'Q'),), ('1', '0'))]))))\n"
        "judge.close()\n"
        "import os\n"
        "children = [p for p in os.listdir('/proc') if p.isdigit() and\n"
        "            open(f'/proc/{p}/stat').read().rsplit(')', 1)[1].split()[1] == str(os.getpid())]\n"
        "print(children)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(offline_judge.__file__).parents[1])}
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["1", "[]"]
    assert found.stderr == ""


def test_after_stop_no_further_step_is_made(judge):
    many = CHOICES * 4  # more than the engine holds at once, so that one step cannot answer them all
    seen = []
    for position, _ in judge.answer(many):
        seen.append(position)
        judge.stop()
    assert 0 < len(seen) < len(many)
    assert not judge._llm.llm_engine.has_unfinished_requests()
    assert len(answers(judge, CHOICES)) == len(CHOICES)  # the next time it is whole again
