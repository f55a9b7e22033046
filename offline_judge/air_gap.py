"""The air gap: no connection but loopback and Unix sockets, and no look-up of another host's name.

    with air_gap(["10.0.0.5:8000"]) as gap:
        ...
    gap.refused()  # what was tried all the same, and by whom

Two parts hold it. An audit hook (`sys.addaudithook`) sees every connect, send and look-up of CPython's
`socket` module, whatever was imported or renamed before: a hook, since a patched function is passed by
every `from socket import ...` that came earlier. CPython resolves the *name* in `connect((name, port))`
before it tells its hooks, so `socket.socket` also gets methods that look at the address first. These
methods go when the last gap closes. A hook can't be removed: it stays and does nothing, which costs 0.4 µs
per audit event (2 cores, Python 3.11).

The gap is the whole process's, since libraries reach out from threads of their own. A thread (or async
task) that opened gaps may reach what these allow; any other thread what any open gap allows. Proxy
variables are hidden while a gap is open: a proxy on the loopback address would carry connections out.

What it can't see: native code with sockets of its own (uvloop, gRPC, ZeroMQ, the Rust client of the model
hub, gloo, NCCL, the S3 client of Arrow), calls through ctypes, and other programs that the process starts.
Nor does it stop a socket from listening. Against all of these stands the kernel alone, in a network
namespace (`unshare -rn`); `scripts/check_air_gap.sh` runs the package in one, and under a system-call trace.
Another Python program is held, with the processes that its `multiprocessing` starts, when it is started as
`python -m offline_judge.air_gap MODULE ARGUMENTS`, as a served judge is.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import os
import runpy
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from offline_judge.errors import UserError

#: Families that end in this machine's kernel. All others but IPv4 and IPv6 are refused: a virtual
#: machine's host (VSOCK), Bluetooth and raw packets are ways out too.
_LOCAL_FAMILIES = {
    getattr(socket, name) for name in ("AF_UNIX", "AF_NETLINK", "AF_ALG") if hasattr(socket, name)
}
_INTERNET_FAMILIES = {socket.AF_INET, socket.AF_INET6}
_LOCAL_NAMES = {"", "localhost"}
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
_N_CALLERS = 4


class AirGapError(UserError, PermissionError):
    """A connection or a look-up was refused.

    It is an `OSError`, so libraries take it for a network that is down.

    Attributes:
        address: what was to be reached, HOST:PORT, or HOST where a name was looked up.
        asked_by: the module of the first frame outside the standard library, then who called it.
    """

    def __init__(self, address: str, asked_by: str) -> None:
        super().__init__(
            f"a connection to {address} was refused: nothing leaves this machine",
            {
                "asked by": asked_by,
                "to allow": f"--allow-host {address} (in Python allow_host=['{address}'])",
            },
        )
        self.errno = errno.EACCES
        self.strerror = self.message
        self.address = address
        self.asked_by = asked_by


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """A host that may be reached, at one port or (None) at any."""

    host: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """Read HOST, HOST:PORT, an IPv6 address or [IPv6]:PORT.

        Raises:
            UserError: the text is none of these.
        """
        with contextlib.suppress(ValueError):
            return cls(ipaddress.ip_address(text).compressed)
        try:
            url = urlsplit(f"//{text}")
            host, port = url.hostname, url.port
        except ValueError:
            host = None
        if not host or url.netloc != text or url.username is not None or any(map(str.isspace, text)):
            raise UserError(
                f"allow_host {text!r} is not a host", {"wanted": "HOST, HOST:PORT, or [IPv6]:PORT"}
            ) from None
        return cls(normal_host(host), port)


def host_of(url: str | os.PathLike[str] | None) -> list[str]:
    """Return HOST:PORT of an http:// or https:// address in a list, or an empty list for anything else.

    A server that the user names is an exception by itself: `air_gap([*allow_host, *host_of(judge)])`.

    Raises:
        UserError: the address has no host, or its port is no number.
    """
    text = str(url or "")
    if not text.lower().startswith(("http://", "https://")):
        return []
    try:
        parts = urlsplit(text)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = None, 0
    if parts is None or not parts.hostname:
        raise UserError(f"{text!r} is not the address of a server", {"wanted": "http://HOST:PORT/v1"})
    return [_shown(parts.hostname, port)]


class Gap:
    """One open gap: what it allows, and what it refused."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Read the exceptions, texts as `AllowedHost.parse` takes them."""
        self._allowed = {AllowedHost.parse(text) for text in allowed}
        self._names = {one.host for one in self._allowed}
        self._refused: Counter[tuple[str, str]] = Counter()

    def refused(self) -> list[dict[str, Any]]:
        """Return what was refused, the most frequent first: address, asked_by, count."""
        with _lock:
            found = self._refused.most_common()
        return [{"address": address, "asked_by": who, "count": n} for (address, who), n in found]

    def allows(self, host: str, port: int | None) -> bool:
        """Whether an exception names the host; `port` is None for a look-up of its name."""
        if host not in self._names:
            return False
        return port is None or bool({AllowedHost(host, port), AllowedHost(host)} & self._allowed)

    def learn(self, name: str) -> None:
        """Allow the addresses of an allowed name, at the ports of the name."""
        if name not in self._names or _is_address(name):
            return
        found = {normal_host(str(entry[4][0])) for entry in socket.getaddrinfo(name, None)}
        ports = {one.port for one in self._allowed if one.host == name}
        with _lock:
            self._allowed = self._allowed | {AllowedHost(host, port) for host in found for port in ports}
            self._names = self._names | found

    def count(self, address: str, asked_by: str) -> None:
        """Note one refusal."""
        with _lock:
            self._refused[address, asked_by] += 1


_lock = threading.RLock()
_open: list[Gap] = []  # every gap of this process, in the order in which they opened
_mine: ContextVar[tuple[Gap, ...]] = ContextVar("offline_judge_air_gap", default=())
_resolving = threading.local()  # .now is true while `learn` looks up a name that is allowed
_restore: list[Callable[[], None]] = []


@contextlib.contextmanager
def air_gap(allowed: Iterable[str] = ()) -> Iterator[Gap]:
    """Refuse, until the block ends, every connection but loopback, Unix sockets and those `allowed`.

    Gaps may be nested (an exception of any of them holds inside) and may be open in many threads.

    Args:
        allowed: HOST, HOST:PORT, an IPv6 address, or [IPv6]:PORT.

    Raises:
        UserError: one of `allowed` is no host, or another audit hook keeps this one out.
    """
    gap = Gap(allowed)
    with _lock:
        _add_hook()
        if not _open:
            _wrap_methods()
            _hide_proxies()
        _open.append(gap)
    token = _mine.set((*_mine.get(), gap))
    try:
        yield gap
    finally:
        with contextlib.suppress(ValueError):  # a generator may be closed in another context
            _mine.reset(token)
        with _lock:
            _open.remove(gap)
            while not _open and _restore:
                _restore.pop()()


def refusal_notes(gap: Gap) -> list[str]:
    """Say in one line each what a gap refused."""
    return [
        f"refused {one['count']} connection(s) to {one['address']}, asked by {one['asked_by']}"
        for one in gap.refused()
    ]


# What is asked for ----------------------------------------------------------------------------------


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    check = _CHECKS.get(event)
    if check is not None and (_open or event == _PROBE) and not getattr(_resolving, "now", False):
        check(*arguments)


def _check_address(sock: socket.socket, address: Any) -> None:
    """Judge the address of a connect or a send; None is where the socket is connected already."""
    if address is None or sock.family in _LOCAL_FAMILIES:
        return
    if sock.family not in _INTERNET_FAMILIES or not isinstance(address, tuple) or len(address) < 2:
        _refuse(f"{getattr(sock.family, 'name', sock.family)} {address!r}")
    host, port = normal_host(address[0]), address[1]
    if not is_local(host):
        _permit(host, port if isinstance(port, int) else None, _shown(host, port))


def _check_name(host: Any, *_: Any) -> None:
    """Judge a look-up: a numeric address needs none."""
    name = normal_host(host)
    if not is_local(name) and not _is_address(name):
        _permit(name, None, name)


def _check_reverse(host: Any, *_: Any) -> None:
    """Judge a look-up of the name of an address, which is a query even where the address is numeric."""
    name = normal_host(host[0] if isinstance(host, tuple) else host)
    if not is_local(name):
        _permit(name, None, name)


#: Raised by `_add_hook` itself, to learn whether the hook hears anything.
_PROBE = "offline_judge.air_gap"
_heard: list[object] = []
_CHECKS: dict[str, Callable[..., None]] = {
    _PROBE: _heard.append,
    "socket.connect": _check_address,  # connect_ex too
    "socket.sendto": _check_address,
    "socket.sendmsg": _check_address,
    "socket.getaddrinfo": _check_name,
    "socket.gethostbyname": _check_name,  # gethostbyname_ex too
    "socket.gethostbyaddr": _check_reverse,
    "socket.getnameinfo": _check_reverse,
}


def _permit(host: str, port: int | None, shown: str) -> None:
    for gap in _concerned():
        if gap.allows(host, port):
            _resolving.now = True
            try:
                with contextlib.suppress(OSError):  # the caller's own look-up will say the same
                    gap.learn(host)
            finally:
                _resolving.now = False
            return
    _refuse(shown)


def _concerned() -> list[Gap]:
    """The open gaps of this thread or task, or all open ones where it has none."""
    with _lock:
        return [gap for gap in _mine.get() if gap in _open] or [*_open]


def _refuse(shown: str) -> None:
    asked_by = _asked_by()
    for gap in _concerned():
        gap.count(shown, asked_by)
    raise AirGapError(shown, asked_by)


def _asked_by() -> str:
    """Name the module that asked, and the packages that called it: `httpcore._sync, called from httpx`."""
    modules: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(modules) < _N_CALLERS:
        module = str(frame.f_globals.get("__name__", "?"))
        package = module.partition(".")[0]
        known = {one.partition(".")[0] for one in modules}
        if module != __name__ and package not in sys.stdlib_module_names and package not in known:
            modules.append(package if modules else module)
        frame = frame.f_back
    first, *callers = modules or [f"the standard library in thread {threading.current_thread().name}"]
    return f"{first}, called from {', '.join(callers)}" if callers else first


def is_local(host: str) -> bool:
    """Whether a host, written as `normal_host` does, is this very machine."""
    if host in _LOCAL_NAMES:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # Connecting to 0.0.0.0 or :: reaches this very machine.
    return address.is_loopback or address.is_unspecified


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def normal_host(host: Any) -> str:
    """Write a host in one way: lower case, an IPv6 address without its zone, an IPv4 address in IPv6 as IPv4.

    Nothing else is forgiven: the resolver asks the network for " 127.0.0.1", "localhost." or "127.0.0.1%x".
    """
    if host is None:
        return ""
    text = host.decode("utf-8", "replace") if isinstance(host, bytes | bytearray) else str(host)
    text = text.lower()
    bare = text.partition("%")[0]
    try:
        address = ipaddress.ip_address(bare if ":" in bare else text)
    except ValueError:
        return text
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address.compressed)


def _shown(host: str, port: object) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Opening and closing --------------------------------------------------------------------------------


def _add_hook() -> None:
    """Add the hook once for the life of the process, and make sure that it hears."""
    if _heard:
        return
    sys.addaudithook(_hook)  # says nothing where another hook forbids it
    sys.audit(_PROBE, True)
    if not _heard:
        raise UserError(
            "the air gap can't be held",
            {"found": "an audit hook of this process lets no other be added", "to fix": "remove that hook"},
        )


def _wrap_methods() -> None:
    """Look at addresses before CPython resolves the names in them."""
    for name, position in (("connect", 0), ("connect_ex", 0), ("sendto", -1), ("sendmsg", 3)):
        if hasattr(socket.socket, name):
            _wrap(name, position)


def _wrap(name: str, position: int) -> None:
    plain = getattr(socket.socket, name)

    @functools.wraps(plain)
    def guarded(self: socket.socket, *arguments: Any) -> Any:
        if position < len(arguments):
            _check_address(self, arguments[position])
        return plain(self, *arguments)

    def restore() -> None:
        if getattr(socket.socket, name) is guarded:
            delattr(socket.socket, name) if inherited else setattr(socket.socket, name, plain)

    inherited = name not in vars(socket.socket)
    setattr(socket.socket, name, guarded)
    _restore.append(restore)


def _hide_proxies() -> None:
    hidden = {name: os.environ.pop(name) for name in [*os.environ] if name.lower() in _PROXY_VARIABLES}

    def restore() -> None:
        for name, value in hidden.items():
            os.environ.setdefault(name, value)

    _restore.append(restore)


# A program of its own -------------------------------------------------------------------------------


def main() -> None:
    """Run `python -m offline_judge.air_gap MODULE ARGUMENTS`: `python -m MODULE ARGUMENTS`, behind a gap.

    What was refused is written to stderr when it ends. MODULE can't hand functions of its own to processes
    that it spawns.
    """
    module, *sys.argv[1:] = sys.argv[1:]
    with air_gap() as gap:
        try:
            # This file stays the main module, so that a spawned process imports it and holds a gap, too.
            runpy.run_module(module, run_name="__main__")
        finally:
            sys.stderr.writelines(f"{note}\n" for note in refusal_notes(gap))


# As a main module this file is a second copy of the package's, with gaps of its own.
if __name__ == "__main__":
    from offline_judge.air_gap import main as of_the_package

    of_the_package()
elif __name__ == "__mp_main__":  # in a process that such a program spawned; it is held until it ends
    from offline_judge.air_gap import air_gap as gap_of_the_package

    _held = gap_of_the_package()
    _held.__enter__()
