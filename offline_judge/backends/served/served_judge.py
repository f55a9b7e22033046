"""A judge behind one OpenAI-compatible server, or several that share the load."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import Iterator, Sequence

from offline_judge import shelf
from offline_judge.backends.chat import CHAT_VERSION, Chat
from offline_judge.backends.model_folder import choose_context_length, combine_fingerprint
from offline_judge.backends.protocol import Answer, Call
from offline_judge.backends.served.abilities import Abilities
from offline_judge.backends.served.addresses import parse_addresses
from offline_judge.backends.served.dialects import ChatDialect, Dialect, TokenDialect
from offline_judge.backends.served.dispatch import Dispatcher, Patience, Server, run_in_thread
from offline_judge.backends.served.self_check import check_server
from offline_judge.errors import UserError

#: Seconds for each tiny ask of the self-check, at most: a busy server on a CPU takes a while.
_CHECK_TIMEOUT_S = 120.0


class ServedJudge:
    """An instruct model behind a server that is running already."""

    def __init__(
        self,
        addresses: str,
        *,
        model: str | None = None,
        fingerprint: str | None = None,
        context_length: int | None = None,
        ask_timeout_s: float = 600.0,
        n_retries: int = 4,
        structured_backend: str = "guidance",
        thinking_tokens: int = 0,
        seed: int = 0,
    ) -> None:
        """Check every server with a few tiny asks.

        Args:
            addresses: up to and with /v1, several separated by commas.
            model: which of the server's models; None where it has one only.
            fingerprint: hash of the model's files, where it is known already.
            context_length: tokens of prompt and output; None takes the server's, at most 8192.
            ask_timeout_s: seconds for one ask, from its dispatch.
            n_retries: how often an ask is sent again that failed for a passing reason.
            structured_backend: how schemas are written for a vLLM server on this machine.
            thinking_tokens: length of the think block before each answer; 0 is none.
            seed: of the jitter between tries.

        Raises:
            UserError: where a server does not answer, can't do what is needed, or differs from the others.
        """
        self._addresses = parse_addresses(addresses)
        patience = Patience(ask_timeout_s, n_retries)
        timeout_s = min(_CHECK_TIMEOUT_S, ask_timeout_s)
        found = run_in_thread(_check_all(self._addresses, model, timeout_s))
        self.abilities = _the_same(self._addresses, found)
        self.name = self.abilities.model.rstrip("/").rpartition("/")[2]
        self._context_length = choose_context_length(
            context_length, self.abilities.context_length, "server", self._addresses[0]
        )
        self.context_length = self._context_length - thinking_tokens
        self._chat: Chat | None = None
        self._dialect: Dialect
        if self.abilities.folder is not None:
            self._chat = Chat.load(self.abilities.folder, thinking_tokens)
            self._dialect = TokenDialect(self._chat, self.abilities, self._context_length, structured_backend)
            fingerprint = fingerprint or shelf.fingerprint(self.abilities.folder)
        else:
            self._dialect = ChatDialect(self.abilities, thinking_tokens)
        servers = [Server(address, self.abilities.load_metrics) for address in self._addresses]
        self._dispatcher = Dispatcher(servers, patience, random.Random(seed))
        self._settings: dict[str, object] = {
            "backend": "served",
            "server": self.abilities.server,
            "dialect": "chat messages" if self._chat is None else "token ids",
            "chat_version": CHAT_VERSION,
            **({"structured_backend": structured_backend} if self._chat is not None else {}),
            **({"thinking_tokens": thinking_tokens} if thinking_tokens else {}),
        }
        named = hashlib.sha256(self.abilities.model.encode()).hexdigest()
        self.fingerprint = combine_fingerprint(fingerprint or named, self._settings)
        self._is_fingerprint_of_files = fingerprint is not None

    def answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        """Yield (position, answer) once for every call, each as soon as it is known.

        Raises:
            UserError: where the last server is gone; what was known before has been yielded then.
        """
        requests, failed = self._dialect.requests(calls)
        yield from failed
        for request, outcome in self._dispatcher.run(requests, self._dialect.follow_up):
            yield from self._dialect.answers(request, outcome)

    def stop(self) -> None:
        """Let `answer` end; what the servers are computing is given up."""
        self._dispatcher.stop()

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone; without the model's tokenizer an estimate that is rather too high.

        ceil(ASCII characters / 3 + 1.5 times the others): English has about 4 characters to a token,
        Korean 1 to 2 tokens to a letter at worst.
        """
        if self._chat is not None:
            return self._chat.n_tokens(texts)
        n_ascii = [sum(map(str.isascii, text)) for text in texts]
        return [math.ceil(n / 3 + 1.5 * (len(text) - n)) for text, n in zip(texts, n_ascii, strict=True)]

    def describe(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return {
            **self._settings,
            "context_length": self._context_length,
            "addresses": list(self._addresses),
            "fingerprint_of": "files" if self._is_fingerprint_of_files else "the model's name only",
            "self_check": self.abilities.to_json(),
            "notes": self._notes(),
        }

    def close(self) -> None:
        """Nothing to free: the server is not ours."""

    def _notes(self) -> list[str]:
        if self.abilities.probabilities or self._chat is not None:
            return []
        return [
            f"the server at {self._addresses[0]} gives no probabilities: verdicts count as 0 or 1, "
            "and a soft score says no more than the score"
        ]


async def _check_all(addresses: Sequence[str], model: str | None, timeout_s: float) -> list[Abilities]:
    return list(await asyncio.gather(*(check_server(address, model, timeout_s) for address in addresses)))


def _the_same(addresses: Sequence[str], found: Sequence[Abilities]) -> Abilities:
    """Return what all servers can do; they must serve one model alike, or scores would mix two judges."""
    for address, one in zip(addresses, found, strict=True):
        if one != found[0]:
            differing = [name for name, value in one.to_json().items() if value != found[0].to_json()[name]]
            raise UserError(
                f"the servers {addresses[0]} and {address} differ",
                {"in": ", ".join(differing) or "folder", "to fix": "serve the same model the same way"},
            )
    return found[0]
