"""Tasks and the questions that they wait for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from offline_judge.engine.asks import Ask


class Slot:
    """One question and, once known, its answer; `waiters` are the tasks to wake."""

    __slots__ = ("answer", "ask", "charged_to", "known", "language", "waiters")

    def __init__(self, ask: Ask, language: str, charged_to: str) -> None:
        self.ask = ask
        self.language = language
        self.charged_to = charged_to
        self.known = False
        self.answer: Any = None
        self.waiters: list[Task] = []

    def fill(self, answer: Any, ready: list[Task]) -> None:
        """Take the answer and wake the tasks that waited for nothing else."""
        self.answer = answer
        self.known = True
        for task in self.waiters:
            task.n_open -= 1
            if not task.n_open:
                ready.append(task)
        self.waiters.clear()


class Task:
    """A generator with what it waits for. `done` is called once with what it returned."""

    __slots__ = ("charged_to", "done", "generator", "language", "n_open", "sees_failures", "slots")

    def __init__(
        self,
        generator: Generator[Sequence[Ask], list[Any], Any],
        language: str,
        done: Callable[[Any], None],
        charged_to: str,
        *,
        sees_failures: bool,
    ) -> None:
        self.generator = generator
        self.language = language
        self.charged_to = charged_to
        self.done = done
        self.sees_failures = sees_failures
        self.slots: list[Slot] | None = None
        self.n_open = 0
