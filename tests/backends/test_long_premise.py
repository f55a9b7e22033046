"""A premise of 20,000 tokens: the fact in its last sentence is found, and memory stays flat."""

from __future__ import annotations

import random
import resource

import pytest
import torch
from tiny_verifiers import make_verifier

from offline_judge.backends.encoder_verifier import EncoderVerifier
from offline_judge.backends.protocol import SupportCall

FACT = "The key is under the mat."


def sentence(number: int) -> str:
    return f"Nothing of note happened on day {number} of the year."


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """A tiny model that has learnt one thing: a premise supports the claim about the key if it states it."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    path = make_verifier(
        tmp_path_factory.mktemp("toy") / "m", labels=("unsupported", "supported"), taught=False
    )
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rng = random.Random(0)
    for _ in range(200):
        premises, claims, wanted = [], [], []
        for _ in range(32):
            lines = [sentence(rng.randint(1, 9999)) for _ in range(rng.randint(1, 3))]
            stated, asked = rng.random() < 0.5, rng.random() < 0.7
            if stated:
                lines.insert(rng.randint(0, len(lines)), FACT)
            premises.append(" ".join(lines))
            claims.append(FACT if asked else f"The museum has {rng.randint(1, 99)} bridges.")
            wanted.append(int(stated and asked))
        inputs = tokenizer(
            premises, claims, padding=True, truncation=True, max_length=128, return_tensors="pt"
        )
        loss = torch.nn.functional.cross_entropy(model(**inputs).logits, torch.tensor(wanted))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.01:
            break
    model.save_pretrained(path)
    # Windows as long as the premises that it has seen.
    return EncoderVerifier(
        path, name="toy", fingerprint="f", device="cpu", max_pair_tokens=64, check_labels=False
    )


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
    assert end - start < 500
    assert all(found[place].probability < 0.5 for place in range(1, 30))
    assert grown_kib < 100 * 1024
