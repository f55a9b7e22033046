"""`rescore`: scores again from stored evidence, with other settings and no model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_judge.engine.asks import Reason
from offline_judge.errors import UserError
from offline_judge.metrics.registry import Metric, build, label, settings_of
from offline_judge.result import Result
from offline_judge.run_folder import Outcome, RunFolder, RunWriter, evidence_of
from offline_judge.scoring import score_rows
from offline_judge.summary import MetricSummary

_WINDOW_ROWS = 1024


def rescore(
    run: str | Path, settings: Mapping[str, Mapping[str, Any]], *, out: str | Path | None = None
) -> Result:
    """Score a finished run again and write the result as a run of its own.

    Args:
        run: the folder of a finished run.
        settings: by metric (its name in the run, or "*" for all), the settings to change.
        out: folder of the new run; by default `<run>-rescored`.

    Raises:
        UserError: for a setting that the metric does not have, or that changes what is asked (then the
            models have to be asked again), or evidence of another version of the formula.
    """
    source = RunFolder(Path(run))
    changed = {old: _changed(old, entry, settings) for old, entry in source.record["metrics"].items()}
    labels = {old: label(metric) for old, metric in changed.items()}
    clash = {new for new in labels.values() if list(labels.values()).count(new) > 1}
    if clash:
        raise UserError(
            f"two metrics would be called {min(clash)}", {"to fix": "change the settings of one only"}
        )
    unknown = set(settings) - set(changed) - {"*"} - {entry.name for entry in changed.values()}
    if unknown:
        raise UserError(f"no metric {min(unknown)!r} in this run", {"it has": ", ".join(changed)})
    folder = Path(out) if out is not None else source.folder.with_name(source.folder.name + "-rescored")
    writer = RunWriter(folder, list(labels.values()))
    summary = {name: MetricSummary() for name in labels.values()}
    started = time.monotonic()
    try:
        for window in _windows(source, len(labels)):
            rows = _score(window, changed, labels)
            writer.write(rows)
            for outcome in itertools.chain.from_iterable(rows):
                summary[outcome.metric].add(outcome.score, outcome.soft, outcome.unscored)
        record = {
            **source.record,
            "rescored_from": {"run": source.folder.name, "metrics": source.record["metrics"]},
            "metrics": {
                labels[old]: {**source.record["metrics"][old], "settings": settings_of(metric)}
                for old, metric in changed.items()
            },
            "summary": {name: one.to_json() for name, one in summary.items()},
            "usage": None,
            "seconds": round(time.monotonic() - started, 3),
        }
        writer.close(record)
    except BaseException:
        writer.abandon()
        raise
    return Result(RunFolder(folder))


def _changed(old: str, entry: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> Metric:
    before = build(entry["name"], _thawed(entry["settings"]))
    if before.version != entry["version"]:
        raise UserError(
            f"metric {old} was gathered as version {entry['version']}; here it is version {before.version}",
            {"to fix": "evaluate again: two versions do not compare"},
        )
    known = settings_of(before)
    for_all = {name: value for name, value in settings.get("*", {}).items() if name in known}
    wanted = {**for_all, **settings.get(entry["name"], {}), **settings.get(old, {})}
    asking = [name for name in wanted if name in before.asks_with and wanted[name] != known[name]]
    if asking:
        raise UserError(
            f"{', '.join(asking)} of {old} changes what the models are asked",
            {"to fix": "evaluate again; what was asked before comes from the store"},
        )
    return build(entry["name"], {**_thawed(entry["settings"]), **wanted})


def _thawed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where settings have tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _windows(source: RunFolder, n_metrics: int) -> Iterator[list[list[dict[str, Any]]]]:
    """Rows of the evidence file, each the lines of all its metrics, some rows at a time."""
    lines = source.evidence()
    rows = iter(lambda: list(itertools.islice(lines, n_metrics)), [])
    return iter(lambda: list(itertools.islice(rows, _WINDOW_ROWS)), [])


def _score(
    window: Sequence[Sequence[Mapping[str, Any]]], metrics: Mapping[str, Metric], labels: Mapping[str, str]
) -> list[tuple[Outcome, ...]]:
    by_metric = []
    for position, (old, metric) in enumerate(metrics.items()):
        lines = [row[position] for row in window]
        found = [evidence_of(line) for line in lines]
        row_ids = [line["id"] for line in lines]
        by_metric.append(score_rows(metric, labels[old], row_ids, found, [_reasons(line) for line in lines]))
    return list(zip(*by_metric, strict=True))


def _reasons(line: Mapping[str, Any]) -> dict[tuple[str, str], Reason]:
    return {
        (check["source"], check["claim"]): Reason(check["reason"], check["reason_verdict"])
        for check in line["checks"]
        if "reason" in check
    }
