"""Who imports what (DESIGN.md): read from the source, and what `import fairbound` needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fairbound

ROOT = Path(fairbound.__file__).parent
MODULES = {
    ".".join(("fairbound", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def imports(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, also inside functions."""
    found = set()
    package = ["fairbound", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            found.add(".".join(part for part in (base, node.module or "") if part))
    return found


def named(*prefixes: str) -> list[str]:
    return sorted(name for name in MODULES if any(name == p or name.startswith(p + ".") for p in prefixes))


def ours(name: str) -> set[str]:
    return {module for module in imports(MODULES[name]) if module.split(".")[0] == "fairbound"}


def test_core_imports_nothing_of_ours() -> None:
    assert ours("fairbound.core") == set()


@pytest.mark.parametrize("name", named("fairbound.algorithms", "fairbound.subproblems", "fairbound.schedules"))
def test_algorithms_see_torch_and_the_contract_only(name: str) -> None:
    allowed = ("fairbound.core", "fairbound.schedules", "fairbound.subproblems", "fairbound.algorithms")
    assert all(module.startswith(allowed) for module in ours(name)), ours(name)
    outside = {module.split(".")[0] for module in imports(MODULES[name])} - {"fairbound"}
    plain = {"__future__", "abc", "collections", "dataclasses", "functools", "math", "operator", "typing"}
    assert outside <= plain | {"torch"}, outside
    source = MODULES[name].read_text()
    for word in ("torch.nn", "print(", "torch.rand", "manual_seed", "open("):
        assert word not in source, f"{name} uses {word}"


ROOMS = {  # docs/architecture.md: what of ours each room may import
    "fairbound.extras": (),
    "fairbound.files": (),
    "fairbound.data": ("extras", "fairness", "files"),
    "fairbound.fairness": ("core",),
    "fairbound.pages": ("extras",),
    "fairbound.auditing": ("data", "extras", "fairness", "files", "pages"),
    "fairbound.cli": ("auditing", "bench", "data", "extras", "fairness", "files"),
    "fairbound.experiments": (),
    "fairbound.bench": (
        "algorithms",
        "compiling",
        "core",
        "data",
        "experiments",
        "extras",
        "fairness",
        "files",
        "modules",
        "pages",
        "problem",
        "runner",
        "sampling",
        "schedules",
        "stacking",
    ),
    "fairbound.streams": (),
    "fairbound.sampling": ("core", "data", "fairness", "streams"),
    "fairbound.modules": (),
    "fairbound.problem": ("core", "data", "fairness", "sampling"),
    "fairbound.stacking": ("core",),
    "fairbound.trees": (),
    "fairbound.compiling": ("trees",),
    "fairbound.replaying": ("trees",),
    "fairbound.diagnostics": (),
    "fairbound.chunked": ("compiling", "core", "problem", "sampling", "trees"),
    "fairbound.recorded": ("core", "diagnostics", "problem"),
    "fairbound.stepping": (
        "chunked",
        "compiling",
        "core",
        "problem",
        "recorded",
        "replaying",
        "sampling",
        "stacking",
        "trees",
    ),
    "fairbound.loop": ("core", "diagnostics", "fairness", "stacking", "streams", "subproblems", "trees"),
    "fairbound.constrained": ("core", "fairness", "loop", "trees"),
    "fairbound.verdicts": ("fairness",),
    "fairbound.estimating": (
        "algorithms",
        "core",
        "data",
        "diagnostics",
        "extras",
        "fairness",
        "keras",
        "loop",
        "modules",
        "problem",
        "recorded",
        "runner",
        "sampling",
        "schedules",
        "verdicts",
    ),
    "fairbound.balanced": ("core", "fairness", "streams"),
    "fairbound.eager": ("core", "fairness", "problem", "sampling"),
    "fairbound.single": ("core", "eager", "problem", "recorded", "sampling", "trees"),
    "fairbound.runner": ("compiling", "core", "problem", "recorded", "sampling", "single", "stacking", "stepping"),
    "fairbound.keras": (
        "algorithms",
        "constrained",
        "core",
        "data",
        "estimating",
        "extras",
        "fairness",
        "loop",
        "problem",
        "runner",
        "sampling",
    ),
}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_what_the_table_says(room: str) -> None:
    allowed = (room, *(f"fairbound.{name}" for name in ROOMS[room]))
    for name in named(room):
        assert all(module.startswith(allowed) for module in ours(name)), (name, ours(name))


def test_every_module_has_a_room() -> None:
    rooms = (*ROOMS, "fairbound.core", "fairbound.algorithms", "fairbound.schedules", "fairbound.subproblems")
    assert [name for name in MODULES if name != "fairbound" and not name.startswith(rooms)] == []


@pytest.mark.parametrize(
    "name", [name for name in MODULES if not name.startswith(("fairbound.bench", "fairbound.cli"))]
)
def test_nothing_imports_the_benchmark_or_sets_defaults(name: str) -> None:
    assert not any(module.startswith("fairbound.bench") for module in ours(name))
    assert "torch.set_default" not in MODULES[name].read_text()


def test_import_needs_torch_and_numpy_only() -> None:
    """In a process of its own, with every other third-party package made to fail."""
    code = """
import sys, torch
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in ("scipy", "pandas", "sklearn", "matplotlib", "plotly", "typer", "rich", "pyarrow", "narwhals",
        "optuna", "keras", "tensorflow", "jax"):
            raise ImportError(f"fairbound must not import {name}")
sys.meta_path.insert(0, Refuse())
import fairbound
print(len(fairbound.ALGORITHMS))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 6
