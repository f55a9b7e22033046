"""What a metric is, the registry of them, and building one from its name and settings."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from offline_judge.engine.asks import Gather
from offline_judge.errors import UserError
from offline_judge.schema import COLUMNS, ScorableRow

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Metric(Protocol):
    """A frozen dataclass whose fields are its settings.

    `needs` names the columns that a row must have; `gather` yields asks and returns the row's
    evidence; `score` takes the evidence of B rows, one `Padded` for each name in
    `Evidence.values`, and returns (B,) float64. The decorator adds the rest.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    uses: ClassVar[tuple[str, ...]]
    asks_with: ClassVar[tuple[str, ...]]
    aliases: ClassVar[tuple[str, ...]]
    range: ClassVar[str]
    better: ClassVar[str]
    source: ClassVar[str]
    version: ClassVar[int]

    def gather(self, row: ScorableRow) -> Gather:
        """Yield lists of asks, be sent their answers, return `Evidence` or `Unscored`."""
        ...

    @property
    def score(self) -> Callable[..., Tensor]:
        """Score a batch of evidence."""
        ...


_METRICS: dict[str, type[Any]] = {}
_ALIASES: dict[str, str] = {}

_T = TypeVar("_T", bound=type[Any])


def metric(
    *,
    source: str,
    version: int,
    range: str = "[0, 1]",
    better: Literal["higher", "lower"] = "higher",
    aliases: Sequence[str] = (),
    uses: Sequence[str] = ("judge",),
    asks_with: Sequence[str] = (),
) -> Callable[[_T], _T]:
    """Register a metric under its class name in snake_case.

    Args:
        source: where the formula is from, as a reader could look it up.
        version: raised whenever the same evidence or the same rows would score differently.
        range: the values that the score can take.
        better: which end of the range is the good one.
        aliases: other names of the same metric.
        uses: the models that it asks: "judge" for anything, "verifier" for `Claims` and `Support` alone
            (the judge, where there is no verifier), "embedder".
        asks_with: settings that change what is asked. The others only change the score, so
            `rescore` may change them.

    Raises:
        UserError: for a class that is no metric, or a name that is taken (naming both classes).
    """

    def register(cls: _T) -> _T:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        _check(cls, name, asks_with)
        for taken in (name, *aliases):
            other = _METRICS.get(_ALIASES.get(taken, taken))
            if other is not None and _path(other) != _path(cls):
                raise UserError(
                    f"two metrics are called {taken!r}",
                    {"first": _path(other), "second": _path(cls), "to fix": "rename one of them"},
                )
        cls.name, cls.range, cls.better, cls.source, cls.version = name, range, better, source, version
        cls.aliases, cls.uses, cls.asks_with = tuple(aliases), tuple(uses), tuple(asks_with)
        _METRICS[name] = cls
        _ALIASES.update(dict.fromkeys(aliases, name))
        return cls

    return register


def registered() -> dict[str, type[Any]]:
    """Every registered metric class by name, in the order of registration."""
    return dict(_METRICS)


def build(name: str, settings: Mapping[str, Any] | None = None) -> Metric:
    """Build a metric from its name or alias and settings.

    Raises:
        UserError: for an unknown name or setting, suggesting the nearest, or a value it refuses.
    """
    cls = _METRICS.get(_ALIASES.get(name, name))
    if cls is None:
        raise UserError(
            f"no metric is called {name!r}",
            {**_nearest(name, [*_METRICS, *_ALIASES]), "to fix": "offline-judge metrics lists them"},
        )
    known = [field.name for field in dataclasses.fields(cls)]
    for key in settings or {}:
        if key not in known:
            raise UserError(
                f"metric {cls.name} has no setting {key!r}",
                {**_nearest(key, known), "settings": ", ".join(known) or "none"},
            )
    try:
        built: Metric = cls(**(settings or {}))
    except (ValueError, TypeError) as error:
        raise UserError(f"metric {cls.name}: {error}") from error
    return built


def parse(text: str) -> Metric:
    """Build a metric from text: `faithfulness` or `factual_correctness[mode=recall, beta=2]`."""
    found = re.fullmatch(r"\s*([\w]+)\s*(?:\[(.*)\])?\s*", text)
    if found is None:
        raise UserError(f"{text!r} is not a metric", {"to fix": "write name or name[setting=value, …]"})
    settings: dict[str, Any] = {}
    for item in re.split(r",(?![^(]*\))", found[2] or ""):
        key, mark, value = (part.strip() for part in item.partition("="))
        if mark:
            settings[key] = setting_value(value)
        elif key:
            raise UserError(f"{key!r} in {text!r} is not a setting", {"to fix": "write setting=value"})
    return build(found[1], settings)


def setting_value(text: str) -> Any:
    """Read a setting's value: a number, a tuple, true, false, none, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def split_metrics(text: str) -> list[str]:
    """Split a comma-separated list of metrics; commas within [ ] belong to one metric."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def settings_of(built: Metric) -> dict[str, Any]:
    """The metric's settings by name."""
    return dataclasses.asdict(built)  # type: ignore[call-overload,no-any-return]


def label(built: Metric) -> str:
    """Name a column: the metric's name, and the settings that differ from its defaults."""
    changed = [
        f"{field.name}={getattr(built, field.name)}"
        for field in dataclasses.fields(built)  # type: ignore[arg-type]
        if getattr(built, field.name) != field.default
    ]
    return f"{built.name}[{', '.join(changed)}]" if changed else built.name


def labelled(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """Metrics by label.

    Raises:
        UserError: where one metric stands twice with the same settings.
    """
    found: dict[str, Metric] = {}
    for built in metrics:
        if label(built) in found:
            raise UserError(
                f"metric {label(built)} is asked for twice", {"to fix": "drop one, or give it other settings"}
            )
        found[label(built)] = built
    return found


def one_of(name: str, value: object, options: Sequence[object]) -> None:
    """Check a setting in a metric's `__post_init__`.

    Raises:
        ValueError: where `value` is not among `options`.
    """
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, not {value!r}")


def _check(cls: type[Any], name: str, asks_with: Sequence[str]) -> None:
    problem = None
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        problem = "is not a frozen dataclass: put @dataclass(frozen=True) below @metric"
    elif not inspect.getdoc(cls) or (cls.__doc__ or "").startswith(f"{cls.__name__}("):
        problem = "has no docstring: give formula, range and the undefined case"
    elif not callable(getattr(cls, "gather", None)) or not callable(getattr(cls, "score", None)):
        problem = "lacks gather(self, row) or score(self, …)"
    elif not set(getattr(cls, "needs", ("?",))) <= set(COLUMNS):
        problem = f"needs unknown columns; known are {', '.join(COLUMNS)}"
    elif unknown := set(asks_with) - {field.name for field in dataclasses.fields(cls)}:
        problem = f"names settings in asks_with that it does not have: {', '.join(sorted(unknown))}"
    if problem:
        raise UserError(f"metric {name} ({_path(cls)}) {problem}")


def _path(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _nearest(word: str, known: Sequence[str]) -> dict[str, str]:
    near = difflib.get_close_matches(word, known, n=1)
    return {"nearest": near[0]} if near else {}
