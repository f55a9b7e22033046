from __future__ import annotations

import socket

import pytest


def test_a_connection_beyond_this_machine_fails_the_test():
    # 192.0.2.1 is reserved for documentation: nobody answers there.
    with socket.socket() as outside, pytest.raises(pytest.fail.Exception, match=r"192\.0\.2\.1"):
        outside.connect(("192.0.2.1", 80))


def test_loopback_is_open():
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
