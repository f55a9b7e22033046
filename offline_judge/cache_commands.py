"""The command line of the answer store: `offline-judge cache stats | prune`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from offline_judge.errors import UserError

_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_out = click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
_store = click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="File of the answer store. Default: answers.sqlite in --out.",
)


@click.group()
def cache() -> None:
    """Look into the answer store, or make it smaller."""


@cache.command()
@_out
@_store
def stats(out: Path, store: Path | None) -> None:
    """Say how many answers of which model the store holds, and check its file.

    Exit status 0: sound. 1: damaged; the next run sets it aside and begins a new one. 2: there is none.
    """
    from offline_judge.engine.store_contents import contents
    from offline_judge.tables import store_text

    found = contents(store or out / "answers.sqlite")
    click.echo(store_text(found))
    if found.problem:
        raise click.exceptions.Exit(1)


@cache.command()
@_out
@_store
@click.option("--older-than", metavar="AGE", help="Answers of runs that began longer ago: 12h, 30d, 8w.")
@click.option(
    "--model", metavar="NAME", help="Answers of one model: its name or its fingerprint's beginning."
)
@click.option("--max-size", metavar="SIZE", help="Then the oldest, until the file is as small: 500MB, 2GiB.")
def prune(
    out: Path, store: Path | None, older_than: str | None, model: str | None, max_size: str | None
) -> None:
    """Delete answers from the store. A run that needs one of them asks it again."""
    from offline_judge.engine.store_contents import prune as delete

    if older_than is None and model is None and max_size is None:
        raise UserError("nothing says what to delete", {"give": "--older-than, --model or --max-size"})
    path = store or out / "answers.sqlite"
    n_deleted = delete(
        path,
        older_than_s=None if older_than is None else _measure("--older-than", older_than, _SECONDS),
        model=model,
        max_bytes=None if max_size is None else int(_measure("--max-size", max_size, _BYTES)),
    )
    click.echo(f"{n_deleted:,} answers deleted; {path} is {path.stat().st_size / 1e6:,.1f} MB")


def _measure(option: str, text: str, units: dict[str, int]) -> float:
    """Read a number with its unit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text.strip())
    if found is None or found[2] not in units:
        raise UserError(
            f"{option} {text!r} can't be read", {"allowed": f"a number and one of {', '.join(units)}"}
        )
    return float(found[1]) * units[found[2]]
