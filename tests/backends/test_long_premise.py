"""A premise of 20,000 tokens: the fact in its last sentence is found, and memory stays flat."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pytest
import torch
from tiny_verifiers import make_verifier

from offline_judge.backends.encoder_verifier import EncoderVerifier
from offline_judge.backends.protocol import SupportCall

FACT = "The key is under the mat."


def sentence(number: int) -> str:
    return f"Nothing of note happened on day {number} of the year."


class HoldsTheClaim(torch.nn.Module):
    """Supported where the first text holds every token of the second: a rule in a model's place."""

    def forward(self, input_ids, token_type_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = []
        for ids, types, kept in zip(input_ids, token_type_ids, mask, strict=True):
            first, second = (set(ids[(types == kind) & (kept == 1)].tolist()) for kind in (0, 1))
            logits.append([0.0, 5.0 if second <= first else -5.0])
        return SimpleNamespace(logits=torch.tensor(logits))


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """The whole path of an encoder, with a model that is right: what is tested is all around it."""
    path = make_verifier(
        tmp_path_factory.mktemp("m") / "m", labels=("unsupported", "supported"), taught=False
    )
    verifier = EncoderVerifier(path, name="toy", fingerprint="f", device="cpu", check_labels=False)
    verifier._model = HoldsTheClaim()
    return verifier


def test_a_fact_in_the_last_sentence_is_found_and_memory_stays_flat(verifier):
    premise = " ".join([*map(sentence, range(1800)), FACT])
    assert len(verifier._encoder.encode([premise])[0]) > 20_000
    claims = [FACT, *(f"The museum has {number} bridges." for number in range(29))]
    calls = [SupportCall(premise, claim) for claim in claims]
    dict(verifier.verify(calls[:1]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = dict(verifier.verify(calls))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert found[0].probability > 0.9
    start, end = found[0].window
    assert premise[start:end].endswith(FACT)
    assert end - start < 1000
    assert all(found[place].probability < 0.5 for place in range(1, 30))
    assert grown_kib < 100 * 1024
