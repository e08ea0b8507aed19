"""Who imports what (docs/background/architecture.md): read from the source, and what `import
fairbound` needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fairbound

ROOT = Path(fairbound.__file__).parent
MODULES = {
    ".".join(("fairbound", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in ROOT.rglob("*.py")
}


PACKAGES = ("constraints", "primal")  # public names that are modules


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
    return sorted(
        name for name in MODULES if any(name == p or name.startswith(p + ".") for p in prefixes)
    )


def ours(name: str) -> set[str]:
    return {module for module in imports(MODULES[name]) if module.split(".")[0] == "fairbound"}


# folder -> what of ours it may import, beside itself and _utils (docs/background/architecture.md)
LAYERS = {
    "_utils": (),
    "columns": (),
    "reports": (),
    "core": (),
    "algorithms": ("core",),
    "constraints": ("core",),
    "metrics": ("columns",),
    "data": ("columns", "core", "constraints", "metrics"),
    "auditing": ("columns", "reports", "core", "constraints", "metrics"),
    "training": ("columns", "core", "algorithms", "constraints", "metrics", "data"),
    "integrations": (
        *("columns", "reports", "core", "algorithms", "constraints"),
        *("metrics", "data", "auditing", "training"),
    ),
    "benchmark": (
        *("columns", "reports", "core", "algorithms", "constraints"),
        *("metrics", "data", "auditing", "training", "integrations"),
    ),
    "cli": (
        *("columns", "reports", "core", "constraints", "metrics"),
        *("data", "auditing", "training", "integrations", "benchmark"),
    ),
    "testing": ("core", "constraints", "data", "training", "integrations"),
}


def test_imports_point_one_way() -> None:
    for name in sorted(set(MODULES) - {"fairbound"}):
        layer = name.split(".")[1]
        allowed = {layer, "_utils", *LAYERS[layer]}
        assert {
            module.split(".")[1] for module in ours(name) if module != "fairbound"
        } <= allowed, name
        assert "fairbound" not in ours(name), f"{name}: import a name from its own module"
        if layer not in ("benchmark", "cli"):
            assert "torch.set_default" not in MODULES[name].read_text(), name


# front end -> the others that it may import; sklearn/ reads a Keras model that a user gives it
INTEGRATIONS = {
    "torch": (),
    "keras": ("torch",),
    "sklearn": ("torch", "keras"),
    "lightning": ("torch",),
    "transformers": ("torch",),
}


def test_front_ends_stand_side_by_side() -> None:
    for name in named(*(f"fairbound.integrations.{name}" for name in INTEGRATIONS)):
        front_end = name.split(".")[2]
        others = {
            module.split(".")[2]
            for module in ours(name)
            if module.startswith("fairbound.integrations.")
        }
        assert others <= {front_end, *INTEGRATIONS[front_end]}, name


def test_algorithms_see_torch_and_the_contract_only() -> None:
    plain = {
        "__future__",
        "abc",
        "collections",
        "dataclasses",
        "functools",
        "math",
        "operator",
        "statistics",
        "typing",
    }
    for name in named("fairbound.algorithms"):
        outside = {module.split(".")[0] for module in imports(MODULES[name])} - {"fairbound"}
        assert outside <= plain | {"torch"}, (name, outside)
        source = MODULES[name].read_text()
        for word in ("torch.nn", "print(", "torch.rand", "manual_seed", "open("):
            assert word not in source, f"{name} uses {word}"


def test_the_package_has_fourteen_entries() -> None:
    entries = {path.name.removesuffix(".py") for path in ROOT.iterdir()} - {"__pycache__"}
    assert entries - {"__init__", "__init__.pyi", "py.typed"} == set(LAYERS)
    assert len(LAYERS) == 14


PUBLIC_MODULES = {  # what the docs name besides packages; every other module is private
    "core",
    "algorithms.primal",
    "algorithms.schedules",
    "metrics.fairness_metrics",
    "benchmark.problems.table",
    "benchmark.problems.expectation",
    "integrations.lightning",
    "integrations.transformers",
}


def test_modules_that_are_not_for_users_have_an_underscore() -> None:
    modules = {name.removeprefix("fairbound.") for name, path in MODULES.items() if is_module(path)}
    public = {name for name in modules if not any(part[0] == "_" for part in name.split("."))}
    assert public == PUBLIC_MODULES


def is_module(path: Path) -> bool:
    return path.name != "__init__.py"


SAME_BY_RULE = (  # modules in which a public name may be defined again, and these names
    ("fairbound.algorithms._", {"State"}),  # each method's own
    ("fairbound.benchmark.problems._collection.", {"PROBLEMS", "build"}),  # what the catalog reads
    # capabilities that torch's front end has under the same name
    ("fairbound.integrations.keras.", {"Constrained", "MiniBatch", "make_functional"}),
    ("fairbound.algorithms.primal", {"SGD"}),  # named after `torch.optim`
)
# Clashes within data, which is being rewritten: to be none
STILL_TWICE = {"Columns", "STATES", "load"}


def public_definitions(path: Path) -> set[str]:
    """Names of the classes, functions, constants and aliases at the top of a module; not of an
    optional import, `pd = need("pandas", ...)`."""
    names = set[str]()
    statements: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while statements:
        node = statements.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            optional_import = isinstance(node.value, ast.Call) and (
                ast.unparse(node.value.func) == "need"
            )
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {
                part.id
                for target in targets
                for part in ast.walk(target)
                if isinstance(part, ast.Name)
                and isinstance(part.ctx, ast.Store)
                and not optional_import
            }
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            statements += ast.iter_child_nodes(node)
    return {name for name in names if not name.startswith("_")}


def test_a_public_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for name in public_definitions(path):
            if not any(module.startswith(start) and name in same for start, same in SAME_BY_RULE):
                homes.setdefault(name, []).append(module)
    twice = {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1}
    new = {name: modules for name, modules in twice.items() if name not in STILL_TWICE}
    assert not new, f"rename the narrower one, or make it private with an underscore: {new}"


def in_a_fresh_process(code: str) -> str:
    """What a script prints; the process imports this package and nothing of the tests."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_alone_imports_nothing_heavy() -> None:
    """Public names are resolved on first use, so that the command line starts without torch."""
    code = (
        "import sys, fairbound; print(sorted({'torch', 'numpy', 'scipy', 'pandas', 'sklearn'} &"
        " {*sys.modules}))"
    )
    assert in_a_fresh_process(code) == "[]"


def test_an_audit_loads_no_algorithm_and_no_training() -> None:
    code = (
        "import sys, fairbound.auditing; folders = {'.'.join(name.split('.')[:2]) for name in"
        " sys.modules}; print(sorted(folders & {'fairbound.algorithms', 'fairbound.training',"
        " 'fairbound.integrations', 'fairbound.benchmark'}))"
    )
    assert in_a_fresh_process(code) == "[]"


def test_every_public_name_resolves() -> None:
    code = (
        "import fairbound; print(sum(getattr(fairbound, name) is not None for name in"
        " fairbound.__all__))"
    )
    assert int(in_a_fresh_process(code)) == len(fairbound.__all__)
    assert set(fairbound.__all__) <= set(dir(fairbound))
    with pytest.raises(AttributeError, match=r"no attribute 'limits'"):
        _ = fairbound.limits


def test_no_module_hides_a_public_name() -> None:
    """Every submodule is imported first, then the public names: neither takes the place of the
    other.

    The commands of the command line are in files of their names, which nothing imports from.
    """
    extras = tuple(
        f"fairbound.integrations.{name}" for name in ("keras", "lightning", "transformers")
    )
    modules = [name for name in MODULES if not name.startswith(extras)]
    code = f"""
import importlib, types
import fairbound
for name in {modules!r}:
    module = importlib.import_module(name)
    assert isinstance(module, types.ModuleType)
    parent, _, own = name.rpartition(".")
    assert not parent or getattr(importlib.import_module(parent), own) is module, f"{{name}} is hidden"
for name in fairbound.__all__:
    found = getattr(fairbound, name)
    assert not isinstance(found, types.ModuleType) or name in {PACKAGES!r}, f"{{name}} is a module"
"""
    in_a_fresh_process(code)
    last = {name.rpartition(".")[2] for name in MODULES if not name.startswith("fairbound.cli.")}
    assert not last & (set(fairbound.__all__) - set(PACKAGES))


def test_the_stub_lists_the_public_names() -> None:
    """For type checkers and editors, which do not run `__getattr__`."""
    tree = ast.parse((ROOT / "__init__.pyi").read_text())
    listed = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    homes = {name: f"fairbound.{home}" for name, home in fairbound._HOME.items()}
    assert listed == {
        name: home.rpartition(".")[0] if name in PACKAGES else home for name, home in homes.items()
    }


def test_import_needs_torch_numpy_and_scipy_only() -> None:
    """In a process of its own, with every other third-party package made to fail."""
    code = """
import sys, torch
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in ("pandas", "sklearn", "matplotlib", "typer", "rich", "pyarrow", "narwhals", "optuna",
        "keras", "tensorflow", "jax", "lightning", "transformers", "accelerate", "pydantic", "jinja2", "pooch",
        "dask", "distributed"):
            raise ImportError(f"fairbound must not import {name}")
sys.meta_path.insert(0, Refuse())
import fairbound
fairbound.Constrained, fairbound.run, fairbound.verdict, fairbound.check_algorithm
print(len(fairbound.ALGORITHMS))
"""
    assert int(in_a_fresh_process(code)) >= 6
