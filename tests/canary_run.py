"""Run the command line, or `evaluate`, with models that fail by quoting what they were given.

    python canary_run.py RUNS        # JSON: [[failure, [argument, …]], …]
    python canary_run.py --uncaught FAILURE ROWS

A script of its own, so that a test sees all that a user would: logs of every library at its loudest, the
interpreter's own traceback, progress on a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import click
from stub_models import StubEmbedder, StubJudge

import offline_judge
from offline_judge import evaluation
from offline_judge.backends.protocol import Failed
from offline_judge.cli import main

logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)


class LoudError(Exception):
    """Its message is what it was given, as of many libraries."""


class BreakingJudge(StubJudge):
    def answer(self, calls):
        raise LoudError(calls)
        yield


class CutJudge(StubJudge):
    """Breaks down after some answers, with the cause chained."""

    def answer(self, calls):
        for count, answer in enumerate(super().answer(calls)):
            if count == 3:
                try:
                    raise KeyError(calls[count].messages[-1][1])
                except KeyError as error:
                    raise LoudError(calls[count].messages) from error
            yield answer


class LoudEmbedder(StubEmbedder):
    def embed(self, texts):
        raise LoudError(*texts)


class FlatEmbedder(StubEmbedder):
    """One vector for all texts."""

    def embed(self, texts):
        from offline_judge.backends.embedder import check_vectors

        return check_vectors(super().embed(texts)[:1], (len(texts), 26), self.name)


def refuse(call):
    return Failed("judge_error", "refused")


def prattle(call):
    return "Sure! " + call.messages[-1][1]


MODELS = {
    "none": lambda: (StubJudge(), StubEmbedder()),
    "judge breaks": lambda: (BreakingJudge(), StubEmbedder()),
    "judge breaks midway": lambda: (CutJudge(), StubEmbedder()),
    "judge fails": lambda: (StubJudge(generate=refuse), StubEmbedder()),
    "judge prattles": lambda: (StubJudge(generate=prattle), StubEmbedder()),
    "embedder breaks": lambda: (StubJudge(), LoudEmbedder()),
    "embedder is flat": lambda: (StubJudge(), FlatEmbedder()),
}


def open_models_of(failure):
    return lambda *_: MODELS[failure]()


if __name__ == "__main__":
    if sys.argv[1] == "--uncaught":
        _, _, failure, path = sys.argv
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        evaluation.open_models = open_models_of(failure)
        offline_judge.evaluate(rows, ["faithfulness", "response_relevancy"], out="runs", name="x")
    for failure, arguments in json.loads(sys.argv[1]):
        if failure in MODELS:
            evaluation.open_models = open_models_of(failure)
        click.echo(f"=== {failure} {arguments}")
        try:
            main(arguments, prog_name="offline-judge")
        except SystemExit as done:
            click.echo(f"--- {done.code}")
