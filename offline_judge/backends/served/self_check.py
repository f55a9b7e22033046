"""Find out with a few tiny asks what a server really does, before a row is sent to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema

from offline_judge.backends.chat import THINK_CLOSE, THINK_OPEN
from offline_judge.backends.served.abilities import Abilities
from offline_judge.backends.served.addresses import is_loopback
from offline_judge.backends.served.dialects import (
    MOST_TOP_LOGPROBS,
    option_logprobs,
    option_schema,
    response_format,
)
from offline_judge.backends.served.dispatch import (
    RETRIED_STATUSES,
    Outcome,
    Refusal,
    Reply,
    new_session,
    post,
)
from offline_judge.errors import UserError

#: No model says this unless it is held to it.
_SCHEMA = {
    "type": "object",
    "properties": {"1": {"enum": ["k7", "m3"]}, "2": {"enum": [0, 1]}},
    "required": ["1", "2"],
    "additionalProperties": False,
}
_OPTIONS = ("Yes", "No")
_N_TRIES = 5


async def check_server(address: str, model: str | None, timeout_s: float) -> Abilities:
    """Ask a server what it is and try what the judge needs of it.

    Args:
        address: up to and with /v1.
        model: which of its models; None where it has one only.
        timeout_s: seconds for each of about six tiny asks.

    Raises:
        UserError: where nothing answers there, the model is not there, or answers are not held to a schema.
    """
    async with new_session() as session:
        check = _Check(session, address, timeout_s)
        try:
            return await check.run(model)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise UserError(
                f"the server at {address} does not answer",
                {"waited": f"{timeout_s:g} s for a tiny ask", "to fix": "look at the server's own log"},
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise UserError(
                f"no server answers at {address}",
                {
                    "found": type(error).__name__,
                    "to fix": "start one with `offline-judge serve MODEL`, or mend the address",
                },
            ) from error


class _Check:
    def __init__(self, session: aiohttp.ClientSession, address: str, timeout_s: float) -> None:
        self._session = session
        self._address = address
        self._timeout_s = timeout_s
        self._model = ""
        self._base: dict[str, Any] = {}

    async def run(self, model: str | None) -> Abilities:
        card = await self._find_model(model)
        self._model = str(card.get("id"))
        server = await self._server_name(card)
        folder = self._local_folder(card) if server.startswith("vllm") else None
        length = card.get("max_model_len") or await self._context_length()
        system_role, template_settings = await self._try_chat()
        await self._try_schema(server)
        thinks, probabilities = await self._try_probabilities()
        metrics = await self._get(self._address.rpartition("/")[0] + "/metrics")
        samples, counts_cached = await self._try_samples()
        return Abilities(
            model=self._model,
            server=server,
            folder=folder,
            context_length=length if isinstance(length, int) else None,
            probabilities=probabilities,
            system_role=system_role,
            template_settings=template_settings,
            thinks=thinks,
            several_samples=samples,
            counts_cached_tokens=counts_cached,
            load_metrics=metrics is not None and b"vllm:num_requests_waiting" in metrics,
        )

    # What it says of itself -------------------------------------------------------------------------

    async def _find_model(self, wanted: str | None) -> dict[str, Any]:
        body = await self._get_json(f"{self._address}/models")
        found = body.get("data") if isinstance(body, dict) else None
        cards: list[dict[str, Any]] = (
            [card for card in found if isinstance(card, dict)] if isinstance(found, list) else []
        )
        if not cards:
            raise UserError(
                f"the server at {self._address} lists no model",
                {
                    "looked for": f"{self._address}/models",
                    "to fix": "the address ends in /v1 on most servers",
                },
            )
        names = [str(card.get("id")) for card in cards]
        if wanted is None and len(cards) == 1:
            return cards[0]
        if wanted in names:
            return cards[names.index(wanted)]
        raise UserError(
            f"the server at {self._address} has "
            + ("several models" if wanted is None else f"no model {wanted!r}"),
            {"it has": ", ".join(sorted(names)), "to fix": "name one with --served-model"},
        )

    async def _server_name(self, card: dict[str, Any]) -> str:
        owner = str(card.get("owned_by") or "unknown server")
        version = await self._get_json(self._address.rpartition("/")[0] + "/version")
        found = version.get("version") if isinstance(version, dict) else None
        return f"{owner} {found}" if isinstance(found, str) else owner

    def _local_folder(self, card: dict[str, Any]) -> Path | None:
        root = card.get("root")
        if not isinstance(root, str) or not is_loopback(self._address):
            return None
        folder = Path(root)
        has_tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
        return folder if folder.is_absolute() and has_tokenizer else None

    async def _context_length(self) -> int | None:
        """Of llama.cpp's server, which has a page of its own for it."""
        properties = await self._get_json(self._address.rpartition("/")[0] + "/props")
        settings = properties.get("default_generation_settings") if isinstance(properties, dict) else None
        n_context = settings.get("n_ctx") if isinstance(settings, dict) else None
        return n_context if isinstance(n_context, int) else None

    # What it does -----------------------------------------------------------------------------------

    async def _try_chat(self) -> tuple[bool, bool]:
        """Whether a system message and settings of the template are taken."""
        roles = (("system", "user"), ("user",))
        for settings in ({"chat_template_kwargs": {"enable_thinking": False}}, {}):
            for tried in roles:
                self._base = {"messages": _messages(tried, "Say yes."), "max_tokens": 4, **settings}
                outcome = await self._chat({})
                if isinstance(outcome, Reply):
                    self._base = settings
                    return len(tried) == 2, bool(settings)
        assert isinstance(outcome, Refusal)
        raise UserError(
            f"the server at {self._address} refuses a plain chat message",
            {"found": outcome.detail, "looked for": f"{self._address}/chat/completions"},
        )

    async def _try_schema(self, server: str) -> None:
        outcome = await self._chat(
            {
                "messages": _messages(("user",), "Write one sentence about the sea."),
                "max_tokens": 64,
                "response_format": response_format(_SCHEMA),
            }
        )
        text = _text(outcome)
        try:
            jsonschema.validate(json.loads(text.rpartition(THINK_CLOSE)[2]), _SCHEMA)
        except (ValueError, jsonschema.ValidationError) as error:
            found = outcome.detail if isinstance(outcome, Refusal) else "an answer that breaks the schema"
            raise UserError(
                f"the server at {self._address} does not hold answers to a JSON schema",
                {
                    "server": server,
                    "asked for": "response_format json_schema",
                    "found": found,
                    "to fix": "a server that can: vLLM, SGLang, llama.cpp's server, a recent Ollama",
                },
            ) from error

    async def _try_probabilities(self) -> tuple[bool, bool]:
        """Whether it thinks first, and whether it gives the probabilities of the answer's token."""
        outcome = await self._chat(
            {
                "messages": _messages(("user",), "Is the sea wet? Answer Yes or No."),
                "max_tokens": 1,
                "logprobs": True,
                "top_logprobs": MOST_TOP_LOGPROBS,
            }
        )
        choices = outcome.body.get("choices") if isinstance(outcome, Reply) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        text = _text(outcome)
        # A think block at the first token hides the answer's probability.
        hides = text.strip().startswith("<") or _has_reasoning(outcome)
        thinks = hides or THINK_OPEN in text or THINK_CLOSE in text
        return thinks, not hides and bool(option_logprobs(choice, _OPTIONS))

    async def _try_samples(self) -> tuple[bool, bool]:
        outcome = await self._chat(
            {
                "messages": _messages(("user",), "Name a colour."),
                "max_tokens": 16,
                "temperature": 1.0,
                "n": 2,
                "response_format": response_format(option_schema(("red", "blue"))),
            }
        )
        if not isinstance(outcome, Reply):
            return False, False
        choices, usage = outcome.body.get("choices"), outcome.body.get("usage")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        return isinstance(choices, list) and len(choices) == 2, isinstance(details, dict)

    # Asking -----------------------------------------------------------------------------------------

    async def _chat(self, payload: dict[str, Any]) -> Outcome:
        """Post a tiny ask; tried again where the server has trouble of its own."""
        payload = {"model": self._model, "temperature": 0.0, **self._base, **payload}
        for n_tries in range(1, _N_TRIES + 1):
            outcome = await post(self._session, f"{self._address}/chat/completions", payload, self._timeout_s)
            if isinstance(outcome, Reply) or outcome.status not in RETRIED_STATUSES:
                break
            await asyncio.sleep(0.2 * n_tries)
        return outcome

    async def _get_json(self, url: str) -> Any:
        body = await self._get(url)
        try:
            return None if body is None else json.loads(body)
        except ValueError:
            return None

    async def _get(self, url: str) -> bytes | None:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
            return await response.read() if response.status == 200 else None


def _messages(roles: Sequence[str], text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text if role == "user" else "You answer."} for role in roles]


def _text(outcome: Outcome) -> str:
    try:
        return (
            str(outcome.body["choices"][0]["message"]["content"] or "") if isinstance(outcome, Reply) else ""
        )
    except (KeyError, IndexError, TypeError):
        return ""


def _has_reasoning(outcome: Outcome) -> bool:
    try:
        message = outcome.body["choices"][0]["message"] if isinstance(outcome, Reply) else {}
        return bool(message.get("reasoning") or message.get("reasoning_content"))
    except (KeyError, IndexError, TypeError, AttributeError):
        return False
