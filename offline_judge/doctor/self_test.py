"""Ask each kind of model something whose answer is known in shape, and say how long it took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from offline_judge.backends import open_embedder, open_judge, open_verifier
from offline_judge.backends.protocol import (
    Call,
    ChooseCall,
    Chosen,
    GenerateCall,
    Generated,
    SupportCall,
    Supported,
)
from offline_judge.doctor.findings import Finding
from offline_judge.errors import UserError
from offline_judge.prompts import Message
from offline_judge.shelf import LocalModel, Role, Shelf

_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"verdict": {"enum": [0, 1]}},
        "required": ["verdict"],
        "additionalProperties": False,
    }
)
_QUESTION = "Does the text state that the depot is in Lund? Text: The depot is in Lund. Answer with 1 or 0."


def try_model(shelf: Shelf, role: Role, wanted: str | Path, backend: str) -> Finding:
    """Load one model and use it once; whatever goes wrong becomes a finding."""
    started = time.perf_counter()
    try:
        model = shelf.find(wanted, role)
        said = _TESTS[role](model, backend)
    except UserError as error:
        return Finding(role, "wrong", error.message, "; ".join(f"{k}: {v}" for k, v in error.details.items()))
    except Exception as error:  # noqa: BLE001 - a library may fail in any way, and the others are still tried
        return Finding(role, "wrong", f"{wanted}: {type(error).__name__} while it was tried")
    seconds = time.perf_counter() - started
    return Finding(role, "fine", f"{model.name}: {said} ({seconds:.1f} s with loading)")


def _judge(model: LocalModel, backend: str) -> str:
    judge = open_judge(model.path, name=model.name, fingerprint=model.fingerprint, backend=backend)
    try:
        messages: tuple[Message, ...] = (("user", _QUESTION),)
        calls: list[Call] = [ChooseCall(messages, ("1", "0")), GenerateCall(messages, _SCHEMA, 64)]
        answers = dict(judge.answer(calls))
        chosen, generated = answers[0], answers[1]
        if not isinstance(chosen, Chosen) or abs(sum(chosen.probabilities) - 1) > 1e-6:
            raise UserError(f"judge {model.name} gave no probabilities", {"found": _kind(chosen)})
        if not isinstance(generated, Generated) or json.loads(generated.text)["verdict"] not in (0, 1):
            raise UserError(
                f"judge {model.name} gave no verdict that fits its schema", {"found": _kind(generated)}
            )
        return f"P(supported) {chosen.probabilities[0]:.2f} and a verdict within its schema, on {backend}"
    finally:
        judge.close()


def _verifier(model: LocalModel, _backend: str) -> str:
    verifier = open_verifier(model.path, name=model.name, fingerprint=model.fingerprint)
    try:
        claims = ("The depot is in Lund.", "The depot is in Oslo.")
        answers = dict(verifier.verify([SupportCall("The depot is in Lund.", claim) for claim in claims]))
        found = [one.probability for _, one in sorted(answers.items()) if isinstance(one, Supported)]
        if len(found) != len(claims) or not all(0 <= p <= 1 for p in found):
            raise UserError(f"verifier {model.name} gave no probabilities", {"found": _kind(answers[0])})
        return f"P(supported) {found[0]:.2f} of what the text says, {found[1]:.2f} of what it does not"
    finally:
        verifier.close()


def _embedder(model: LocalModel, _backend: str) -> str:
    embedder = open_embedder(model.path, name=model.name, fingerprint=model.fingerprint)
    try:
        vectors = embedder.embed(["Where is the depot?", "Where is the depot?", "Buses are red."])
        unit = vectors.double() / vectors.double().norm(dim=1, keepdim=True)
        same, other = float(unit[0] @ unit[1]), float(unit[0] @ unit[2])
        if not (abs(same - 1) < 1e-3 and other < same):
            raise UserError(
                f"embedder {model.name} does not tell texts apart",
                {"cosine of a text with itself": f"{same:.3f}", "with another": f"{other:.3f}"},
            )
        return f"{vectors.shape[1]} dimensions, cosine {same:.2f} with itself, {other:.2f} with another text"
    finally:
        embedder.close()


def _kind(answer: object) -> str:
    return getattr(answer, "reason", type(answer).__name__)


_TESTS: dict[Role, Callable[[LocalModel, str], str]] = {
    "judge": _judge,
    "verifier": _verifier,
    "embedder": _embedder,
}
