"""From calls to HTTP requests and back.

Two dialects: token ids, for a vLLM server whose model folder is on this machine, so that a prompt is the
very same as in process; and chat messages, for every other server.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from offline_judge.backends.chat import THINK_CLOSE, Chat, Prompt, fold_system_into_user
from offline_judge.backends.control_text import break_matches
from offline_judge.backends.json_constraint import schema_for
from offline_judge.backends.protocol import (
    Answer,
    Call,
    ChooseCall,
    Failed,
    GenerateCall,
    Generated,
    TokenCount,
    chosen_from,
)
from offline_judge.backends.served.abilities import Abilities
from offline_judge.backends.served.dispatch import Outcome, Refusal, Reply, Request
from offline_judge.prompts import Message

#: Log-probabilities that OpenAI's chat interface gives at most.
MOST_TOP_LOGPROBS = 20
#: Read-outs that one request of the token dialect holds at most.
_MOST_PROMPTS = 16
_FAILED_FINISHES = frozenset({"error", "abort", "content_filter"})
#: What stands for a control token in the templates of the usual models.
_CONTROL_TOKENS = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>]{1,40}｜>|\[/?INST\]|<</?SYS>>|</?s>|</?think>|<(?:start|end)_of_turn>|<(?:bos|eos)>"
)


class Dialect(Protocol):
    """How calls are put to a server."""

    def requests(self, calls: Sequence[Call]) -> tuple[list[Request], list[tuple[int, Failed]]]:
        """Return the requests of the calls, in order, and the calls that can't be asked."""
        ...

    def follow_up(self, request: Request, outcome: Outcome) -> list[Request]:
        """Return the requests that must come before an answer can be read from this outcome."""
        ...

    def answers(self, request: Request, outcome: Outcome) -> list[tuple[int, Answer]]:
        """Read (position, answer) of each call that the request was made of."""
        ...


# Token ids -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """The prompts of a request, and what their think block has cost before."""

    prompts: tuple[Prompt, ...]
    thought: TokenCount | None = None


class TokenDialect:
    """`/v1/completions` with token ids: several read-outs in one request."""

    def __init__(
        self, chat: Chat, abilities: Abilities, context_length: int, structured_backend: str
    ) -> None:
        self._chat = chat
        self._model = abilities.model
        self._context_length = context_length
        self._structured_backend = structured_backend

    def requests(self, calls: Sequence[Call]) -> tuple[list[Request], list[tuple[int, Failed]]]:
        """Put neighbours with the same options into one request where there are many calls."""
        n_together = max(1, min(_MOST_PROMPTS, len(calls) // 256))
        requests: list[Request] = []
        failed: list[tuple[int, Failed]] = []
        group: list[Prompt] = []
        for position, call in enumerate(calls):
            prompt = self._chat.prepare(position, call, self._context_length)
            if isinstance(prompt, Failed):
                failed.append((position, prompt))
                continue
            if group and (len(group) == n_together or prompt.option_ids != group[0].option_ids):
                requests.append(self._request(_Asked(tuple(group))))
                group = []
            group.append(prompt)
            if not prompt.option_ids or prompt.thinks:
                requests.append(self._request(_Asked(tuple(group))))
                group = []
        if group:
            requests.append(self._request(_Asked(tuple(group))))
        return requests, failed

    def follow_up(self, request: Request, outcome: Outcome) -> list[Request]:
        """Ask for the answer behind a think block; ask a refused group one by one."""
        asked: _Asked = request.about
        if isinstance(outcome, Refusal):
            if outcome.status == 400 and len(asked.prompts) > 1:
                return [self._request(_Asked((prompt,))) for prompt in asked.prompts]
            return []
        (first, *_) = asked.prompts
        if not first.thinks:
            return []
        try:
            thought = outcome.body["choices"][0]["text"]
        except (KeyError, IndexError, TypeError):
            return []
        answering = self._chat.after_thinking(first, str(thought))
        return [self._request(_Asked((answering,), _tokens(outcome.body, len(first.ids))))]

    def answers(self, request: Request, outcome: Outcome) -> list[tuple[int, Answer]]:
        """Read the choices in the order of the prompts."""
        asked: _Asked = request.about
        if isinstance(outcome, Refusal):
            return [(prompt.position, _failed(outcome)) for prompt in asked.prompts]
        choices = outcome.body.get("choices")
        if not isinstance(choices, list) or len(choices) != len(asked.prompts):
            return [(prompt.position, _MALFORMED) for prompt in asked.prompts]
        by_index = {choice.get("index"): choice for choice in choices if isinstance(choice, dict)}
        # The server counts the cached tokens of the whole request only.
        counted = _tokens(outcome.body, 0)
        n_cached = counted.cached
        answers: list[tuple[int, Answer]] = []
        for index, prompt in enumerate(asked.prompts):
            cached = min(n_cached, len(prompt.ids))
            n_cached -= cached
            n_output = 1 if prompt.option_ids else counted.output
            tokens = TokenCount(len(prompt.ids), cached, n_output)
            if asked.thought is not None:
                tokens = replace(asked.thought, output=asked.thought.output + n_output)
            answers.append((prompt.position, _read_completion(prompt, by_index.get(index), tokens)))
        return answers

    def _request(self, asked: _Asked) -> Request:
        first = asked.prompts[0]
        payload: dict[str, Any] = {"model": self._model, "temperature": 0.0, "add_special_tokens": False}
        payload["prompt"] = first.ids if len(asked.prompts) == 1 else [prompt.ids for prompt in asked.prompts]
        call = first.call
        if isinstance(call, GenerateCall) and call.temperature > 0:
            payload |= {"temperature": call.temperature, "seed": call.seed}
        if first.thinks:
            payload |= {"max_tokens": self._chat.thinking_tokens, "stop": [THINK_CLOSE]}
        elif isinstance(call, ChooseCall):
            option_ids = list(first.option_ids)
            payload |= {
                "max_tokens": 1,
                "allowed_token_ids": option_ids,
                "logprobs": len(option_ids),
                "logprob_token_ids": option_ids,
                "return_tokens_as_token_ids": True,
            }
        else:
            schema = json.loads(schema_for(self._structured_backend, call.schema))
            payload |= {"max_tokens": call.max_tokens, "structured_outputs": {"json": schema}}
        return Request("completions", payload, asked)


def _read_completion(prompt: Prompt, choice: Any, tokens: TokenCount) -> Answer:
    if not isinstance(choice, dict):
        return _MALFORMED
    if isinstance(prompt.call, ChooseCall):
        try:
            found = choice["logprobs"]["top_logprobs"][0].items()
            logprobs = {int(token.removeprefix("token_id:")): float(logprob) for token, logprob in found}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            return Failed("judge_no_logprobs")
        return chosen_from(logprobs, prompt.option_ids, tokens)
    return _generated(choice.get("text"), choice.get("finish_reason"), tokens)


# Chat messages --------------------------------------------------------------------------------------


class ChatDialect:
    """`/v1/chat/completions`: what every OpenAI-compatible server has."""

    def __init__(self, abilities: Abilities, thinking_tokens: int) -> None:
        self._abilities = abilities
        self._thinking_tokens = thinking_tokens

    def requests(self, calls: Sequence[Call]) -> tuple[list[Request], list[tuple[int, Failed]]]:
        """One request for each call."""
        return [self._request(position, call) for position, call in enumerate(calls)], []

    def follow_up(self, request: Request, outcome: Outcome) -> list[Request]:
        """Nothing: the server applies its own template, think block included."""
        return []

    def answers(self, request: Request, outcome: Outcome) -> list[tuple[int, Answer]]:
        """Read the one choice."""
        position, call = request.about
        if isinstance(outcome, Refusal):
            return [(position, _failed(outcome))]
        return [(position, self._read(call, outcome))]

    def _request(self, position: int, call: Call) -> Request:
        abilities = self._abilities
        messages: list[Message] = [(role, neutralise(content)) for role, content in call.messages]
        if not abilities.system_role:
            messages = fold_system_into_user(messages)
        payload: dict[str, Any] = {
            "model": abilities.model,
            "messages": [{"role": role, "content": content} for role, content in messages],
            "temperature": 0.0,
        }
        if abilities.template_settings:
            payload["chat_template_kwargs"] = {"enable_thinking": self._thinking_tokens > 0}
        if isinstance(call, GenerateCall):
            if call.temperature > 0:
                payload |= {"temperature": call.temperature, "seed": call.seed}
            n_tokens = call.max_tokens + self._thinking_tokens
            payload |= {"max_tokens": n_tokens, "response_format": response_format(json.loads(call.schema))}
        elif abilities.probabilities:
            payload |= {"max_tokens": 1, "logprobs": True, "top_logprobs": MOST_TOP_LOGPROBS}
        else:
            payload |= {
                "max_tokens": _N_TOKENS_OF_AN_OPTION + self._thinking_tokens,
                "response_format": response_format(option_schema(call.options)),
            }
        return Request("chat/completions", payload, (position, call))

    def _read(self, call: Call, reply: Reply) -> Answer:
        try:
            choice = reply.body["choices"][0]
            text = choice["message"]["content"]
        except (KeyError, IndexError, TypeError):
            return _MALFORMED
        tokens = _tokens(reply.body, 0)
        if isinstance(call, GenerateCall):
            return _generated(text, choice.get("finish_reason"), tokens)
        if self._abilities.probabilities:
            logprobs = option_logprobs(choice, call.options)
            return chosen_from(logprobs, range(len(call.options)), tokens)
        try:
            option = json.loads(str(text).rpartition(THINK_CLOSE)[2])["answer"]
            # A verdict without its probability: as sure as can be.
            return chosen_from({call.options.index(option): 0.0}, range(len(call.options)), tokens)
        except (ValueError, KeyError, TypeError):
            return Failed("judge_schema")


_N_TOKENS_OF_AN_OPTION = 24


def option_schema(options: Sequence[str]) -> dict[str, Any]:
    """Schema of an answer that is one of the options."""
    return {
        "type": "object",
        "properties": {"answer": {"enum": list(options)}},
        "required": ["answer"],
        "additionalProperties": False,
    }


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's way to ask for JSON that holds to a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def option_logprobs(choice: Any, options: Sequence[str]) -> dict[int, float]:
    """Log-probability of each option by its number, summed over the tokens that only it begins with.

    A token counts where its text, without space around it, is the beginning of exactly one option.
    """
    try:
        found = choice["logprobs"]["content"][0]["top_logprobs"]
        tokens = [(str(one["token"]).strip(" \t\n▁Ġ"), float(one["logprob"])) for one in found]
    except (KeyError, IndexError, TypeError, ValueError):
        return {}
    weights: dict[int, float] = {}
    for token, logprob in tokens:
        begun = [number for number, option in enumerate(options) if token and option.startswith(token)]
        if len(begun) == 1:
            weights[begun[0]] = weights.get(begun[0], 0.0) + math.exp(logprob)
    return {number: math.log(weight) for number, weight in weights.items() if weight > 0}


def neutralise(text: str) -> str:
    """Break what looks like a control token, since the server's own tokens are not known here."""
    return break_matches(_CONTROL_TOKENS, text)


# Both ----------------------------------------------------------------------------------------------

_MALFORMED = Failed("judge_error", "the server's reply has another form than OpenAI's")


def _generated(text: Any, finish: Any, tokens: TokenCount) -> Answer:
    if finish in _FAILED_FINISHES:
        return Failed("judge_error", f"finish reason {finish}")
    if not isinstance(text, str):
        return Failed("judge_error", "a reply without text")
    return Generated(text, "length" if finish == "length" else "stop", tokens)


def _tokens(body: dict[str, Any], n_prompt: int) -> TokenCount:
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    counts = (usage.get("prompt_tokens") or n_prompt, cached or 0, usage.get("completion_tokens") or 0)
    return TokenCount(*(count if isinstance(count, int) else 0 for count in counts))


def _failed(refusal: Refusal) -> Failed:
    """Name the reason; what the server wrote may quote the prompt and is not passed on."""
    if refusal.status == 400 and re.search(
        r"context length|context size|too long|maximum.{0,40}tokens", refusal.body
    ):
        return Failed("judge_prompt_too_long", "so says the server")
    return Failed(refusal.reason, refusal.detail)
