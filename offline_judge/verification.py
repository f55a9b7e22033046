"""Who decides whether a premise supports a claim: the judge, an encoder, or a cascade of both."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from offline_judge.backends import open_judge, open_verifier
from offline_judge.backends.protocol import Judge, Verifier
from offline_judge.backends.served.addresses import is_address
from offline_judge.calibration import Calibration, find_calibration
from offline_judge.config import Config
from offline_judge.engine.cascade import Cascade
from offline_judge.engine.judge_verifier import JudgeVerifier
from offline_judge.errors import UserError
from offline_judge.shelf import LocalModel, Shelf

Kind: TypeAlias = Literal["judge", "encoder", "cascade"]

#: `--judge none`: claims are sentences, and only what the verifier or the embedder answers is scored.
NO_JUDGE = "none"


@dataclass(frozen=True)
class FoundVerifier:
    """A verifier that was found but not loaded yet.

    `model` is a folder, an open backend, or None where the judge is the verifier.
    """

    kind: Kind
    model: LocalModel | Verifier | None
    is_judge: bool = False

    def open(self, config: Config, judge: Judge | None, stack: ExitStack) -> Verifier | None:
        """Load it; `stack` closes it. None where the judge is the verifier."""
        if not isinstance(self.model, LocalModel):
            return self.model
        model = self.model
        common: dict[str, Any] = {
            "name": model.name,
            "fingerprint": model.fingerprint,
            "device": config.device,
        }
        if self.is_judge:
            verifier: Verifier = JudgeVerifier(
                open_judge(model.path, backend=config.backend, dtype=config.dtype, **common)
            )
        else:
            verifier = open_verifier(model.path, **common)
        stack.callback(verifier.close)
        return verifier


def find_verifier(
    config: Config, given: str | Path | Verifier | None, users: Collection[str]
) -> FoundVerifier:
    """Find what the configuration names, before anything is loaded.

    Args:
        config: of the run.
        given: an open backend or a path that overrules `config.verifier`.
        users: labels of the metrics that ask for support.

    Raises:
        UserError: for a model that is not there or of the wrong kind, a cascade without a first stage, or
            metrics that need a verifier where there is neither judge nor verifier.
    """
    wanted = config.verifier if given is None else given
    if wanted is None or wanted == "judge":
        if users and config.judge == NO_JUDGE:
            raise UserError(
                f"{', '.join(users)}: no verifier is given, and there is no judge to be one",
                {"to fix": "--verifier NAME, an NLI or fact-checking encoder on the shelf or its folder"},
            )
        return FoundVerifier("judge", None)
    if wanted == "cascade":
        if config.judge == NO_JUDGE:
            raise UserError(
                "a cascade needs a judge for what its first stage is unsure of", {"found": "judge none"}
            )
        if config.first_stage is None:
            raise UserError(
                "a cascade needs a first stage",
                {"to fix": "--first-stage NAME, an encoder or a small judge on the shelf, or its folder"},
            )
        model, is_judge = Shelf().find_checker(config.first_stage)
        return FoundVerifier("cascade", model, is_judge)
    if not isinstance(wanted, str | Path):
        return FoundVerifier("encoder", wanted)
    model, is_judge = Shelf().find_checker(wanted)
    return FoundVerifier("encoder", model, is_judge)


def find_calibrations(
    config: Config, found: FoundVerifier, judge: Judge | None, given: object
) -> dict[str, Calibration]:
    """Find the calibrations of who checks claims: by "verifier" and "judge", where there are any.

    Args:
        config: of the run.
        found: the verifier.
        judge: the open judge.
        given: what was given as the judge; an open backend is known by its own hash.
    """
    calibrations = {}
    if found.model is not None:
        kind: Literal["judge", "encoder"] = "judge" if found.is_judge else "encoder"
        calibrations["verifier"] = find_calibration(config.calibration, kind, found.model.fingerprint)
    if judge is not None and found.kind != "encoder":
        name = config.judge if given is None or isinstance(given, str | Path) else None
        on_disk = name is not None and not is_address(name)
        fingerprint = Shelf().find(name or "", "judge").fingerprint if on_disk else judge.fingerprint
        calibrations["judge"] = find_calibration(config.calibration, "judge", fingerprint)
    return {role: one for role, one in calibrations.items() if one is not None}


def make_cascade(config: Config, first_stage: Calibration | None) -> Cascade:
    """Make the cascade with the configured thresholds, the calibrated ones, or the cautious 0.1 and 0.9."""
    low, high = (0.1, 0.9) if first_stage is None else (first_stage.cascade[end] for end in ("low", "high"))
    return Cascade(
        low if config.cascade_low is None else config.cascade_low,
        high if config.cascade_high is None else config.cascade_high,
    )
