from __future__ import annotations

import json
import shutil

import pytest
import torch

from offline_judge.backends import open_embedder
from offline_judge.backends.embedder import check_vectors
from offline_judge.errors import UserError


@pytest.fixture(scope="module")
def embedder(shelf_model):
    embedder = open_embedder(shelf_model("all-minilm-l6-v2"), name="minilm", fingerprint="f", device="cpu")
    yield embedder
    embedder.close()


def test_vectors_come_in_the_order_of_the_texts(embedder):
    texts = [
        "A cat sits on the mat.",
        "Interest rates rose by half a point in Europe.",
        "A cat sat.",
    ]
    vectors = embedder.embed(texts)
    assert vectors.shape == (3, 384)
    assert vectors.dtype == torch.float32
    cosines = torch.nn.functional.normalize(vectors, dim=1) @ torch.nn.functional.normalize(vectors, dim=1).T
    assert cosines[0, 2] > 0.7 > 0.3 > cosines[0, 1]
    assert torch.equal(embedder.embed(texts), vectors)
    assert torch.allclose(embedder.embed(texts[:1]), vectors[:1], atol=1e-6)


def test_no_texts_give_no_vectors(embedder):
    assert embedder.embed([]).shape == (0, 384)


def test_texts_that_are_cut_are_counted(embedder):
    before = embedder.n_truncated
    embedder.embed(["short", "word " * 1000])
    assert embedder.n_truncated == before + 1
    assert embedder.describe()["n_truncated"] == before + 1


def test_the_default_prompt_of_the_model_is_used(shelf_model, embedder, tmp_path):
    folder = tmp_path / "prompted"
    shutil.copytree(shelf_model("all-minilm-l6-v2"), folder)
    file = folder / "config_sentence_transformers.json"
    config = json.loads(file.read_text()) | {"prompts": {"q": "query: "}, "default_prompt_name": "q"}
    file.write_text(json.dumps(config))
    prompted = open_embedder(folder, name="minilm", fingerprint="f", device="cpu")
    assert torch.allclose(prompted.embed(["cat"]), embedder.embed(["query: cat"]), atol=1e-6)
    assert prompted.describe()["prompt"] == "query: "
    assert prompted.fingerprint != embedder.fingerprint


def test_a_wrong_shape_is_named():
    with pytest.raises(UserError) as caught:
        check_vectors(torch.ones(1, 4), (3, 4), "e5")
    assert caught.value.details == {"expected": "(3, 4)", "found": "(1, 4)"}


def test_values_that_are_not_finite_are_named():
    vectors = torch.ones(3, 4)
    vectors[1, 2] = torch.nan
    with pytest.raises(UserError, match="not finite") as caught:
        check_vectors(vectors, (3, 4), "e5")
    assert "1 of 3, the first is number 2" in caught.value.details["texts"]


def test_pickled_weights_are_not_loaded(shelf_model, tmp_path):
    shutil.copytree(shelf_model("all-minilm-l6-v2"), tmp_path / "m", ignore=lambda *_: ["model.safetensors"])
    with pytest.raises(UserError, match="no safetensors weights"):
        open_embedder(tmp_path / "m", name="m", fingerprint="f")


def test_batches_are_halved_where_memory_does_not_suffice(embedder, monkeypatch):
    texts = [f"Text number {n}." for n in range(100)]
    expected = embedder.embed(texts)
    plain, sizes = embedder._model.encode, []

    def encode(texts, *, batch_size, **settings):
        sizes.append(batch_size)
        if batch_size > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(texts, batch_size=batch_size, **settings)

    monkeypatch.setattr(embedder._model, "encode", encode)
    monkeypatch.setattr(embedder, "_batch_size", 64)
    assert torch.allclose(embedder.embed(texts), expected, atol=1e-6)
    embedder.embed(texts)
    assert sizes == [64, 32, 16, 8, 8]


def test_memory_that_does_not_suffice_for_one_text_is_an_error(embedder, monkeypatch):
    def encode(texts, **settings):
        raise MemoryError

    monkeypatch.setattr(embedder._model, "encode", encode)
    monkeypatch.setattr(embedder, "_batch_size", 64)
    with pytest.raises(MemoryError):
        embedder.embed(["a"])


def test_what_was_cut_stands_in_the_record_of_the_run(shelf_model, tmp_path):
    import offline_judge

    row = {"response": "word " * 400, "reference": "A short one."}
    result = offline_judge.evaluate(
        [row],
        ["semantic_similarity"],
        embedder=shelf_model("all-minilm-l6-v2"),
        device="cpu",
        out=tmp_path,
        name="run",
    )
    embedder = result.record["models"]["embedder"]
    assert (embedder["n_truncated"], embedder["device"], embedder["dtype"]) == (1, "cpu", "float32")


def test_the_order_and_company_of_texts_do_not_change_their_vectors(embedder):
    texts = ["word " * n + "end" for n in (1, 90, 7, 200, 30)]
    together = embedder.embed(texts)
    for place, text in enumerate(texts):
        assert torch.allclose(embedder.embed([text])[0], together[place], atol=1e-5)
