"""Token ids of (premise, claim) pairs, each text tokenised once however many pairs it stands in.

A tokenizer puts two texts together as special tokens, first text, special tokens, second text, special
tokens, and tokenises each text by itself. So the ids of a pair can be joined from those of its texts;
`PairEncoder` reads the special tokens from the tokenizer and checks that the joint ids are its very own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offline_judge.backends.control_text import ControlText, added_tokens
from offline_judge.errors import UserError
from offline_judge.text import windows

Ids = npt.NDArray[np.int32]

#: Raised whenever the same pair gives other windows or ids: it goes into the verifier's fingerprint.
PAIR_VERSION = 2

#: Tokens kept for the claim beside a window: the claim's own number rounded up, so that all ordinary
#: claims about one premise share its windows.
_CLAIM_ROOM = 64
#: A window that is smaller than this says nothing about anything.
_LEAST_WINDOW = 32

_PROBES = (("The first text.", "A second one!"), ("Prices rose by 3.5%, 서울에서.", "'Quoted' words"))


class EncodedWindow(NamedTuple):
    """Token ids of a part of a premise; `span` is its place in characters, None for the whole premise."""

    ids: Ids
    span: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """A claim beside one window of its premise."""

    window: EncodedWindow
    claim: Ids
    n_tokens: int


class PairEncoder:
    """Joins pairs from texts that are tokenised once.

    Args:
        tokenizer: of transformers.
        max_tokens: the most tokens of a pair, its special tokens included.

    Raises:
        UserError: where the tokenizer does not build pairs from separately tokenised texts.
    """

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._control_text = ControlText(added_tokens(tokenizer))
        self.max_tokens = max_tokens
        self._affixes, self._types = self._read_template()
        self.n_special = sum(map(len, self._affixes))

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Tokenise texts without special tokens, also where one stands in a text, and without cutting any."""
        if not texts:
            return []
        harmless = [self._control_text.broken_in(text) for text in texts]
        found = self._tokenizer(harmless, add_special_tokens=False, truncation=False)["input_ids"]
        return [np.asarray(ids, dtype=np.int32) for ids in found]

    def window_budget(self, n_premise: int, n_claim: int) -> int | None:
        """Tokens that a window of the premise may have beside a claim; 0 where the claim leaves no room.

        Returns None where premise and claim fit whole. It depends on the two alone.
        """
        room = self.max_tokens - self.n_special
        if n_premise + n_claim <= room:
            return None
        for kept in (-(-n_claim // _CLAIM_ROOM) * _CLAIM_ROOM, n_claim):
            if room - kept >= _LEAST_WINDOW:
                return room - kept
        return 0

    def windows(self, premise: str, budget: int) -> list[EncodedWindow]:
        """Cut a premise at sentence ends into windows of at most `budget` tokens with an overlap."""
        cut = windows(premise, lambda texts: [len(ids) for ids in self.encode(texts)], budget)
        ids = self.encode([window.text for window in cut])
        return [EncodedWindow(one, (window.start, window.end)) for one, window in zip(ids, cut, strict=True)]

    def collate(self, pairs: Sequence[EncodedPair]) -> dict[str, Tensor]:
        """Join the pairs and pad them on the right: (B, S) int64 tensors by the name of the model's input.

        There is no attention mask where no pair is padded.
        """
        n_tokens = [pair.n_tokens for pair in pairs]
        width = max(n_tokens)
        ids = np.full((len(pairs), width), self._tokenizer.pad_token_id or 0, dtype=np.int64)
        types = np.zeros_like(ids) if self._types else None
        before, between, after = self._affixes
        for row, pair in enumerate(pairs):
            joint = np.concatenate((before, pair.window.ids, between, pair.claim, after))
            ids[row, : len(joint)] = joint
            if types is not None and self._types is not None:
                first = len(before) + len(pair.window.ids) + len(between)
                types[row, first : len(joint)] = 1
        inputs = {"input_ids": torch.from_numpy(ids)}
        if types is not None:
            inputs["token_type_ids"] = torch.from_numpy(types)
        if min(n_tokens) < width:
            lengths = torch.tensor(n_tokens)[:, None]
            inputs["attention_mask"] = (torch.arange(width)[None, :] < lengths).long()
        return inputs

    def pair(self, window: EncodedWindow, claim: Ids) -> EncodedPair:
        """Put a claim beside a window."""
        return EncodedPair(window, claim, self.n_special + len(window.ids) + len(claim))

    def _read_template(self) -> tuple[tuple[Ids, Ids, Ids], bool]:
        """Special tokens before, between and after the texts, and whether the second text has a type of 1."""
        self._types = False
        self._affixes = (np.empty(0, np.int32),) * 3
        for probe in _PROBES:
            first, second = self.encode(probe)
            whole = self._tokenizer(*probe)
            ids = np.asarray(whole["input_ids"], dtype=np.int32)
            start = _find(ids, first, 0)
            then = _find(ids, second, start + len(first))
            if start < 0 or then < 0:
                raise self._refusal()
            self._affixes = (ids[:start], ids[start + len(first) : then], ids[then + len(second) :])
            types = np.asarray(whole.get("token_type_ids", []))
            if types.any() and not (types[then:].all() and not types[:then].any()):
                raise self._refusal()
            self._types = bool(types.any())
            again = self.collate([EncodedPair(EncodedWindow(first, None), second, len(ids))])
            if again["input_ids"][0].tolist() != ids.tolist():
                raise self._refusal()
        return self._affixes, self._types

    def _refusal(self) -> UserError:
        return UserError(
            f"the tokenizer in {self._tokenizer.name_or_path} builds pairs in an unknown way",
            {
                "found": f"{type(self._tokenizer).__name__} joins premise and claim otherwise",
                "to fix": "take a cross-encoder of the BERT, RoBERTa, DeBERTa or ModernBERT family",
            },
        )


def _find(ids: Ids, part: Ids, start: int) -> int:
    """Return where `part` stands in `ids` from `start` on, or -1."""
    if start < 0:
        return -1
    last = len(ids) - len(part)
    return next((i for i in range(start, last + 1) if np.array_equal(ids[i : i + len(part)], part)), -1)
