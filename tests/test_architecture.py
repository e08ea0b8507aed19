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


LAYERS = {  # folder -> what of ours it may import, beside itself and _utils (docs/architecture.md)
    "_utils": (),
    "core": (),
    "algorithms": ("core",),
    "constraints": ("core",),
    "metrics": ("core", "algorithms", "constraints"),
    "data": ("core", "constraints", "metrics"),
    "auditing": ("core", "constraints", "metrics", "data"),
    "training": ("core", "algorithms", "constraints", "metrics", "data"),
    "integrations": ("core", "algorithms", "constraints", "metrics", "data", "auditing", "training"),
    "benchmark": ("core", "algorithms", "constraints", "metrics", "data", "auditing", "training", "integrations"),
    "cli": ("core", "constraints", "metrics", "data", "auditing", "training", "integrations", "benchmark"),
    "testing": ("core", "constraints", "data", "training", "integrations"),
}


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"fairbound"}))
def test_imports_point_one_way(name: str) -> None:
    layer = name.split(".")[1]
    allowed = {layer, "_utils", *LAYERS[layer]}
    assert {module.split(".")[1] for module in ours(name) if module != "fairbound"} <= allowed
    assert "fairbound" not in ours(name), "import a name from its own module"
    if layer not in ("benchmark", "cli"):
        assert "torch.set_default" not in MODULES[name].read_text()


@pytest.mark.parametrize("name", named("fairbound.algorithms"))
def test_algorithms_see_torch_and_the_contract_only(name: str) -> None:
    outside = {module.split(".")[0] for module in imports(MODULES[name])} - {"fairbound"}
    plain = {"__future__", "abc", "collections", "dataclasses", "functools", "math", "operator", "typing"}
    assert outside <= plain | {"torch"}, outside
    source = MODULES[name].read_text()
    for word in ("torch.nn", "print(", "torch.rand", "manual_seed", "open("):
        assert word not in source, f"{name} uses {word}"


def test_import_needs_torch_and_numpy_only() -> None:
    """In a process of its own, with every other third-party package made to fail."""
    code = """
import sys, torch
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in ("pandas", "sklearn", "matplotlib", "plotly", "typer", "rich", "pyarrow", "narwhals",
        "optuna", "keras", "tensorflow", "jax"):
            raise ImportError(f"fairbound must not import {name}")
sys.meta_path.insert(0, Refuse())
import fairbound
print(len(fairbound.ALGORITHMS))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 6
