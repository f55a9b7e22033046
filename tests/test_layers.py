"""Imports go downward only: the picture in the README is the code."""

from __future__ import annotations

import ast
from pathlib import Path

import offline_judge

ROOT = Path(offline_judge.__file__).parent

# From the bottom up; a module may import from its own layer and those before it.
LAYERS = [
    {"errors", "_version", "air_gap", "private_files"},
    {"numeric", "schema", "prompts", "text", "examples", "shelf"},
    {"backends"},
    {"engine"},
    {"metrics"},
    {"config", "summary", "run_folder", "scoring", "tables", "result", "calibration", "verification"},
    {"gathering", "run_models", "run_record"},
    {"interrupts", "evaluation", "rescoring", "comparison", "doctor"},
    {"progress", "cache_commands", "calibrate_command", "cli", "__main__", ""},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("offline_judge")
            and id(node) not in typing_only
        ):
            found.add([*(node.module or "").split("."), ""][1])
    return found


def home(path: Path) -> str:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if part == "__init__" else part


def test_every_module_has_a_layer():
    assert {home(path) for path in ROOT.rglob("*.py")} <= set(LEVEL)


def test_imports_go_downward_only():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name or 'the package'}"
        for path in ROOT.rglob("*.py")
        for name in imports_of(path)
        if name and LEVEL[name] > LEVEL[home(path)]
    ]
    assert wrong == []


def test_the_numeric_core_imports_nothing_of_ours():
    for path in (ROOT / "numeric").rglob("*.py"):
        assert imports_of(path) <= {"numeric"}, path
