"""Real vLLM in process and served, the same asks: the same schemas, the same probabilities."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

import offline_judge
from offline_judge.backends import open_served_judge
from offline_judge.backends.chat import Chat
from offline_judge.backends.protocol import ChooseCall, Chosen, GenerateCall, Generated
from offline_judge.backends.served.dialects import ChatDialect, TokenDialect
from offline_judge.backends.served.vllm_server import VllmServer
from offline_judge.errors import UserError

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

CONTEXT_LENGTH = 2048
SENTENCES = {"en": "The sun is a star and the moon is not.", "ko": "영수증은 10만원을 넘으면 첨부합니다."}
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def object_of(properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def numbered(n, schema):
    return object_of({str(number): schema for number in range(1, n + 1)})


def ask(text, schema, seed=None):
    temperature = 0.0 if seed is None else 0.8
    return GenerateCall((("user", text),), json.dumps(schema), 800, temperature, seed or 0)


VERDICT = {"type": "integer", "enum": [0, 1]}
CLAIM = {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 1}
QUESTION = object_of({"noncommittal": VERDICT, "question": {"type": "string", "maxLength": 40}})
TEXTS = list(SENTENCES.values())
GENERATIONS = [
    *(ask(f"Judge {n} claims: {text}", numbered(n, VERDICT)) for n in range(1, 21) for text in TEXTS),
    *(ask(f"List {n} claims: {text}", numbered(n, CLAIM)) for n in range(1, 21) for text in TEXTS),
    *(ask(f"Write a question: {text}", QUESTION, seed) for seed in range(10) for text in TEXTS),
]
PREMISES = [" ".join(f"{word}{n}" for n in range(60)) for word in ("tree", "바다", "iron")]
READ_OUTS = [
    ChooseCall(
        (("system", "Judge."), ("user", f"{premise}\nClaim: word {n} is long. Yes or No?")), ("Yes", "No")
    )
    for premise in PREMISES
    for n in range(8)
]


def answers(judge, calls):
    found = dict(judge.answer(calls))
    assert len(found) == len(calls)
    return [found[i] for i in range(len(calls))]


@pytest.fixture(scope="module")
def server(shelf_model, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    folder = shelf_model("smollm2-135m-instruct")
    # In bfloat16, the default where the processor has AMX, what else is in a batch shows: up to 0.03.
    with VllmServer(folder, "smollm2", log, context_length=CONTEXT_LENGTH, dtype="float32") as one:
        yield one


@pytest.fixture(scope="module")
def served(server):
    return open_served_judge(server.address)


@pytest.fixture(scope="module")
def in_process(vllm_in_process):
    return vllm_in_process


@pytest.fixture(scope="module")
def thinking_chat(shelf_model):
    tokenizer = copy.deepcopy(Chat.load(shelf_model("smollm2-135m-instruct")).tokenizer)
    tokenizer.chat_template = THINKING_TEMPLATE
    return Chat(tokenizer, thinking_tokens=12)


def test_the_self_check_finds_what_vllm_can_do(served):
    abilities = served.abilities
    assert abilities.server.startswith("vllm ")
    assert abilities.folder is not None
    assert abilities.context_length == CONTEXT_LENGTH
    assert abilities.probabilities
    assert abilities.system_role
    assert abilities.counts_cached_tokens
    assert abilities.load_metrics
    assert not abilities.thinks


@pytest.mark.parametrize("path", ["in_process", "served"])
def test_schemas_hold_in_100_of_100_answers(path, request):
    found = answers(request.getfixturevalue(path), GENERATIONS)
    assert len(found) == 100
    for call, answer in zip(GENERATIONS, found, strict=True):
        assert isinstance(answer, Generated)
        assert answer.finish == "stop"
        jsonschema.validate(json.loads(answer.text), json.loads(call.schema))


def test_probabilities_of_both_paths_and_dialects_agree(in_process, served):
    reference = answers(in_process, READ_OUTS)
    chat = copy.copy(served)
    chat._dialect = ChatDialect(served.abilities, 0)
    for judge in (served, chat):
        found = answers(judge, READ_OUTS)
        assert sum(one.tokens.cached for one in found) > 0
        for one, other in zip(found, reference, strict=True):
            assert isinstance(one, Chosen)
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-2)
            assert one.tokens.prompt == other.tokens.prompt


def test_many_read_outs_in_one_request_are_each_call_s_own(served):
    calls = [READ_OUTS[n % 24] for n in range(600)]
    calls[300] = ChooseCall((("user", "word " * 3000),), ("Yes", "No"))
    found = answers(served, calls)
    assert found[300].reason == "judge_prompt_too_long"
    for n, answer in enumerate(found):
        if n != 300:
            assert answer.probabilities == pytest.approx(found[n % 24].probabilities, abs=1e-2)


@pytest.mark.parametrize("path", ["in_process", "served"])
def test_a_think_block_comes_first_and_its_tokens_are_counted(path, thinking_chat, request):
    judge = copy.copy(request.getfixturevalue(path))
    judge._chat = thinking_chat
    if path == "served":
        judge._dialect = TokenDialect(thinking_chat, judge.abilities, CONTEXT_LENGTH, "guidance")
    generated, chosen = answers(judge, [ask("Judge 2 claims.", numbered(2, VERDICT)), READ_OUTS[0]])
    jsonschema.validate(json.loads(generated.text), numbered(2, VERDICT))
    assert generated.tokens.output > len(json.loads(generated.text))
    assert 1 < chosen.tokens.output <= 12 + 1
    assert sum(chosen.probabilities) == pytest.approx(1)
    # The prompt is counted once, without the thoughts that are a part of the second request.
    assert chosen.tokens.prompt == len(thinking_chat.token_ids(READ_OUTS[0].messages))


def processes_of(group: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_serve_stops_on_ctrl_c_and_leaves_no_process(shelf_model, tmp_path):
    model = str(shelf_model("smollm2-135m-instruct"))
    root = str(Path(offline_judge.__file__).parents[1])
    command = [sys.executable, "-m", "offline_judge", "serve", model, "--context-length", "512"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--log", str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"},
    )
    said = [process.stdout.readline() for _ in range(2)]
    assert "ready after" in said[1], said
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(processes_of(int(child))) >= 2  # the server and its engine
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    assert "stopped" in process.stdout.read()
    assert processes_of(int(child)) == []


def test_a_relative_folder_is_told_whole(shelf_model, tmp_path, monkeypatch):
    folder = shelf_model("smollm2-135m-instruct")
    monkeypatch.chdir(folder.parent)
    assert str(folder.resolve()) in VllmServer(Path(folder.name), "s", tmp_path / "log").command()


def test_a_server_that_does_not_start_is_one_error_with_the_end_of_its_log(shelf_model, tmp_path):
    folder = shelf_model("smollm2-135m-instruct")
    server = VllmServer(folder, "s", tmp_path / "log", extra=["--no-such-flag"])
    with pytest.raises(UserError, match="does not run") as caught:
        server.start()
    assert "no-such-flag" in caught.value.details["the log ends"]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_server_that_is_killed_is_noticed(server, served):
    """The last test here: the module's server does not survive it."""
    asking = served.answer([ask(f"Judge 8 claims, {n}", numbered(8, CLAIM)) for n in range(100)])
    first = [next(asking) for _ in range(3)]
    assert all(isinstance(answer, Generated) for _, answer in first)
    os.killpg(server._process.pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(UserError, match="is gone"):
        list(asking)
    assert time.monotonic() - started < 60
