"""The command line of calibration: `offline-judge calibrate`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from offline_judge.errors import UserError

_path = click.Path(path_type=Path)


@click.command()
@click.option("--labels", required=True, type=_path, help="A file of rows: premise, claim, label.")
@click.option("--verifier", metavar="MODEL", help="An encoder, or a small judge, on the shelf or its folder.")
@click.option("--judge", metavar="MODEL", help="A judge, for its own probabilities.")
@click.option("--share", type=float, help="Of claims that a cascade may send to the judge, 0 to 1.")
@click.option("--agreement", type=float, help="Wanted of what a cascade decides itself. Default: 0.95.")
@click.option("--language", type=click.Choice(["auto", "en", "ko"]), default="auto", help="Of the prompt.")
@click.option("--backend", type=click.Choice(["auto", "vllm", "transformers"]), default="auto")
@click.option("--device", help="Where the model runs. Default: a GPU where there is one.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of folds and resamples.")
@click.option("--out", type=_path, help="Folder. Default: calibrations, beside the models.")
@click.option("--store", type=_path, default=Path("runs/answers.sqlite"), show_default=True)
def calibrate(
    labels: Path,
    verifier: str | None,
    judge: str | None,
    share: float | None,
    agreement: float | None,
    language: str,
    backend: str,
    device: str | None,
    seed: int,
    out: Path | None,
    store: Path,
) -> None:
    """Fit threshold and curves to labelled claims, and keep them for `evaluate`.

    The columns of the labels are premise, claim, label, and optionally document: claims about one document
    are held out together.
    """
    from offline_judge.calibration import calibrate as fit
    from offline_judge.calibration import read_labels
    from offline_judge.calibration.diagram import figures_text, reliability_svg
    from offline_judge.calibration.record import calibrations_folder
    from offline_judge.shelf import sha256_of
    from offline_judge.tables import rows_text

    if (judge is None) == (verifier is None):
        raise UserError("name one model to calibrate", {"to fix": "--verifier MODEL or --judge MODEL"})
    for name, value in (("share", share), ("agreement", agreement)):
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"--{name} {value:g} is no share", {"allowed": "0 to 1"})
    if share is not None and agreement is not None:
        raise UserError("--share and --agreement exclude each other", {"to fix": "give one of them"})
    rows = read_labels(labels)
    kind, model, p = _probabilities(rows, verifier, judge, language, backend, device, store)
    n_unanswered = p.count(None)
    if n_unanswered:
        click.echo(f"note: {n_unanswered} of {len(rows)} claims were not answered and are left out", err=True)
    kept = [(row, one) for row, one in zip(rows, p, strict=True) if one is not None]
    found = fit(
        [row.label for row, _ in kept],
        [one for _, one in kept],
        [row.document for row, _ in kept],
        model=model.name,
        kind=kind,
        fingerprint=model.fingerprint,
        about={"file": labels.name, "sha256": sha256_of(labels)},
        seed=seed,
        share=share,
        agreement=agreement,
    )
    path = found.save(out or calibrations_folder())
    picture = path.with_suffix(".svg")
    picture.write_text(reliability_svg(found), encoding="utf-8")
    band = found.cascade
    heads = "on the labelled claims", "with its 95 % interval"
    click.echo(rows_text(heads, figures_text(found.figures)))
    click.echo(f"\nthreshold: {found.threshold:.4f}; evaluate maps it to 0.5")
    click.echo(
        f"cascade: below {band['low']:.3f} and above {band['high']:.3f} decided, "
        f"{band['share_sent']:.1%} sent, {band['agreement']:.1%} of the rest as people did"
    )
    click.echo(f"kept: {path}\npicture: {picture}")


def _probabilities(
    rows: Sequence[Any],
    verifier: str | None,
    judge: str | None,
    language: str,
    backend: str,
    device: str | None,
    store_path: Path,
) -> tuple[Any, Any, list[float | None]]:
    """Ask the model about every claim; what the store knows is not asked again."""
    from offline_judge.backends import open_judge, open_verifier
    from offline_judge.engine.rounds import Engine
    from offline_judge.engine.store import Store
    from offline_judge.shelf import Shelf
    from offline_judge.text import prompt_language

    if judge is not None:
        model, is_judge = Shelf().find(judge, "judge"), True
    else:
        model, is_judge = Shelf().find_checker(verifier or "")
    common: dict[str, Any] = {"name": model.name, "fingerprint": model.fingerprint, "device": device}
    with ExitStack() as stack:
        opened: Any = (
            open_judge(model.path, backend=backend, **common)
            if is_judge
            else open_verifier(model.path, **common)
        )
        stack.callback(opened.close)
        store = Store(store_path)
        stack.callback(store.close)
        engine = Engine(opened, store=store) if is_judge else Engine(verifier=opened, store=store)
        answers = engine.run(
            (_ask(row), prompt_language(row.claim) if language == "auto" else language) for row in rows
        )
    return (
        "judge" if is_judge else "encoder",
        model,
        [float(one) if isinstance(one, float) else None for one in answers],
    )


def _ask(row: Any) -> Generator[Sequence[Any], list[Any], Any]:
    from offline_judge.engine.asks import Support

    (answer,) = yield [Support(row.premise, row.claim)]
    return answer
