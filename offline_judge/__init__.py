"""offline_judge: evaluate retrieval-augmented generation with local models only.

    import offline_judge

    result = offline_judge.evaluate("rows.jsonl", judge="qwen2.5-7b-instruct", embedder="bge-m3")
    print(result)

Importing the package is light: torch, transformers and vLLM are imported when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offline_judge._version import __version__
from offline_judge.errors import Stopped, UserError

if TYPE_CHECKING:
    from offline_judge.comparison import compare
    from offline_judge.config import Config
    from offline_judge.engine.asks import (
        Choose,
        Claims,
        Evidence,
        Gather,
        Generate,
        Questions,
        Similar,
        Support,
        Unscored,
    )
    from offline_judge.evaluation import evaluate
    from offline_judge.metrics.registry import Metric, metric
    from offline_judge.rescoring import rescore
    from offline_judge.result import Result
    from offline_judge.schema import Row

_HOME = {
    "compare": "comparison",
    "Config": "config",
    "Choose": "engine.asks",
    "Claims": "engine.asks",
    "Evidence": "engine.asks",
    "Gather": "engine.asks",
    "Generate": "engine.asks",
    "Questions": "engine.asks",
    "Similar": "engine.asks",
    "Support": "engine.asks",
    "Unscored": "engine.asks",
    "evaluate": "evaluation",
    "Metric": "metrics.registry",
    "metric": "metrics.registry",
    "rescore": "rescoring",
    "Result": "result",
    "Row": "schema",
}

__all__ = [
    "Choose",
    "Claims",
    "Config",
    "Evidence",
    "Gather",
    "Generate",
    "Metric",
    "Questions",
    "Result",
    "Row",
    "Similar",
    "Stopped",
    "Support",
    "Unscored",
    "UserError",
    "__version__",
    "compare",
    "evaluate",
    "metric",
    "rescore",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'offline_judge' has no attribute {name!r}")
    value = getattr(import_module(f"offline_judge.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
