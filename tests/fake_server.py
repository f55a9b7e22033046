"""Small OpenAI-compatible servers that misbehave in one way each, over real HTTP on the loopback."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import jsonschema
from aiohttp import web
from stub_models import StubJudge

from offline_judge.backends.protocol import ChooseCall, GenerateCall


@dataclass
class FakeServer:
    """Answers chat messages by the rules of `StubJudge`. Use it as a context manager."""

    ignores_schema: bool = False
    has_logprobs: bool = True
    has_system_role: bool = True
    #: The status that every third request of a run gets, after the self-check.
    third_status: int | None = None
    never_answers: bool = False
    #: Requests after the self-check that it answers before it hangs up on everybody.
    dies_after: int | None = None
    #: Requests after the self-check that it answers before it listens no more, its connections still open.
    deaf_after: int | None = None
    delay_s: float = 0.0
    model: str = "stub"
    thinks: bool = False
    finish: str = "stop"
    n_models: int = 1
    port: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    most_at_once: int = 0
    _n_at_once: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Requests that are not of the self-check."""
        return [payload for payload in self.seen if "<" in str(payload["messages"])]

    def __enter__(self) -> FakeServer:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        self._site = web.TCPSite(runner, "127.0.0.1", self.port)
        await self._site.start()
        self.port = runner.addresses[0][1]
        started.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        self._hang_up_if_dead(request)
        cards = [{"id": f"{self.model}{n or ''}", "owned_by": "test"} for n in range(self.n_models)]
        return web.json_response({"data": cards})

    async def _chat(self, request: web.Request) -> web.Response:
        payload = await request.json()
        self.seen.append(payload)
        self._n_at_once += 1
        self.most_at_once = max(self.most_at_once, self._n_at_once)
        try:
            self._hang_up_if_dead(request)
            response = await self._answer(payload)
        finally:
            self._n_at_once -= 1
        self.statuses[response.status] += 1
        return response

    @property
    def _is_deaf(self) -> bool:
        return self.deaf_after is not None and len(self.asked) > self.deaf_after

    def _hang_up_if_dead(self, request: web.Request) -> None:
        if self._is_deaf and request.method == "GET":
            assert request.transport is not None
            request.transport.abort()  # no connection is free any more
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPServiceUnavailable

    async def _answer(self, payload: dict[str, Any]) -> web.Response:
        messages = [(one["role"], one["content"]) for one in payload["messages"]]
        is_of_run = "<" in str(messages)
        number = len(self.asked)
        if self._is_deaf:
            await self._site.stop()
        if self.never_answers or self._is_deaf:
            await asyncio.sleep(3600)
        if is_of_run:
            await asyncio.sleep(self.delay_s)
        if not self.has_system_role and messages[0][0] == "system":
            return web.json_response({"error": "System role not supported"}, status=400)
        if is_of_run and self.third_status and number % 3 == 0:
            return web.json_response({"error": "trouble"}, status=self.third_status)
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish}
        schema = payload.get("response_format", {}).get("json_schema", {}).get("schema")
        if schema is not None and not self.ignores_schema:
            text = _hold_to(schema, messages, payload)
        else:
            text = "Yes" if payload.get("max_tokens") == 1 else "Sure! Here is what I think."
        if payload.get("logprobs") and self.has_logprobs:
            p = StubJudge()._choose(ChooseCall(tuple(messages), ("Yes", "No"))) if is_of_run else 0.5
            top = [{"token": " Yes", "logprob": math.log(p)}, {"token": "No", "logprob": math.log(1 - p)}]
            choice["logprobs"] = {"content": [{"top_logprobs": top}]}
        if self.thinks:
            text = f"<think>hmm {{}}</think>{text}"
        choice["message"] = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        return web.json_response({"choices": [choice] * payload.get("n", 1), "usage": usage})


def _hold_to(schema: dict[str, Any], messages: list[tuple[str, str]], payload: dict[str, Any]) -> str:
    """What the stub writes, or the first value of every enum where that is what the schema is made of."""
    properties = schema["properties"]
    if set(properties) == {"answer"} and "<" in str(messages):
        p = StubJudge()._choose(ChooseCall(tuple(messages), ("Yes", "No")))
        return json.dumps({"answer": "Yes" if p > 0.5 else "No"})
    if all("enum" in one for one in properties.values()):
        return json.dumps({name: one["enum"][0] for name, one in properties.items()})
    call = GenerateCall(tuple(messages), json.dumps(schema), payload["max_tokens"], 0.0, 0)
    text = StubJudge()._generate(call)
    jsonschema.validate(json.loads(text), schema)
    return str(text)
