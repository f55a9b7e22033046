"""The settings of an evaluation: one frozen object, from Python, flags or a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from offline_judge.air_gap import AllowedHost
from offline_judge.backends import DTYPES
from offline_judge.backends.served.addresses import is_address
from offline_judge.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

_CHOICES = {
    "backend": ("auto", "vllm", "transformers"),
    "claims": ("judge", "sentences"),
    "reasons": ("failed", "all", "none"),
    "language": ("auto", "en", "ko"),
    "structured_backend": ("guidance", "outlines"),
    "dtype": DTYPES,
    "thinking": ("off", "on"),
}


@dataclass(frozen=True)
class Config:
    """Everything that a user can set. All of it goes into the run record.

    Attributes:
        metrics: names, with settings in brackets where they differ from the defaults. Empty means
            the default metrics that at least one row can score.
        judge, embedder: a model on the shelf, or the path of a model folder. The judge may also be the
            address of a server, http://HOST:PORT/v1, or several of one model separated by commas; "none"
            scores what verifier and embedder can answer, with sentences as claims.
        verifier: who says whether a premise supports a claim: "judge" (what None means), an encoder on the
            shelf or its folder, or "cascade", an encoder or small judge first and the judge where that is
            unsure.
        first_stage: the first stage of a cascade.
        cascade_low, cascade_high: the first stage decides at or below, and at or above; None means 0.1 and
            0.9, or what a calibration found.
        calibration: "auto" applies what `calibrate` kept for these very models, "none" nothing; or a path.
        backend: what runs the judge; "auto" takes vLLM where it is installed.
        serve: start a vLLM server of the judge for the length of the run.
        served_model: which model of the judge's server, where it has several.
        ask_timeout_s: seconds that a server may take for one ask, from its dispatch.
        retries: how often an ask is sent again that failed for a passing reason.
        thinking: whether a reasoning model thinks before each answer.
        thinking_tokens: length of its think block, at most.
        structured_backend: what holds the judge to its JSON schema.
        context_length: tokens of prompt and output together; None takes the model's, at most 8192.
        device: where the models run; None takes a GPU where there is one.
        dtype: of the judge's weights; "auto" is bfloat16 on a GPU and on a processor with AMX (vLLM alone),
            else float32, in which batches hardly show.
        claims: who splits a text into claims: the judge, or nobody (each sentence is one).
        language: of the prompts: each row's own ("auto"), or the one that is named.
        reasons: for which claims a reason is written: those that fail or are unsure, all, or none.
        seed: of the sampled questions.
        window_rows: rows that are stepped together; memory grows with it, not with the data set.
        max_unscored: largest share of a metric's rows that may stay unscored (exit status 1 above it).
        column_map: the data's own column names, by ours.
        out: folder of the run folders and of the answer store.
        name: of the run folder; None makes one from the data set and the settings.
        store: file of the answer store; None means `answers.sqlite` in `out`.
        allow_host: hosts that may be reached besides this machine, HOST or HOST:PORT; by default none.
        fresh: ask everything again and replace what the store holds.
        redact: keep the rows' texts out of the run folder: hashes stand in their place.
    """

    metrics: tuple[str, ...] = ()
    judge: str | None = None
    embedder: str | None = None
    verifier: str | None = None
    first_stage: str | None = None
    cascade_low: float | None = None
    cascade_high: float | None = None
    calibration: str = "auto"
    backend: str = "auto"
    serve: bool = False
    served_model: str | None = None
    ask_timeout_s: float = 600.0
    retries: int = 4
    thinking: str = "off"
    thinking_tokens: int = 1024
    structured_backend: str = "guidance"
    context_length: int | None = None
    device: str | None = None
    dtype: str = "auto"
    claims: str = "judge"
    language: str = "auto"
    reasons: str = "failed"
    seed: int = 0
    window_rows: int = 256
    max_unscored: float = 0.05
    column_map: Mapping[str, str] = field(default_factory=dict)
    out: str = "runs"
    name: str | None = None
    store: str | None = None
    allow_host: tuple[str, ...] = ()
    fresh: bool = False
    redact: bool = False

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UserError: naming the setting, what was found and what is allowed.
        """
        if isinstance(self.allow_host, str):
            raise _refuse("allow_host", self.allow_host, f"a list: [{self.allow_host!r}]")
        for name, hint in get_type_hints(Config).items():
            if not _is_a(getattr(self, name), hint):
                raise _refuse(name, getattr(self, name), _KINDS.get(hint, str(hint)))
        for name, options in _CHOICES.items():
            if getattr(self, name) not in options:
                raise _refuse(name, getattr(self, name), f"one of {', '.join(options)}")
        if not 0 <= self.max_unscored <= 1:
            raise _refuse("max_unscored", self.max_unscored, "a share from 0 to 1")
        if self.cascade_low is not None and not 0 <= self.cascade_low <= 0.5:
            raise _refuse("cascade_low", self.cascade_low, "a probability from 0 to 0.5")
        if self.cascade_high is not None and not 0.5 <= self.cascade_high <= 1:
            raise _refuse("cascade_high", self.cascade_high, "a probability from 0.5 to 1")
        if self.name is not None and (Path(self.name).name != self.name or len(self.name.encode()) > 200):
            raise _refuse("name", self.name[:60], "the name of one folder, of at most 200 bytes")
        if self.window_rows < 1:
            raise _refuse("window_rows", self.window_rows, "1 or more")
        if not self.ask_timeout_s > 0:
            raise _refuse("ask_timeout_s", self.ask_timeout_s, "seconds above 0")
        if self.retries < 0:
            raise _refuse("retries", self.retries, "0 or more")
        if self.thinking_tokens < 1:
            raise _refuse("thinking_tokens", self.thinking_tokens, "1 or more")
        if self.context_length is not None and self.context_length < 512:
            raise _refuse("context_length", self.context_length, "512 or more")
        if self.serve and self.judge is not None and (self.judge == "none" or is_address(self.judge)):
            raise UserError(
                f"setting serve = true with judge = {self.judge!r}",
                {"to fix": "serve a judge of the shelf or a folder, or leave serve out"},
            )
        if self.judge is not None and is_address(self.judge) and self.verifier in (None, "judge"):
            for name in ("backend", "dtype"):
                if getattr(self, name) != "auto":
                    raise UserError(
                        f"setting {name} = {getattr(self, name)!r} with judge = {self.judge!r}",
                        {"found": "the server has chosen it", "to fix": f"leave {name} out"},
                    )
        for host in self.allow_host:
            AllowedHost.parse(host)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as the run record keeps them."""
        return dataclasses.asdict(self)


def make_config(*layers: Mapping[str, Any]) -> Config:
    """Merge layers of settings, later ones first in rank; a value of None says nothing.

    Raises:
        UserError: for an unknown key, suggesting the nearest known one, or a refused value.
    """
    known = {field.name for field in dataclasses.fields(Config)}
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                raise UserError(
                    f"unknown setting {key!r}",
                    {"nearest": near[0]} if near else {"known": ", ".join(sorted(known))},
                )
            if value is not None:
                merged[key] = _plain(value)
    try:
        return Config(**merged)
    except TypeError as error:
        raise UserError(f"settings: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """Read a TOML file of settings; `[metric.NAME]` tables hold the settings of single metrics.

    Raises:
        UserError: where the file is missing or no TOML, with the line.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"can't read {path}", {"found": error.strerror or type(error).__name__}) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML", {"found": str(error)}) from error
    per_metric = content.pop("metric", {})
    if not isinstance(per_metric, dict) or not all(isinstance(one, dict) for one in per_metric.values()):
        raise UserError(f"{path}: metric is not a table of tables", {"to fix": "[metric.faithfulness]"})
    if per_metric:
        if not isinstance(content.get("metrics", []), list):
            raise _refuse("metrics", content["metrics"], "a list of texts")
        named = [f"{name}[{_settings(table)}]" for name, table in per_metric.items()]
        content["metrics"] = [*(m for m in content.get("metrics", ()) if m not in per_metric), *named]
    return content


def _plain(value: Any) -> Any:
    """TOML has lists where settings have tuples; a path is text in the run record."""
    if isinstance(value, list):
        return tuple(value)
    return str(value) if isinstance(value, Path) else value


_KINDS = {
    str: "text",
    str | None: "text",
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: "a list of texts",
    Mapping[str, str]: "a table of texts",
}


def _is_a(value: object, hint: Any) -> bool:
    """Whether a value has the type that a field of `Config` is declared with."""
    if isinstance(hint, UnionType):
        return any(_is_a(value, one) for one in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if get_origin(hint) is not None:
        return isinstance(value, Mapping) and all(
            isinstance(part, str) for pair in value.items() for part in pair
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _settings(table: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={tuple(value) if isinstance(value, list) else value}" for key, value in table.items()
    )


def _refuse(name: str, found: object, allowed: str) -> UserError:
    return UserError(f"setting {name} = {found!r}", {"allowed": allowed})
