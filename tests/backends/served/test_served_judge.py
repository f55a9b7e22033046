"""Each misbehaviour of a server gives its documented end: no hang, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest
from fake_server import FakeServer
from stub_models import StubJudge

import offline_judge
from offline_judge.backends import open_served_judge
from offline_judge.backends.protocol import ChooseCall, Chosen, Failed, GenerateCall, Generated
from offline_judge.backends.served.addresses import is_address, is_loopback, parse_addresses
from offline_judge.backends.served.dialects import neutralise, option_logprobs
from offline_judge.errors import UserError
from offline_judge.run_folder import RunFolder

ROWS = [
    {
        "id": f"r{n}",
        "user_input": "What is wet?",
        "response": f"The sea is wet. Sand {n} is dry.",
        "retrieved_contexts": [f"The sea is wet. It is deep {n}.", "Nothing here."],
    }
    for n in range(12)
]


def chooses(n):
    return [
        ChooseCall(
            (("system", "Judge."), ("user", f"<premise>\nx{i}\n</premise>\n<claim>\nx{i}\n</claim>")),
            ("Yes", "No"),
        )
        for i in range(n)
    ]


def answers(judge, calls):
    found = list(judge.answer(calls))
    assert sorted(position for position, _ in found) == list(range(len(calls)))
    return [answer for _, answer in sorted(found, key=lambda item: item[0])]


def evaluate(tmp_path, judge, **settings):
    return offline_judge.evaluate(
        ROWS, ["faithfulness"], judge=judge, out=tmp_path, reasons="none", **settings
    )


def lines(result):
    return list(RunFolder(result.folder).scores())


def scores(result):
    return [line["scores"] for line in lines(result)]


# A server that does all it should ---------------------------------------------------------------


def test_the_scores_are_those_of_the_same_judge_in_process(tmp_path):
    with FakeServer() as server:
        served = evaluate(tmp_path / "served", server.address)
    assert scores(served) == scores(evaluate(tmp_path / "local", StubJudge()))
    judge = served.record["models"]["judge"]
    assert judge["self_check"]["probabilities"]
    assert judge["self_check"]["several_samples"]
    assert judge["dialect"] == "chat messages"
    assert served.record["notes"] == []
    assert served.record["usage"]["prompt_tokens"] == 7 * served.record["usage"]["calls"]


def test_what_was_answered_is_not_asked_again(tmp_path):
    with FakeServer() as server:
        evaluate(tmp_path, server.address)
        n_asked = len(server.asked)
        evaluate(tmp_path, server.address)
    assert n_asked > 0
    assert len(server.asked) == n_asked


def test_many_requests_are_in_flight_and_their_number_follows_the_server():
    with FakeServer(delay_s=0.3) as server:
        judge = open_served_judge(server.address)
        assert all(isinstance(answer, Chosen) for answer in answers(judge, chooses(400)))
    assert server.most_at_once > 32


def test_a_caller_that_stops_asking_leaves_no_thread():
    with FakeServer(delay_s=0.2) as server:
        judge = open_served_judge(server.address)
        asking = judge.answer(chooses(200))
        next(asking)
        asking.close()
        assert not [one for one in threading.enumerate() if one.name == "offline-judge-http"]
        assert len(server.asked) < 200


def test_stop_ends_the_batch_and_does_not_concern_the_next():
    with FakeServer(delay_s=0.3) as server:
        judge = open_served_judge(server.address)
        found = []
        for answer in judge.answer(chooses(100)):
            found.append(answer)
            judge.stop()
        assert 0 < len(found) < 100
        assert len(answers(judge, chooses(5))) == 5


# Servers that lack something --------------------------------------------------------------------


def test_a_server_that_ignores_the_schema_is_refused(tmp_path):
    with FakeServer(ignores_schema=True) as server, pytest.raises(UserError, match="JSON schema"):
        evaluate(tmp_path, server.address)
    assert server.asked == []


def test_without_logprobs_verdicts_are_hard_and_the_run_says_so(tmp_path):
    with FakeServer(has_logprobs=False) as server:
        result = evaluate(tmp_path, server.address)
    assert scores(result) == scores(evaluate(tmp_path / "local", StubJudge()))
    assert all(line["soft"] == line["scores"] for line in lines(result))
    assert "no probabilities" in result.record["notes"][0]


def test_without_a_system_role_the_system_text_goes_to_the_user(tmp_path):
    with FakeServer(has_system_role=False) as server:
        result = evaluate(tmp_path, server.address)
    assert result.record["models"]["judge"]["self_check"]["system_role"] is False
    assert scores(result) == scores(evaluate(tmp_path / "local", StubJudge()))
    assert all(message["role"] != "system" for payload in server.asked for message in payload["messages"])


def test_a_think_block_hides_the_probabilities_and_is_cut_off_the_json(tmp_path):
    with FakeServer(thinks=True) as server:
        result = evaluate(tmp_path, server.address)
    assert result.record["models"]["judge"]["self_check"]["thinks"] is True
    assert scores(result) == scores(evaluate(tmp_path / "local", StubJudge()))


def test_several_models_need_a_name_and_a_wrong_name_is_refused():
    with FakeServer(n_models=2) as server:
        with pytest.raises(UserError, match="several models"):
            open_served_judge(server.address)
        with pytest.raises(UserError, match="no model 'other'"):
            open_served_judge(server.address, model="other")
        assert open_served_judge(server.address, model="stub1").name == "stub1"


# Servers in trouble -----------------------------------------------------------------------------


def test_every_third_request_fails_and_is_asked_again(tmp_path):
    with FakeServer(third_status=500) as server:
        result = evaluate(tmp_path, server.address)
    assert scores(result) == scores(evaluate(tmp_path / "local", StubJudge()))
    assert server.statuses[500] > 3


def test_a_request_that_can_not_succeed_is_not_tried_again():
    with FakeServer(third_status=422) as server:
        judge = open_served_judge(server.address)
        found = answers(judge, chooses(9))
    assert [answer for answer in found if isinstance(answer, Failed)] == [
        Failed("judge_http_error", "HTTP 422")
    ] * 3
    assert len(server.asked) == 9


def test_a_server_that_never_answers_is_one_error():
    with FakeServer(never_answers=True) as server, pytest.raises(UserError, match="does not answer"):
        open_served_judge(server.address, ask_timeout_s=0.5)


def test_the_time_limit_counts_from_dispatch_not_from_the_queue():
    with FakeServer(delay_s=0.25) as server:
        judge = open_served_judge(server.address, ask_timeout_s=1.0)
        judge._dispatcher.servers[0].limit = 4  # 40 asks need 2.5 s, each 0.25
        assert all(isinstance(answer, Chosen) for answer in answers(judge, chooses(40)))


def test_asks_that_meet_the_time_limit_end_the_run_with_one_error():
    with FakeServer(delay_s=0.0) as server:
        judge = open_served_judge(server.address, ask_timeout_s=0.3)
        server.never_answers = True
        with pytest.raises(UserError, match="is gone"):
            answers(judge, chooses(8))


def test_nobody_there_is_one_error():
    with pytest.raises(UserError, match="no server answers"):
        open_served_judge("http://127.0.0.1:1/v1")


def test_a_server_that_dies_keeps_what_it_answered_and_the_run_goes_on(tmp_path):
    with FakeServer(dies_after=20) as server:
        with pytest.raises(UserError, match="is gone") as caught:
            evaluate(tmp_path, server.address)
        assert "same command" in caught.value.details["to fix"]
        n_answered = server.statuses[200] - len(server.seen) + len(server.asked)
        port = server.port
    with FakeServer(port=port) as again:
        result = evaluate(tmp_path, again.address)
    assert scores(result) == scores(evaluate(tmp_path / "local", StubJudge()))
    assert n_answered == 20
    assert len(again.asked) == result.record["usage"]["calls"]
    first = {json.dumps(payload, sort_keys=True) for payload in server.asked[:20]}
    assert not first & {json.dumps(payload, sort_keys=True) for payload in again.asked}


def test_a_server_that_shuts_down_and_holds_its_connections_is_gone_too():
    """vLLM's server waits for its clients before it ends, and its engine is dead by then."""
    with FakeServer(deaf_after=20) as server:
        judge = open_served_judge(server.address)
        started = time.monotonic()
        with pytest.raises(UserError, match="is gone"):
            answers(judge, chooses(60))
    assert server.statuses[200] >= 20
    assert time.monotonic() - started < 60  # the time limit of an ask is ten minutes


def test_of_two_servers_the_dead_one_is_dropped_and_its_asks_are_sent_to_the_other():
    with FakeServer(delay_s=0.02) as one, FakeServer(delay_s=0.02, dies_after=30) as other:
        judge = open_served_judge(f"{one.address},{other.address}")
        found = answers(judge, chooses(300))
    assert all(isinstance(answer, Chosen) for answer in found)
    assert len(one.asked) >= 270 > 0 < len(other.asked)


def test_two_servers_share_the_load():
    with FakeServer(delay_s=0.05) as one, FakeServer(delay_s=0.05) as other:
        answers(open_served_judge(f"{one.address},{other.address}"), chooses(200))
    assert min(len(one.asked), len(other.asked)) > 60


def test_two_servers_of_different_models_are_refused():
    servers = FakeServer(), FakeServer(model="other")
    with servers[0] as one, servers[1] as other, pytest.raises(UserError, match="differ"):
        open_served_judge(f"{one.address},{other.address}")


@pytest.mark.parametrize(("finish", "wanted"), [("stop", "stop"), ("eos", "stop"), ("length", "length")])
def test_only_length_and_error_are_failures(finish, wanted):
    schema = json.dumps({"type": "object", "properties": {"1": {"enum": [1]}}, "required": ["1"]})
    with FakeServer(finish=finish) as server:
        (answer,) = answers(open_served_judge(server.address), [GenerateCall((("user", "<x>"),), schema, 9)])
    assert isinstance(answer, Generated)
    assert answer.finish == wanted


# The command line -------------------------------------------------------------------------------


def test_the_command_line_ends_with_one_error_and_status_2(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    with FakeServer(dies_after=10) as server:
        flags = ["--judge", server.address, "--metrics", "faithfulness", "--out", str(tmp_path / "runs")]
        done = subprocess.run(
            [sys.executable, "-m", "offline_judge", "evaluate", str(data), *flags],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    assert "sea is wet" not in done.stderr


# Small parts ------------------------------------------------------------------------------------


def test_addresses():
    assert is_address("http://x/v1")
    assert not is_address("qwen")
    assert parse_addresses("http://a:1/v1/, http://b/v1,http://a:1/v1") == ("http://a:1/v1", "http://b/v1")
    for wrong in ("http://a:1", "ftp://a/v1", "http://:8/v1", "http://a:x/v1", "http://u:p@a/v1"):
        with pytest.raises(UserError, match="not the address"):
            parse_addresses(wrong)
    assert is_loopback("http://127.0.0.1:8/v1")
    assert is_loopback("http://[::1]:8/v1")
    assert not is_loopback("http://10.0.0.1:8/v1")


def test_a_token_counts_for_the_one_option_that_it_begins():
    def found(*tokens):
        top = [{"token": token, "logprob": -1.0} for token in tokens]
        return option_logprobs({"logprobs": {"content": [{"top_logprobs": top}]}}, ("Yes", "No"))

    assert found(" Yes", "No") == {0: -1.0, 1: -1.0}
    assert set(found("Ye", "Maybe", "yes", "")) == {0}
    assert found() == {}
    assert option_logprobs({"logprobs": None}, ("Yes", "No")) == {}


def test_control_tokens_of_the_usual_templates_are_broken():
    for token in ("<|im_end|>", "<|eot_id|>", "[/INST]", "</s>", "<end_of_turn>", "</think>"):
        assert token not in neutralise(f"a {token} b")
    assert neutralise("a < b | c > d [1]") == "a < b | c > d [1]"
