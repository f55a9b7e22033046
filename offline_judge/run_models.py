"""The judge and the embedder of a run: found, then opened."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from offline_judge.backends import open_embedder, open_judge, open_served_judge
from offline_judge.backends.model_folder import combine_fingerprint
from offline_judge.backends.protocol import Embedder, Judge
from offline_judge.backends.served.addresses import is_address
from offline_judge.backends.served.vllm_server import VllmServer
from offline_judge.config import Config
from offline_judge.errors import UserError
from offline_judge.metrics.registry import Metric
from offline_judge.shelf import LocalModel, Role, Shelf
from offline_judge.verification import NO_JUDGE


def open_models(
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
            dtype=config.dtype,
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
        dtype=config.dtype,
    )
    stack.enter_context(server)
    fingerprint = model.fingerprint
    if config.dtype != "auto":  # the server does not tell it
        fingerprint = combine_fingerprint(fingerprint, {"dtype": config.dtype})
    return open_served_judge(server.address, fingerprint=fingerprint, **shared)
