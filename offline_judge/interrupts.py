"""Ctrl-C and SIGTERM: once is a request to stop in order, twice stops at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` with the number of the first SIGINT or SIGTERM; the second raises KeyboardInterrupt.

    Signals reach the main thread alone, so in any other thread this does nothing. A SIGINT that is
    ignored, as under nohup, and a SIGTERM that the program handles itself are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    n_seen = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal n_seen
        n_seen += 1
        if n_seen > 1:
            raise KeyboardInterrupt
        stop(number)

    before = {}
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
        before[signal.SIGINT] = signal.signal(signal.SIGINT, handle)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
