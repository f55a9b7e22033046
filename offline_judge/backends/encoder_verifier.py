"""A verifier on a sequence classifier: an NLI or fact-checking cross-encoder of a local folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offline_judge.backends.batching import free_memory
from offline_judge.backends.model_folder import (
    cannot_load,
    combine_fingerprint,
    package_versions,
    read_model_config,
)
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.pair_encoder import PAIR_VERSION, EncodedPair, EncodedWindow, PairEncoder
from offline_judge.backends.protocol import Failed, SupportCall, Supported
from offline_judge.backends.supported_label import SupportedLabel, find_supported_label, named_label
from offline_judge.backends.token_budget import TokenBudget
from offline_judge.errors import UserError

#: NLI models are trained on short premises, and attention costs the square of the length: a model that
#: could read more is given windows of this many tokens too.
MAX_PAIR_TOKENS = 512

#: On a CPU the activations of a batch should stay in its caches: 4,096 tokens take a quarter longer.
_BATCH_TOKENS = {"cuda": 65536, "cpu": 1536}


@dataclass
class _Question:
    """One distinct (premise, claim), the calls that ask it, and what its windows have said so far."""

    positions: list[int]
    n_open: int = 0
    n_tokens: int = 0
    best: tuple[float, tuple[int, int] | None] = (-1.0, None)
    failed: Failed | None = None
    pairs: list[EncodedPair] = field(default_factory=list)


class EncoderVerifier:
    """P(premise supports claim) from a sequence classifier; the maximum over the windows of a long premise.

    float32 on the CPU, bfloat16 on a GPU, scaled-dot-product attention where the architecture has it.

    Attributes:
        label: the output that means supported.
    """

    prompted = False

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        fingerprint: str,
        device: str | None = None,
        max_pair_tokens: int = MAX_PAIR_TOKENS,
        check_labels: bool = True,
    ) -> None:
        """Load the model and confirm which of its labels means supported.

        Args:
            path: a folder with `config.json`, a tokenizer and safetensors weights.
            name: how reports call the model.
            fingerprint: hash of the model's files; combined with all settings that change an answer.
            device: "cpu", "cuda", …; None takes a GPU where there is one.
            max_pair_tokens: the most tokens of premise window, claim and special tokens together.
            check_labels: False trusts the label's name without the probe of obvious pairs. For
                benchmarks of models with random weights.

        Raises:
            UserError: where the folder holds no loadable sequence classifier, or its labels don't mean
                what they say.
        """
        set_offline_env()
        self.name = name
        self._stop = threading.Event()
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._dtype = torch.float32 if self._device.type == "cpu" else torch.bfloat16
        self._model, tokenizer = _load(path, self._dtype)
        self._model.to(self._device).eval()
        self._encoder = PairEncoder(tokenizer, _most_tokens(self._model, tokenizer, max_pair_tokens))
        self._budget = TokenBudget(_BATCH_TOKENS.get(self._device.type, _BATCH_TOKENS["cuda"]))
        id2label = {int(index): str(label) for index, label in self._model.config.id2label.items()}
        self.label = (
            find_supported_label(id2label, self._logits_of, name)
            if check_labels
            else named_label(id2label) or SupportedLabel(1, id2label[1])
        )
        self._settings: dict[str, object] = {
            "backend": "encoder",
            "versions": package_versions("torch", "transformers", "tokenizers"),
            "dtype": str(self._dtype).removeprefix("torch."),
            "device": self._device.type,
            "attention": self._model.config._attn_implementation,
            "supported_label": self.label.name,
            "labels": [label for _, label in sorted(id2label.items())],
            "max_pair_tokens": self._encoder.max_tokens,
            "pair_version": PAIR_VERSION,
        }
        self.fingerprint = combine_fingerprint(fingerprint, self._settings)

    def verify(self, calls: Sequence[SupportCall]) -> Iterator[tuple[int, Supported | Failed]]:
        """Yield (position, answer) once for every call: equal pairs are computed once.

        Failed with `verifier_claim_too_long` where a claim leaves no room for a premise,
        `verifier_premise_too_long` where a premise can't be cut, `verifier_out_of_memory` or
        `verifier_not_finite`.
        """
        self._stop.clear()
        questions = self._questions(calls)
        owner = {id(pair): question for question in questions for pair in question.pairs}
        for question in questions:
            if not question.n_open:
                yield from _answers(question)
        pairs = [pair for question in questions for pair in question.pairs]
        for batch, found in self._budget.run(
            pairs, lambda pair: pair.n_tokens, self._p_supported, self._stop
        ):
            for row, pair in enumerate(batch):
                question = owner[id(pair)]
                question.n_open -= 1
                if found is None:
                    question.failed = Failed("verifier_out_of_memory", f"{pair.n_tokens} tokens")
                elif found[row] != found[row]:
                    question.failed = Failed("verifier_not_finite", f"{pair.n_tokens} tokens")
                elif found[row] > question.best[0]:
                    question.best = (found[row], pair.window.span)
                if not question.n_open:
                    yield from _answers(question)

    def stop(self) -> None:
        """Let `verify` end after the batch that is being computed."""
        self._stop.set()

    def describe(self) -> dict[str, object]:
        """Return what the run record keeps."""
        return {**self._settings, "out_of_memory": self._budget.n_halved}

    def close(self) -> None:
        """Free the model's memory."""
        del self._model
        free_memory()

    def _questions(self, calls: Sequence[SupportCall]) -> list[_Question]:
        """Tokenise every distinct text once and lay out the pairs of each distinct question."""
        asked: dict[tuple[str, str], _Question] = {}
        for position, call in enumerate(calls):
            asked.setdefault((call.premise, call.claim), _Question([])).positions.append(position)
        premises = list(dict.fromkeys(premise for premise, _ in asked))
        claims = list(dict.fromkeys(claim for _, claim in asked))
        whole = {
            text: EncodedWindow(ids, None)
            for text, ids in zip(premises, self._encoder.encode(premises), strict=True)
        }
        claim_ids = dict(zip(claims, self._encoder.encode(claims), strict=True))
        cut: dict[tuple[str, int], list[EncodedWindow]] = {}
        for (premise, claim), question in asked.items():
            ids = claim_ids[claim]
            budget = self._encoder.window_budget(len(whole[premise].ids), len(ids))
            if budget is None:
                windows = [whole[premise]]
            elif not budget:
                question.failed = Failed("verifier_claim_too_long", f"{len(ids)} tokens")
                continue
            else:
                if (premise, budget) not in cut:
                    cut[premise, budget] = self._encoder.windows(premise, budget)
                windows = cut[premise, budget]
                if max(len(window.ids) for window in windows) > budget:
                    # A normalisation that makes many tokens of few bytes; no text in use does.
                    question.failed = Failed("verifier_premise_too_long", f"{budget} tokens for a window")
                    continue
            question.pairs = [self._encoder.pair(window, ids) for window in windows]
            question.n_open = len(question.pairs)
            question.n_tokens = sum(pair.n_tokens for pair in question.pairs)
        return list(asked.values())

    def _p_supported(self, pairs: Sequence[EncodedPair]) -> list[float]:
        found: list[float] = self.label.probabilities(self._forward(pairs)).tolist()
        return found

    @torch.inference_mode()
    def _forward(self, pairs: Sequence[EncodedPair]) -> Tensor:
        """(B, L) logits."""
        inputs = {name: tensor.to(self._device) for name, tensor in self._encoder.collate(pairs).items()}
        logits: Tensor = self._model(**inputs).logits
        return logits

    def _logits_of(self, texts: Sequence[tuple[str, str]]) -> Tensor:
        premises, claims = zip(*texts, strict=True)
        pairs = [
            self._encoder.pair(EncodedWindow(premise, None), claim)
            for premise, claim in zip(
                self._encoder.encode(premises), self._encoder.encode(claims), strict=True
            )
        ]
        return self._forward(pairs)


def _answers(question: _Question) -> Iterator[tuple[int, Supported | Failed]]:
    answer = question.failed or Supported(*question.best, question.n_tokens)
    for position in question.positions:
        yield position, answer


def _load(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load model and tokenizer of a folder that really holds a trained sequence classifier."""
    architectures = read_model_config(path).get("architectures") or []
    if not any(str(name).endswith("ForSequenceClassification") for name in architectures):
        raise UserError(
            f"{path} holds no sequence classifier, so it can't be a verifier",
            {
                "found": ", ".join(map(str, architectures)) or "no architectures in config.json",
                "to fix": "take an NLI or fact-checking cross-encoder, or a judge with --verifier judge",
            },
        )
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
        model, report = AutoModelForSequenceClassification.from_pretrained(
            str(path),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise cannot_load(path, error) from error
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"the model in {path} lacks weights, which would be random numbers",
            {
                "missing": ", ".join(missing[:3])
                + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            },
        )
    return model, tokenizer


def _most_tokens(model: Any, tokenizer: Any, wanted: int) -> int:
    """The most tokens of a pair: as wanted, at most what tokenizer and position embeddings allow."""
    limits = [wanted, tokenizer.model_max_length]
    if positions := getattr(model.config, "max_position_embeddings", None):
        # RoBERTa and its kin count positions from the padding id on.
        padding_id = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
        limits.append(positions if padding_id is None else positions - padding_id - 1)
    return int(min(limits))
