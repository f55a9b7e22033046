"""`evaluate`: rows in, a run folder with scores and evidence out."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from offline_judge.air_gap import air_gap, refusal_notes
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.protocol import Embedder, Judge, Verifier
from offline_judge.backends.served.addresses import hosts_of
from offline_judge.config import Config, make_config
from offline_judge.engine.answering import Progress
from offline_judge.engine.rounds import Engine
from offline_judge.engine.store import Store
from offline_judge.errors import Stopped
from offline_judge.gathering import SteeredRows, gather_row, language_of
from offline_judge.interrupts import stop_on_signals
from offline_judge.metrics import DEFAULT
from offline_judge.metrics.registry import Metric, build, labelled, parse
from offline_judge.result import Result
from offline_judge.run_folder import Outcome, RunFolder, RunWriter
from offline_judge.run_models import open_models
from offline_judge.run_record import described, run_record, short_hash
from offline_judge.schema import Coverage, Row, RowSource, check, open_rows
from offline_judge.scoring import score_rows
from offline_judge.summary import MetricSummary
from offline_judge.verification import NO_JUDGE, find_calibrations, find_verifier, make_cascade

_T = TypeVar("_T")


class RowProgress(Progress):
    """What `evaluate` reports to: the engine's rounds, and rows."""

    def start(self, n_rows: int) -> None:
        """The rows are checked and the models are loaded."""

    def rows_done(self, n_rows: int) -> None:
        """So many more rows are scored and on disk."""

    def stopping(self) -> None:
        """The user asked to stop: the batch under way is finished first. Called from a signal handler."""


def evaluate(
    dataset: object,
    metrics: Sequence[str | Metric | type[Any]] | str | None = None,
    *,
    judge: str | Path | Judge | None = None,
    embedder: str | Path | Embedder | None = None,
    verifier: str | Path | Verifier | None = None,
    column_map: Mapping[str, str] | None = None,
    config: Config | None = None,
    progress: RowProgress | None = None,
    on_coverage: Callable[[Coverage], None] | None = None,
    **settings: Any,
) -> Result:
    """Score a data set and leave everything in a run folder.

    The same call again goes on where it was stopped: every answer is in the store as soon as it is
    known. It works in a script, a thread, a notebook and inside a running event loop.

    In the main thread, Ctrl-C or SIGTERM once finishes the batch under way, keeps its answers and raises
    `Stopped`, a KeyboardInterrupt; Ctrl-C twice stops at once.

    Args:
        dataset: a path, a DataFrame, a `datasets.Dataset`, a list of dicts, an iterator of dicts;
            see `offline_judge.schema.open_rows`.
        metrics: names (`"faithfulness"`, `"precision_at_k[k=3]"`), metric objects or classes. By
            default the seven metrics of `offline_judge.metrics.DEFAULT` that a row can be scored for.
        judge: a model on the shelf, the path of a model folder, or an open backend.
        embedder: likewise.
        verifier: who checks claims: "judge" (the default), "cascade", an encoder on the shelf, its folder,
            or an open backend. With `judge="none"` it works alone.
        column_map: the data's own column names, by ours: `{"user_input": "query"}`.
        config: a whole configuration; the other arguments overrule it.
        progress: told about rounds, answers and rows.
        on_coverage: given the table of what can be scored, before any model is loaded.
        **settings: fields of `offline_judge.config.Config`.

    Returns:
        The result, which reads the run folder.

    Raises:
        UserError: for anything that the user can mend, before a model is loaded where that is possible.
        Stopped: where the user asked to stop.
    """
    built = _build_metrics(metrics)
    layers: list[Mapping[str, Any]] = [config.to_json() if config else {}, settings]
    layers.append(
        {
            "metrics": tuple(labelled(built)) if built else None,
            "judge": _model_name(judge),
            "embedder": _model_name(embedder),
            "verifier": _model_name(verifier),
            "column_map": column_map,
        }
    )
    config = make_config(*layers)
    built = built or [parse(text) for text in config.metrics]

    with ExitStack() as stack:
        set_offline_env()
        gap = stack.enter_context(air_gap([*config.allow_host, *hosts_of(config.judge)]))
        rows = stack.enter_context(open_rows(dataset, config.column_map))
        chosen, coverage = _choose_metrics(built, rows, config)
        if on_coverage is not None:
            on_coverage(coverage)
        asking = [label for label, metric in chosen.items() if "verifier" in metric.uses]
        found = find_verifier(config, verifier, asking)
        models = open_models(config, judge, embedder, chosen, stack)
        checker = found.open(config, models[0], stack) if asking else None
        calibrations = find_calibrations(config, found, models[0], judge) if asking else {}
        out = Path(config.out)
        store = Store(Path(config.store) if config.store else out / "answers.sqlite", fresh=config.fresh)
        stack.callback(store.close)
        engine = Engine(
            *models,
            verifier=checker,
            cascade=make_cascade(config, calibrations.get("verifier")) if found.kind == "cascade" else None,
            calibrations=calibrations,
            store=store,
            seed=config.seed,
            claims="sentences" if config.claims == "sentences" else "judge",
            progress=progress,
        )
        roles = dict(zip(("judge", "embedder", "verifier"), (*models, checker), strict=True))
        record = run_record(config, chosen, rows, roles)
        record["calibrations"] = {role: one.summary() for role, one in calibrations.items()}
        folder = out / (config.name or f"{rows.name}-{short_hash(record)}")
        writer = RunWriter(folder, list(chosen), redact=store.secret() if config.redact else None)
        stack.callback(writer.abandon)
        if progress is not None:
            progress.start(coverage.n_rows)
        record["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        started = time.monotonic()
        summary = {name: MetricSummary() for name in chosen}
        steered = SteeredRows()
        with _stopping_in_order(engine, progress):
            for window in _batches(rows, config.window_rows):
                outcomes = _score_window(window, chosen, engine, config)
                writer.write(outcomes)
                for row, of_row in zip(window, outcomes, strict=True):
                    steered.add(row.id, (one.evidence for one in of_row))
                    for outcome in of_row:
                        summary[outcome.metric].add(outcome.score, outcome.soft, outcome.unscored)
                if progress is not None:
                    progress.rows_done(len(window))
        record["usage"] = dataclasses.asdict(engine.usage)
        record["seconds"] = round(time.monotonic() - started, 3)
        record["connections_refused"] = gap.refused()
        # Again: how often a text was cut or memory did not suffice is known only now.
        record["models"] = described(roles)
        notes = [note for model in record["models"].values() for note in model.pop("notes", ())]
        record["notes"] = [*rows.notes, *notes, *steered.notes(), *refusal_notes(gap)]
        record["summary"] = {name: one.to_json() for name, one in summary.items()}
        writer.close(record)
    return Result(RunFolder(folder))


@contextmanager
def _stopping_in_order(engine: Engine, progress: RowProgress | None) -> Iterator[None]:
    """Let the engine stop where the user asks for it, and say then what was done."""
    signals: list[int] = []

    def stop(signal: int) -> None:
        signals.append(signal)
        engine.stop()
        if progress is not None:
            progress.stopping()

    try:
        with stop_on_signals(stop):
            yield
    except Stopped as error:
        raise Stopped(
            f"stopped; {engine.usage.calls:,} answers of the judge were added to the store in this run",
            signal=signals[0] if signals else 0,
        ) from error


def _score_window(
    rows: Sequence[Row], metrics: Mapping[str, Metric], engine: Engine, config: Config
) -> list[tuple[Outcome, ...]]:
    """Gather the evidence of all rows and metrics together, then score each metric as one batch."""
    reasons_for = config.reasons if engine.judge is not None else "none"
    gathered = engine.run((gather_row(row, metrics, reasons_for), language_of(row, config)) for row in rows)
    row_ids = [row.id for row in rows]
    reasons = [why for _, why in gathered]
    by_metric = [
        score_rows(metric, label, row_ids, [results[position] for results, _ in gathered], reasons)
        for position, (label, metric) in enumerate(metrics.items())
    ]
    return list(zip(*by_metric, strict=True))


def _build_metrics(metrics: Sequence[str | Metric | type[Any]] | str | None) -> list[Metric]:
    if metrics is None:
        return []
    if isinstance(metrics, str):
        metrics = [metrics]
    return [
        parse(one) if isinstance(one, str) else build(one.name) if isinstance(one, type) else one
        for one in metrics
    ]


def _choose_metrics(
    requested: Sequence[Metric], rows: RowSource, config: Config
) -> tuple[dict[str, Metric], Coverage]:
    """Look at every row once: which metric can score how many of them?"""
    candidates = labelled(requested or [parse(text) for text in DEFAULT])
    coverage = check(
        rows, {label: metric.needs for label, metric in candidates.items()}, requested=bool(requested)
    )
    unanswered = [label for label, metric in candidates.items() if "judge" in metric.uses]
    if config.judge == NO_JUDGE:
        coverage = coverage.without(unanswered, "needs_judge: there is none")
    if requested:
        coverage.raise_if_stopped()
        return candidates, coverage
    stopped = set(coverage.stopped())
    chosen = {
        label: metric
        for label, metric in candidates.items()
        if label not in stopped and (config.embedder or "embedder" not in metric.uses)
    }
    if not chosen:
        coverage.raise_if_stopped()
    return chosen, coverage


def _model_name(model: str | Path | Judge | Embedder | Verifier | None) -> str | None:
    if model is None:
        return None
    return str(model) if isinstance(model, str | Path) else model.name


def _batches(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
