"""Many requests in flight, over one server or several, from synchronous code.

An event loop in a thread of its own sends the requests; what comes back reaches the caller through a
queue, in the order in which it is known. How many requests a server holds at once follows the server:
it grows while nothing waits there, and shrinks where the server says that it is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import aiohttp

from offline_judge.errors import UserError

_T = TypeVar("_T")

#: Statuses after which the same request can succeed: too early, too many, or the server's own trouble.
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_BUSY_STATUSES = frozenset({429, 503})

_FIRST_LIMIT, _MOST_IN_FLIGHT = 32, 4096
_POLL_S = 0.5
#: A server that has refused connections this long, tried at growing intervals, counts as gone.
_GONE_AFTER_S = (0.2, 0.5, 1.0, 2.0, 4.0)
#: So does one that let so many requests in a row meet the time limit and answered none in between.
_TIMEOUTS_OF_THE_GONE = 3
_WAITING = re.compile(rb"^vllm:num_requests_waiting(?:\{[^}]*\})? ([\d.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Patience:
    """When to give up.

    Attributes:
        ask_timeout_s: seconds for one request, from its dispatch: what waits here does not count.
        n_retries: how often a request that failed for a passing reason is sent again.
        first_pause_s: before the first retry; doubled each time up to 30 s, times a random 0.5 to 1.5.
    """

    ask_timeout_s: float = 600.0
    n_retries: int = 4
    first_pause_s: float = 0.5


@dataclass(slots=True, eq=False)
class Request:
    """One POST, `about` being what the caller needs to read its reply."""

    path: str
    payload: dict[str, Any]
    about: Any
    n_tries: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The JSON object that a server answered with."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """No reply. `status` is the HTTP status or 0, `body` what the server said of a 4xx (never logged)."""

    reason: str
    detail: str
    status: int = 0
    body: str = ""


Outcome: TypeAlias = Reply | Refusal


@dataclass(slots=True, eq=False)
class Server:
    """One address and what is known of its load."""

    address: str
    has_metrics: bool = False
    limit: int = _FIRST_LIMIT
    n_in_flight: int = 0
    is_alive: bool = True
    #: Held back while it is found out whether the server is gone.
    is_held: bool = False
    #: Requests that timed out since the last answer.
    n_timeouts: int = 0
    best_rate: float = 0.0
    n_answered: int = 0


def run_in_thread(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end; works inside a running event loop too."""
    result: list[_T] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(coroutine))
        except BaseException as caught:  # noqa: BLE001 - raised again in the caller's thread
            error.append(caught)

    thread = threading.Thread(target=run, name="offline-judge-http", daemon=True)
    thread.start()
    thread.join()
    if error:
        raise error[0]
    return result[0]


def new_session() -> aiohttp.ClientSession:
    """Open a session that follows no proxy, no redirect list and no cookie of the environment."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


async def post(
    session: aiohttp.ClientSession, url: str, payload: dict[str, Any], timeout_s: float
) -> Outcome:
    """Send one request.

    Raises:
        aiohttp.ClientConnectionError: where the server can't be reached or hangs up.
        TimeoutError: after `timeout_s` seconds.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    # A redirect could lead out of the machine.
    async with session.post(url, json=payload, timeout=timeout, allow_redirects=False) as response:
        if response.status != 200:
            body = (await response.content.read(4096)).decode("utf-8", "replace")
            return Refusal("judge_http_error", f"HTTP {response.status}", response.status, body)
        try:
            body_json = await response.json(content_type=None)
        except ValueError:
            return Refusal("judge_http_error", "HTTP 200 without JSON", 200)
    if not isinstance(body_json, dict):
        return Refusal("judge_http_error", "HTTP 200 without a JSON object", 200)
    return Reply(body_json)


class Dispatcher:
    """Shares requests among servers.

    Args:
        servers: of one and the same model.
        patience: when to give up.
        rng: jitter of the pauses between tries.
    """

    def __init__(self, servers: Sequence[Server], patience: Patience, rng: random.Random) -> None:
        self.servers = list(servers)
        self.patience = patience
        self._rng = rng
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(
        self, requests: Sequence[Request], follow_up: Callable[[Request, Outcome], Sequence[Request]]
    ) -> Iterator[tuple[Request, Outcome]]:
        """Yield (request, outcome) of every request, as soon as it is known.

        `follow_up` may ask for other requests to be sent in place of an outcome: theirs come instead.

        Raises:
            UserError: where no server is left. What was known before has been yielded then.
        """
        results: queue.SimpleQueue[tuple[Request, Outcome] | BaseException | None] = queue.SimpleQueue()
        self._results = results
        round_ = _Round(self, requests, follow_up, results.put)
        thread = threading.Thread(target=round_.run, name="offline-judge-http", daemon=True)
        thread.start()
        try:
            while (item := results.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            # The caller has stopped asking, or was interrupted: what it no longer waits for is dropped.
            round_.stop()
            thread.join()

    def stop(self) -> None:
        """End the `run` under way after what is known already; from a signal handler or another thread."""
        self._results.put(None)

    def pause_s(self, n_tries: int) -> float:
        """Seconds before the next try, after so many."""
        pause = min(30.0, self.patience.first_pause_s * 2.0 ** (n_tries - 1))
        return pause * self._rng.uniform(0.5, 1.5)


@dataclass(eq=False)
class _Round:
    """One `Dispatcher.run`: lives in its own event loop."""

    dispatcher: Dispatcher
    requests: Sequence[Request]
    follow_up: Callable[[Request, Outcome], Sequence[Request]]
    emit: Callable[[tuple[Request, Outcome] | BaseException | None], None]
    _loop: asyncio.AbstractEventLoop | None = None
    _main: asyncio.Task[None] | None = None
    _started: threading.Event = field(default_factory=threading.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def run(self) -> None:
        try:
            asyncio.run(self._work())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self.emit(error)
        finally:
            self._started.set()
            self.emit(None)

    def stop(self) -> None:
        """Cancel what is left, from the caller's thread."""
        self._started.wait()
        if self._loop is not None and self._main is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._main.cancel)

    async def _work(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        self._waiting = deque(self.requests)
        self._n_open = len(self.requests)
        self._changed = asyncio.Event()
        self._left = {server.address: asyncio.Event() for server in self.dispatcher.servers}
        async with new_session() as session:
            self._session = session
            pollers = [
                asyncio.create_task(self._follow(server))
                for server in self.dispatcher.servers
                if server.is_alive
            ]
            try:
                while self._n_open:
                    self._changed.clear()
                    self._fill()
                    if not any(server.is_alive for server in self.dispatcher.servers):
                        raise _gone(self.dispatcher.servers, self._n_open)
                    await self._changed.wait()
            finally:
                for task in [*pollers, *self._tasks]:
                    task.cancel()
                await asyncio.gather(*pollers, *self._tasks, return_exceptions=True)

    # Sending --------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Send what the servers have room for, to the least busy first."""
        while self._waiting:
            free = [
                server
                for server in self.dispatcher.servers
                if server.is_alive and not server.is_held and server.n_in_flight < server.limit
            ]
            if not free:
                return
            server = min(free, key=lambda one: one.n_in_flight / one.limit)
            server.n_in_flight += 1
            self._start(self._ask(server, self._waiting.popleft()))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, server: Server, request: Request) -> None:
        patience = self.dispatcher.patience
        request.n_tries += 1
        outcome: Outcome
        n_retries, pause_s = patience.n_retries, self.dispatcher.pause_s(request.n_tries)
        try:
            asking = post(
                self._session, f"{server.address}/{request.path}", request.payload, patience.ask_timeout_s
            )
            outcome = await self._unless_gone(server, asking)
            server.n_timeouts = 0
            server.n_answered += 1
            if isinstance(outcome, Refusal):
                if outcome.status not in RETRIED_STATUSES:
                    n_retries = 0
                if outcome.status in _BUSY_STATUSES:
                    server.limit = max(1, server.limit // 2)
        except (TimeoutError, asyncio.TimeoutError):
            outcome = Refusal("judge_timeout", f"no answer within {patience.ask_timeout_s:g} s")
            n_retries = min(n_retries, 1)
            server.n_timeouts += 1
            if server.n_timeouts >= min(server.limit, _TIMEOUTS_OF_THE_GONE):
                server.is_alive = False
        except (aiohttp.ClientError, OSError) as error:
            outcome = Refusal("judge_unreachable", type(error).__name__)
            pause_s = 0.0  # the server is held back instead
            if not server.is_held and server.is_alive:
                server.is_held = True
                self._start(self._find_out(server))
        finally:
            server.n_in_flight -= 1
            self._changed.set()
        if isinstance(outcome, Refusal) and request.n_tries <= n_retries:
            if pause_s:
                await asyncio.sleep(pause_s)
            self._waiting.appendleft(request)
        else:
            self._finish(request, outcome)
        self._changed.set()

    def _finish(self, request: Request, outcome: Outcome) -> None:
        more = self.follow_up(request, outcome)
        self._waiting.extendleft(reversed(more))
        self._n_open += len(more) - 1
        if not more:
            self.emit((request, outcome))

    # Servers --------------------------------------------------------------------------------------

    async def _find_out(self, server: Server) -> None:
        """Hold a server back until it answers again, or drop it."""
        for pause_s in _GONE_AFTER_S:
            await asyncio.sleep(pause_s)
            if await self._get(f"{server.address}/models") is not None:
                server.is_held = False
                break
        else:
            server.is_alive = False
            self._left[server.address].set()
        self._changed.set()

    async def _unless_gone(self, server: Server, asking: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Wait for an answer as long as its server is there."""
        answer = asyncio.ensure_future(asking)
        gone = asyncio.ensure_future(self._left[server.address].wait())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise aiohttp.ClientConnectionError
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()

    async def _follow(self, server: Server) -> None:
        """Let the number of requests in flight follow the server's load."""
        n_before = server.n_answered
        while True:
            await asyncio.sleep(_POLL_S)
            is_silent = server.n_answered == n_before and server.n_in_flight > 0
            if is_silent and not server.is_held and server.is_alive and await _refuses(server.address):
                # A server that is shutting down may hold its open connections for ever.
                server.is_held = True
                self._start(self._find_out(server))
            is_full = server.n_in_flight >= server.limit and self._waiting
            if server.has_metrics:
                text = await self._get(server.address.rpartition("/")[0] + "/metrics")
                n_waiting = sum(float(found) for found in _WAITING.findall(text or b""))
                grow = is_full and text is not None and n_waiting <= server.n_in_flight / 4
            else:
                rate = (server.n_answered - n_before) / _POLL_S
                grow = is_full and rate > 1.05 * server.best_rate
                server.best_rate = max(server.best_rate, rate)
            n_before = server.n_answered
            if grow:
                server.limit = min(2 * server.limit, _MOST_IN_FLIGHT)
                self._changed.set()

    async def _get(self, url: str) -> bytes | None:
        """Body of a page, or None where there is none within 5 s."""
        try:
            timeout = aiohttp.ClientTimeout(total=5)
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                return await response.read() if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError):
            return None


async def _refuses(address: str) -> bool:
    """Whether nobody listens at an address any more; a server that is only slow does not refuse."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, port), timeout=5)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, asyncio.TimeoutError):
        return False
    writer.close()
    return False


def _gone(servers: Sequence[Server], n_open: int) -> UserError:
    return UserError(
        "the judge's server is gone: " + ", ".join(server.address for server in servers),
        {
            "found": f"it refuses connections or lets requests time out; {n_open} requests were open",
            "kept": "every answer that came before",
            "to fix": "start the server again and give the same command: it goes on from there",
        },
    )
