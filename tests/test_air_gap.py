"""Every way out of CPython's sockets is refused, counted and named; what is allowed, and when it ends.

192.0.2.0/24 and .invalid are reserved: nobody answers there, should a test be wrong.
"""

from __future__ import annotations

import _socket
import asyncio
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import closing

import httpx
import pytest

from offline_judge.air_gap import AirGapError, AllowedHost, air_gap, host_of
from offline_judge.errors import UserError

OUTSIDE = ("192.0.2.1", 80)
V6 = ("2001:db8::1", 80)
NAME = "shelf.invalid"

pytestmark = pytest.mark.reaches_out


def udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


WAYS_OUT = {
    "connect": lambda: socket.socket().connect(OUTSIDE),
    "connect_ex": lambda: socket.socket().connect_ex(OUTSIDE),
    "connect to a name": lambda: socket.socket().connect((NAME, 80)),
    "connect_ex to a name": lambda: socket.socket().connect_ex((NAME, 80)),
    "connect to a number that is no address": lambda: socket.socket().connect(("3221225985", 80)),
    "connect to what only looks local": lambda: socket.socket().connect(("127.0.0.1%shelf.invalid", 80)),
    "connect to loopback with a blank": lambda: socket.socket().connect((" 127.0.0.1", 80)),
    "connect to localhost with a dot": lambda: socket.socket().connect(("localhost.", 80)),
    "connect in IPv6": lambda: socket.socket(socket.AF_INET6).connect(V6),
    "connect to IPv4 in IPv6": lambda: socket.socket(socket.AF_INET6).connect(("::ffff:192.0.2.1", 80)),
    "connect by _socket": lambda: _socket.socket().connect(OUTSIDE),
    "connect of UDP": lambda: udp().connect(("192.0.2.1", 53)),
    "sendto": lambda: udp().sendto(b"x", OUTSIDE),
    "sendto with flags": lambda: udp().sendto(b"x", 0, OUTSIDE),
    "sendto a name": lambda: udp().sendto(b"x", (NAME, 80)),
    "sendmsg": lambda: udp().sendmsg([b"x"], [], 0, OUTSIDE),
    "broadcast": lambda: udp().sendto(b"x", ("<broadcast>", 80)),
    "create_connection": lambda: socket.create_connection(OUTSIDE),
    "getaddrinfo": lambda: socket.getaddrinfo(NAME, 80),
    "getaddrinfo of bytes": lambda: socket.getaddrinfo(NAME.encode(), 80),
    "gethostbyname": lambda: socket.gethostbyname(NAME),
    "gethostbyname_ex": lambda: socket.gethostbyname_ex(NAME),
    "gethostbyaddr": lambda: socket.gethostbyaddr(OUTSIDE[0]),
    "getnameinfo": lambda: socket.getnameinfo(OUTSIDE, 0),
    "asyncio": lambda: asyncio.run(asyncio.open_connection(*OUTSIDE)),
    "asyncio to a name": lambda: asyncio.run(asyncio.open_connection(NAME, 80)),
}


@pytest.mark.parametrize("way", WAYS_OUT.values(), ids=WAYS_OUT)
def test_every_way_out_is_refused_and_counted_once(way):
    with air_gap() as gap:
        with pytest.raises(AirGapError) as refusal:
            way()
        assert [one["count"] for one in gap.refused()] == [1]
    # asyncio looks names up in a thread of its own, where nobody's frame is left.
    assert refusal.value.asked_by.startswith(("test_air_gap", "the standard library in thread asyncio"))
    assert "--allow-host" in str(refusal.value)


@pytest.mark.parametrize(
    "client",
    [
        lambda: urllib.request.urlopen(f"http://{NAME}/x"),
        lambda: httpx.get(f"http://{NAME}/x"),
        lambda: httpx.get("http://192.0.2.1/x"),
    ],
)
def test_libraries_take_a_refusal_for_a_network_that_is_down(client):
    with air_gap() as gap, pytest.raises((urllib.error.URLError, httpx.ConnectError)):
        client()
    assert len(gap.refused()) == 1


def test_a_refusal_names_the_library_and_who_called_it():
    with air_gap() as gap, pytest.raises(httpx.ConnectError):
        httpx.get("http://192.0.2.1:8080/x")
    (one,) = gap.refused()
    assert one["address"] == "192.0.2.1:8080"
    assert one["asked_by"].startswith("httpcore.")
    assert "called from httpx, test_air_gap" in one["asked_by"]


def test_the_command_line_prints_a_refusal_without_a_traceback():
    error = AirGapError("192.0.2.1:80", "mine")
    assert isinstance(error, UserError)
    assert isinstance(error, OSError)
    assert error.errno == 13
    assert str(error).splitlines()[1:] == [
        "  asked by  mine",
        "  to allow  --allow-host 192.0.2.1:80 (in Python allow_host=['192.0.2.1:80'])",
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.10"])
def test_loopback_is_open(host):
    with air_gap() as gap, socket.socket() as server, socket.socket() as client:
        server.bind(("127.8.9.10" if host.endswith("10") else "127.0.0.1", 0))
        server.listen()
        client.connect((host, server.getsockname()[1]))
    assert gap.refused() == []


def test_unix_sockets_are_open(tmp_path):
    with air_gap(), closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(tmp_path / "s"))


def asks(address: tuple[str, int]) -> None:
    """What a connect would ask the gap, without a connect."""
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as sock:
        sys.audit("socket.connect", sock, address)


def test_an_exception_is_one_host_at_one_port_or_any():
    with air_gap(["192.0.2.1:80", "192.0.2.2", "[2001:db8::1]:80"]):
        asks(OUTSIDE)
        asks(V6)
        asks(("192.0.2.2", 9))
        for address in (("192.0.2.1", 81), ("192.0.2.3", 80), ("2001:db8::1", 81), ("2001:db8::2", 80)):
            with pytest.raises(AirGapError):
                asks(address)


def test_a_name_that_is_allowed_brings_its_addresses(monkeypatch):
    look_up = socket.getaddrinfo

    def found(host, *rest, **more):
        sys.audit("socket.getaddrinfo", host, None, 0, 0, 0)
        return look_up("192.0.2.7", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with air_gap([f"{NAME}:443"]):
        with pytest.raises(AirGapError):
            asks(("192.0.2.7", 443))
        socket.getaddrinfo(NAME.upper(), 443)
        asks(("192.0.2.7", 443))
        with pytest.raises(AirGapError):
            asks(("192.0.2.7", 80))
        with pytest.raises(AirGapError):
            socket.getaddrinfo("other.invalid", 443)


def test_gaps_nest_and_an_exception_of_any_holds():
    with air_gap(["192.0.2.1"]) as outer:
        with air_gap(["192.0.2.2"]) as inner:
            asks(OUTSIDE)
            asks(("192.0.2.2", 80))
            with pytest.raises(AirGapError):
                asks(("192.0.2.3", 80))
        with pytest.raises(AirGapError):
            asks(("192.0.2.2", 80))
    assert [one["address"] for one in inner.refused()] == ["192.0.2.3:80"]
    assert [one["address"] for one in outer.refused()] == ["192.0.2.3:80", "192.0.2.2:80"]


def in_thread(work) -> list[BaseException | None]:
    said: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            said.append(None)
        except AirGapError as error:
            said.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return said


def test_threads_of_libraries_are_held_too():
    with air_gap(["192.0.2.2"]) as gap:
        assert isinstance(in_thread(lambda: asks(OUTSIDE))[0], AirGapError)
        assert in_thread(lambda: asks(("192.0.2.2", 80))) == [None]
    assert len(gap.refused()) == 1


def test_a_strict_thread_stays_strict_beside_one_that_allows():
    def strict() -> None:
        with air_gap():
            asks(OUTSIDE)

    with air_gap([OUTSIDE[0]]) as gap:
        assert isinstance(in_thread(strict)[0], AirGapError)
        asks(OUTSIDE)
    assert gap.refused() == []


def test_many_threads_open_and_close_gaps():
    plain = socket.socket.connect
    wrong: list[str] = []

    def work() -> None:
        for _ in range(50):
            with air_gap() as gap:
                try:
                    socket.socket().connect(OUTSIDE)
                    wrong.append("connected")
                except AirGapError:
                    pass
                if len(gap.refused()) != 1:
                    wrong.append(str(gap.refused()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert socket.socket.connect is plain


AFTERWARDS = """
import os, socket, sys
from offline_judge.air_gap import air_gap, AirGapError
os.environ["HTTPS_PROXY"] = "http://127.0.0.1:3128"
before = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex", "sendto", "sendmsg")}
own = set(vars(socket.socket))
try:
    with air_gap():
        assert "HTTPS_PROXY" not in os.environ
        raise KeyError
except KeyError:
    pass
assert {name: getattr(socket.socket, name) for name in before} == before
assert set(vars(socket.socket)) == own
assert os.environ["HTTPS_PROXY"] == "http://127.0.0.1:3128"
with socket.socket() as sock:
    sys.audit("socket.connect", sock, ("192.0.2.1", 80))
print("as before")
"""


def test_nothing_is_left_of_a_gap_that_closed():
    done = subprocess.run([sys.executable, "-c", AFTERWARDS], capture_output=True, text=True, check=False)
    assert done.stdout == "as before\n", done.stderr


FORBIDDEN = """
import sys
def forbid(event, arguments):
    if event == "sys.addaudithook":
        raise RuntimeError
sys.addaudithook(forbid)
from offline_judge.air_gap import air_gap
with air_gap():
    pass
"""


def test_a_gap_that_can_not_be_held_is_an_error():
    done = subprocess.run([sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, check=False)
    assert "the air gap can't be held" in done.stderr


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.5", "10.0.0.5", None),
        ("10.0.0.5:8000", "10.0.0.5", 8000),
        ("Judge.Example", "judge.example", None),
        ("judge.example:1", "judge.example", 1),
        ("2001:DB8::1", "2001:db8::1", None),
        ("[2001:db8::1]:8000", "2001:db8::1", 8000),
    ],
)
def test_hosts_are_read(text, host, port):
    assert AllowedHost.parse(text) == AllowedHost(host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":80", "http://judge", "judge/v1", "me@judge", "judge:http", "judge:70000", "a b", "10.0.0.0/8"],
)
def test_what_is_no_host_is_refused(text):
    with pytest.raises(UserError, match="allow_host"):
        AllowedHost.parse(text)


def test_the_server_that_a_judge_names():
    assert host_of("http://10.0.0.5:8000/v1") == ["10.0.0.5:8000"]
    assert host_of("https://judge.example/v1") == ["judge.example:443"]
    assert host_of("http://[2001:db8::1]:8000/v1") == ["[2001:db8::1]:8000"]
    assert host_of("smollm2-135m-instruct") == host_of(None) == []
    with pytest.raises(UserError, match="address of a server"):
        host_of("http://:8000/v1")
    assert os.environ.get("HF_HUB_OFFLINE") == "1"


def behind_a_gap(folder, module, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "offline_judge.air_gap", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    )


def test_a_module_runs_behind_a_gap_of_its_own(tmp_path):
    (tmp_path / "reach.py").write_text(
        "import socket, sys\n"
        "print(__name__, sys.argv[1:], __spec__.name)\n"
        "socket.create_connection(('192.0.2.1', 80))\n",
        encoding="utf-8",
    )
    done = behind_a_gap(tmp_path, "reach", "--port", "1")
    assert done.stdout == "__main__ ['--port', '1'] reach\n"
    assert "AirGapError: a connection to 192.0.2.1:80 was refused" in done.stderr
    assert "refused 1 connection(s) to 192.0.2.1:80" in done.stderr


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_the_processes_that_a_module_starts_are_held_too(tmp_path, method):
    (tmp_path / "reach.py").write_text(
        "import socket\n"
        "def reach():\n"
        "    try:\n"
        "        socket.create_connection(('192.0.2.1', 80), timeout=1)\n"
        "    except OSError as error:\n"
        "        print(type(error).__name__)\n",
        encoding="utf-8",
    )
    (tmp_path / "start.py").write_text(
        "import multiprocessing, reach\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context('{method}').Process(target=reach.reach)\n"
        "    process.start()\n"
        "    process.join()\n",
        encoding="utf-8",
    )
    assert behind_a_gap(tmp_path, "start").stdout == "AirGapError\n"
