"""The command line: `offline-judge evaluate | check | calibrate | rescore | show | serve | …`."""

from __future__ import annotations

import io
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from offline_judge._version import __version__
from offline_judge.backends import DTYPES
from offline_judge.backends.vllm_settings import GPU_MEMORY_SHARE
from offline_judge.cache_commands import cache
from offline_judge.calibrate_command import calibrate
from offline_judge.errors import UserError, without_messages

#: Exit status of a bug, as in BSD's sysexits.h: 1 means that a run is done, but not good enough.
_BUG = 70


class _Commands(click.Group):
    """Prints a `UserError` as a message with exit status 2; a bug keeps its traceback, without messages."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt as error:
            click.echo(f"\n{str(error) or 'stopped at once'}", err=True)
            if ctx.invoked_subcommand == "evaluate":
                click.echo("the same command goes on from here", err=True)
            ctx.exit(128 + (getattr(error, "signal", 0) or signal.SIGINT))
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug; Python would print its message, and with it a row
            click.echo(without_messages(error), err=True)
            click.echo("this is a bug in offline_judge or in a metric of your own", err=True)
            ctx.exit(_BUG)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, package_name="offline-judge")
def main() -> None:
    """Evaluate retrieval-augmented generation with local models only."""
    from offline_judge.air_gap import air_gap

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal can't show is no reason to stop.
            stream.reconfigure(errors="backslashreplace")
    click.get_current_context().with_resource(air_gap())  # a command may open its own gap with exceptions


_data = click.argument("data", type=click.Path(path_type=Path))
_map = click.option(
    "--map",
    "column_map",
    multiple=True,
    metavar="COLUMN=YOURS",
    help="The data's own column names, as in --map user_input=query. May be given several times.",
)
_metrics = click.option(
    "--metrics",
    metavar="LIST",
    help="Comma-separated names, with settings in brackets: faithfulness,precision_at_k[k=3]. "
    "`offline-judge metrics` lists them. Default: the seven of the README that the data allows.",
)
_metrics_from = click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="FILE.py",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Python file with metrics of your own. May be given several times.",
)


@main.command()
@_data
@_metrics
@_map
@_metrics_from
@click.option(
    "--judge",
    metavar="MODEL",
    help="A model on the shelf, a model folder, or a server's address: http://127.0.0.1:8000/v1. "
    "Several addresses of one model, separated by commas, share the load. none: no judge at all.",
)
@click.option("--serve", is_flag=True, default=None, help="Start a vLLM server of the judge for this run.")
@click.option("--served-model", metavar="NAME", help="Which model of the judge's server.")
@click.option("--ask-timeout-s", type=float, help="Seconds that a server may take for one ask. Default: 600.")
@click.option("--retries", type=int, help="How often a failed ask is sent to a server again. Default: 4.")
@click.option("--thinking", type=click.Choice(["off", "on"]), help="Whether a reasoning model thinks first.")
@click.option("--thinking-tokens", type=int, help="Length of its think block, at most. Default: 1024.")
@click.option("--embedder", metavar="MODEL", help="A model on the shelf, or a model folder.")
@click.option(
    "--verifier",
    metavar="MODEL",
    help="Who checks claims: judge (the default), cascade, or an NLI or fact-checking encoder on the "
    "shelf or its folder. With --judge none the encoder works alone: claims are sentences.",
)
@click.option("--first-stage", metavar="MODEL", help="Of a cascade: an encoder, or a small judge.")
@click.option("--cascade-low", type=float, help="It decides at or below. Default: as calibrated, or 0.1.")
@click.option("--cascade-high", type=float, help="It decides at or above. Default: as calibrated, or 0.9.")
@click.option("--calibration", metavar="auto|none|FILE", help="Default: auto, what `calibrate` kept.")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with any of these settings.")
@click.option("--backend", type=click.Choice(["auto", "vllm", "transformers"]), help="What runs the judge.")
@click.option("--device", help="Where the models run: cpu, cuda, cuda:1. Default: a GPU where there is one.")
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Of the judge's weights. Default: auto, the faster one. In float32 batches hardly show.",
)
@click.option(
    "--context-length", type=int, help="Tokens of prompt and output. Default: the model's, at most 8192."
)
@click.option("--claims", type=click.Choice(["judge", "sentences"]), help="Who splits texts into claims.")
@click.option(
    "--language", type=click.Choice(["auto", "en", "ko"]), help="Of the prompts. Default: each row's own."
)
@click.option(
    "--reasons", type=click.Choice(["failed", "all", "none"]), help="Which claims get a written reason."
)
@click.option("--seed", type=int, help="Of the sampled questions.")
@click.option("--window-rows", type=int, help="Rows stepped together.")
@click.option("--max-unscored", type=float, help="Largest share of unscored rows that is still a success.")
@click.option("--out", help="Folder of the run folders and the answer store. Default: runs.")
@click.option("--name", help="Of the run folder.")
@click.option("--store", help="File of the answer store. Default: answers.sqlite in --out.")
@click.option(
    "--allow-host",
    multiple=True,
    metavar="HOST[:PORT]",
    callback=lambda _context, _option, hosts: hosts or None,  # none named says nothing about the file's
    help="A host that may be reached besides this machine. May be given several times. Default: none.",
)
@click.option("--fresh", is_flag=True, default=None, help="Ask everything again; replace stored answers.")
@click.option("--redact", is_flag=True, default=None, help="Keep the rows' texts out of the run folder.")
@click.option("--show-worst", is_flag=True, help="Print the evidence of the worst row too.")
def evaluate(
    data: Path,
    metrics: str | None,
    column_map: tuple[str, ...],
    modules: tuple[Path, ...],
    config: Path | None,
    show_worst: bool,
    **flags: Any,
) -> None:
    """Score the rows of DATA and write a run folder.

    Exit status 0: done. 1: more rows unscored than --max-unscored allows. 2: wrong use. 130: stopped
    by Ctrl-C (once: after the batch under way; twice: at once). The same command goes on where it stopped.
    """
    from offline_judge.config import make_config, read_config
    from offline_judge.evaluation import evaluate as run
    from offline_judge.metrics.registry import split_metrics
    from offline_judge.progress import TerminalProgress
    from offline_judge.schema import parse_column_map
    from offline_judge.tables import coverage_text, evidence_text

    _import_metrics(modules)
    layers = [read_config(config)] if config else []
    layers.append(flags)
    layers.append(
        {
            "metrics": split_metrics(metrics) if metrics else None,
            "column_map": parse_column_map(column_map) or None,
        }
    )
    with TerminalProgress() as progress:
        result = run(
            data,
            config=make_config(*layers),
            progress=progress,
            on_coverage=lambda coverage: click.echo(coverage_text(coverage) + "\n", err=True),
        )
    for note in result.record["notes"]:
        click.echo(f"note: {note}", err=True)
    click.echo(str(result))
    worst = result.worst() if show_worst else None
    if worst is not None:
        click.echo("\nThe worst " + evidence_text(worst, result.evidence(worst)))
    click.echo(f"\nrun folder: {result.folder}")
    share, allowed = result.largest_unscored_share(), result.record["config"]["max_unscored"]
    if share > allowed:
        click.echo(
            f"{share:.1%} of one metric's rows are unscored; --max-unscored allows {allowed:.1%}", err=True
        )
        sys.exit(1)


@main.command()
@_data
@_metrics
@_map
@_metrics_from
def check(data: Path, metrics: str | None, column_map: tuple[str, ...], modules: tuple[Path, ...]) -> None:
    """Read all rows of DATA and say which metric can score how many. Loads no model."""
    from offline_judge.metrics import DEFAULT
    from offline_judge.metrics.registry import labelled, parse, split_metrics
    from offline_judge.schema import check as coverage_of
    from offline_judge.schema import open_rows, parse_column_map
    from offline_judge.tables import coverage_text

    _import_metrics(modules)
    chosen = labelled([parse(text) for text in (split_metrics(metrics) if metrics else DEFAULT)])
    with open_rows(data, parse_column_map(column_map)) as rows:
        coverage = coverage_of(
            rows, {name: one.needs for name, one in chosen.items()}, requested=bool(metrics)
        )
        for note in rows.notes:
            click.echo(f"note: {note}", err=True)
    click.echo(coverage_text(coverage))
    coverage.raise_if_stopped()


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "changes",
    multiple=True,
    required=True,
    metavar="METRIC.SETTING=VALUE",
    help="As in --set faithfulness.threshold=0.7, or --set '*.threshold=0.7' for all metrics.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the new run. Default: RUN-rescored.")
@_metrics_from
def rescore(run: Path, changes: tuple[str, ...], out: Path | None, modules: tuple[Path, ...]) -> None:
    """Score the stored evidence of RUN again with other settings. Asks no model."""
    from offline_judge.metrics.registry import setting_value
    from offline_judge.rescoring import rescore as again

    _import_metrics(modules)
    settings: dict[str, dict[str, Any]] = {}
    for change in changes:
        target, equals, value = change.partition("=")
        metric, dot, name = target.strip().rpartition(".")
        if not (equals and dot and metric and name):
            raise UserError(f"--set {change!r} is not METRIC.SETTING=VALUE")
        settings.setdefault(metric, {})[name] = setting_value(value.strip())
    result = again(run, settings, out=out)
    click.echo(str(result))
    click.echo(f"\nrun folder: {result.folder}")


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("row_id", required=False)
@click.option("--worst", is_flag=True, help="The row with the lowest mean score.")
def show(run: Path, row_id: str | None, worst: bool) -> None:
    """Print the summary of RUN, or the evidence of one row."""
    from offline_judge.result import Result
    from offline_judge.tables import evidence_text

    result = Result.load(run)
    if worst:
        row_id = result.worst()
    if row_id is None:
        click.echo(str(result))
        return
    try:
        evidence = result.evidence(row_id)
    except KeyError:
        raise UserError(f"no row {row_id!r} in {run}") from None
    click.echo(evidence_text(row_id, evidence))


@main.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
def compare(first: Path, second: Path) -> None:
    """Compare two runs row by row: means, their difference with its interval, rows better and worse.

    Refuses runs whose formulas, prompts, models or settings differ: their scores do not compare.
    """
    from offline_judge.comparison import compare as compare_runs
    from offline_judge.tables import comparison_text

    click.echo(comparison_text(compare_runs(first, second)))


@main.command()
@click.argument("model")
@click.option("--port", type=int, default=8000, show_default=True, help="0 takes a free one.")
@click.option("--context-length", type=int, help="Tokens of prompt and output. Default: at most 8192.")
@click.option("--tensor-parallel", type=int, help="GPUs that the model is spread over. Default: all.")
@click.option(
    "--gpu-memory-share",
    type=float,
    default=GPU_MEMORY_SHARE,
    show_default=True,
    help="Of each GPU that it uses.",
)
@click.option(
    "--structured-backend", type=click.Choice(["guidance", "outlines"]), default="guidance", show_default=True
)
@click.option("--dtype", type=click.Choice(DTYPES), default="auto", show_default=True)
@click.option("--log", type=click.Path(path_type=Path), default=Path("vllm-server.log"), show_default=True)
@click.argument("extra", nargs=-1, type=click.UNPROCESSED)
def serve(model: str, log: Path, extra: tuple[str, ...], **settings: Any) -> None:
    """Serve MODEL, on the shelf or a folder, with vLLM on the loopback address until Ctrl-C.

    What stands behind `--` goes to vLLM's own command line as it is.
    """
    from offline_judge.backends.served.vllm_server import serve_until_interrupted
    from offline_judge.shelf import Shelf

    found = Shelf().find(model, "judge")
    serve_until_interrupted(found.path, found.name, log=log, extra=extra, say=click.echo, **settings)


@main.command("metrics")
@_metrics_from
def list_metrics(modules: tuple[Path, ...]) -> None:
    """List the metrics: what each needs, its range, its source and its version."""
    import offline_judge.metrics
    from offline_judge.tables import metrics_text

    _import_metrics(modules)
    click.echo(metrics_text(offline_judge.metrics.registered()))


@main.command()
@click.option("--judge", metavar="MODEL", help="To be tried in place of the smallest judge on the shelf.")
@click.option("--verifier", metavar="MODEL", help="Likewise.")
@click.option("--embedder", metavar="MODEL", help="Likewise.")
@click.option(
    "--backend",
    type=click.Choice(["transformers", "vllm"]),
    default="transformers",
    show_default=True,
    help="What runs the judge that is tried. vLLM takes half a minute to start on a CPU.",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option(
    "--store", type=click.Path(path_type=Path), help="Answer store. Default: answers.sqlite in --out."
)
def doctor(
    out: Path,
    store: Path | None,
    backend: str,
    judge: str | None,
    verifier: str | None,
    embedder: str | None,
) -> None:
    """Look at packages, GPU, shelf, store and models, and try a judge, a verifier and an embedder.

    Exit status 0: a run has all it needs. 1: something has to be mended.
    """
    from offline_judge.doctor import examine
    from offline_judge.doctor.report import print_report

    report = examine(
        store=store or out / "answers.sqlite",
        judge=judge,
        verifier=verifier,
        embedder=embedder,
        backend=backend,
    )
    print_report(report)
    sys.exit(1 if report.wrong else 0)


def _import_metrics(files: tuple[Path, ...]) -> None:
    """Run the user's own Python files: their @metric classes register themselves."""
    import runpy

    import offline_judge.metrics  # noqa: F401 - so that a clash of names is seen

    for file in files:
        try:
            runpy.run_path(str(file), run_name=file.stem)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's own code: no row has been read yet
            place = getattr(error, "lineno", None) or _line_in(error, file)
            raise UserError(
                f"{file}, line {place}: the file of metrics can't be run",
                {"found": f"{type(error).__name__}: {error}"},
            ) from None


def _line_in(error: Exception, file: Path) -> int | None:
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    return lines[-1] if lines else None


main.add_command(cache)
main.add_command(calibrate)


if __name__ == "__main__":
    main()
