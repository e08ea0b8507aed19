"""Names made from content: settings, data, and the code that decides a result and nothing else."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import fairbound
from fairbound.algorithms import ALGORITHMS, SGD
from fairbound.benchmark import fingerprint
from fairbound.benchmark.custom_algorithm import load_custom_algorithm
from fairbound.benchmark.fingerprint import checksum, code_hash, hash_of_sources, key

PACKAGE = Path(fairbound.__file__).parent
FEW = examples(max_examples=50, deadline=None)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)
SETTINGS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


# Settings


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same settings, entries in another order, lists as tuples."""
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {name: shuffled(entry, rng) for name, entry in items}
    return tuple(shuffled(entry, rng) for entry in value) if isinstance(value, list) else value


@FEW
@given(SETTINGS, st.randoms(use_true_random=False))
def test_key_does_not_depend_on_order(settings: Any, rng: random.Random) -> None:
    assert key(shuffled(settings, rng)) == key(settings)


@FEW
@given(VALUES, VALUES)
def test_one_value_is_enough_for_another_key(a: Any, b: Any) -> None:
    assert (key({"tau": a}) == key({"tau": b})) == (repr(shuffled(a, Unmoved())) == repr(shuffled(b, Unmoved())))


class Unmoved(random.Random):
    """Entries in the order of their names."""

    def shuffle(self, x: Any) -> None:
        x.sort()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (0.1, 0.1 + 2**-56),
        (1, True),
        (0, False),
        (0, None),
        (1, "1"),
        ([1, [2]], [[1], 2]),
        ([], {}),
        (2**53, 2**53 + 1),
        ("é", "e\u0301"),
    ],
)
def test_close_values_have_different_keys(a: Any, b: Any) -> None:
    assert key({"x": a}) != key({"x": b})


def test_the_key_is_that_of_canonical_json() -> None:
    """Written out: stored names must not change with the code that makes them."""
    settings = {"b": (1.0, 0.1), "a": {"z": None, "y": True}, "d": 7, "é": "ü"}
    text = '{"a":{"y":true,"z":null},"b":[1.0,0.1],"d":7,"\\u00e9":"\\u00fc"}'
    assert key(settings) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("value", [[0.1, float("inf")], float("nan"), np.zeros(2), {1, 2}, Path("a")])
def test_settings_without_one_form_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="settings are finite numbers, text, truth values"):
        key({"x": value})


def test_names_do_not_depend_on_the_process() -> None:
    """Without what the package's __init__ imports (torch takes seconds)."""
    code = """
import sys, types
import numpy as np
from pathlib import Path
package = Path(sys.argv[1])
sys.modules["fairbound"] = types.ModuleType("fairbound")
sys.modules["fairbound"].__path__ = [str(package)]
from fairbound.benchmark.fingerprint import checksum, hash_of_sources, key
print(key({"b": 1, "a": 2.5}), checksum({"n": np.arange(3)}), hash_of_sources(package, package / "algorithms/sgd.py"))
"""
    ours = f"{key({'b': 1, 'a': 2.5})} {checksum({'n': np.arange(3)})} {code_hash(SGD)}"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(PACKAGE)],
            capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.strip() == ours


# Data


def test_checksum_is_written_out_once() -> None:
    """A platform of another order of bytes must find these very bytes."""
    arrays = {"n": np.array([1, -2], dtype=">i4"), "x": np.array([0.5], dtype=">f4")}
    n = b'["n", "<i4", [2]]' + bytes.fromhex("01000000 feffffff")
    x = b'["x", "<f4", [1]]' + bytes.fromhex("0000003f")
    assert checksum(arrays) == hashlib.sha256(n + x).hexdigest()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        (np.arange(4)[::-1], np.array([3, 2, 1, 0])),
    ],
)
def test_checksum_sees_values_and_not_their_place_in_memory(a: np.ndarray, b: np.ndarray) -> None:
    assert checksum({"x": a}) == checksum({"x": b})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.array([1, 2]), np.array([2, 1])),
        (np.array([1, 2]), np.array([1.0, 2.0])),
        (np.array([0, 1]), np.array([False, True])),
        (np.zeros(6), np.zeros((2, 3))),
        (np.array([0.1]), np.array([0.1 + 2**-56])),
    ],
)
def test_checksum_sees_every_difference(a: np.ndarray, b: np.ndarray) -> None:
    assert checksum({"x": a}) != checksum({"x": b})
    assert checksum({"x": a}) != checksum({"y": a})
    assert checksum({"x": a, "y": b}) != checksum({"y": b, "x": a})


def test_checksum_sees_one_value_of_a_million() -> None:
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=10**6), "n": rng.integers(0, 9, 10**6)}
    first = checksum(columns)
    columns["n"][777_777] += 1
    assert checksum(columns) != first


# Code

METHODS = {name: Path(sys.modules[method.__module__].__file__ or "").name for name, method in ALGORITHMS.items()}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package's sources in another place."""
    package = tmp_path / "elsewhere"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.csv"))
    return package


def moved(package: Path) -> set[str]:
    """The methods whose results this package would call older."""
    return {
        name
        for name, method in ALGORITHMS.items()
        if hash_of_sources(package, package / "algorithms" / METHODS[name]) != code_hash(method)
    }


def append(name: str, text: str) -> Callable[[Path], None]:
    def change(package: Path) -> None:
        with (package / name).open("a") as file:
            file.write(text)

    return change


def add_method(package: Path) -> None:
    """A file, and its entry in the registry."""
    sgd = (package / "algorithms" / "sgd.py").read_text()
    (package / "algorithms" / "new.py").write_text(sgd.replace("class SGD(", "class New("))
    append("algorithms/__init__.py", '\nfrom fairbound.algorithms.new import New\nALGORITHMS["New"] = New\n')(package)


def with_windows_line_endings(package: Path) -> None:
    for path in package.rglob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def with_other_docstrings(package: Path) -> None:
    path = package / "core.py"
    path.write_text(path.read_text().replace('"""', '"""Another word. ', 1).replace("  # ", "  # Indeed: "))


@pytest.mark.parametrize(
    "change",
    [
        lambda package: None,
        with_windows_line_endings,
        with_other_docstrings,
        append("training/runner.py", "\n# a comment\n\n"),
        add_method,
        lambda package: (package / "benchmark" / "new_plot.py").write_text("import matplotlib\n"),
        append("benchmark/plots.py", "\nnew = 1\n"),
        append("benchmark/tables.py", "\nnew = 1\n"),
        append("benchmark/report.py", "\nnew = 1\n"),
        append("benchmark/study.py", "\nnew = 1\n"),
        append("cli/app.py", "\nnew = 1\n"),
        append("integrations/torch/constrained.py", "\nnew = 1\n"),
        lambda package: (package / "cli" / "new.py").write_text("new = 1\n"),
    ],
)
def test_what_decides_no_result_moves_no_name(copy: Path, change: Callable[[Path], None]) -> None:
    change(copy)
    assert moved(copy) == set()


@pytest.mark.parametrize(
    "name",
    ["core.py", "training/runner.py", "training/problem.py", "data/splits.py", "data/samplers.py", "metrics/counts.py",
     "benchmark/task.py", "benchmark/measuring.py", "benchmark/problems/table.py", "_utils/rng.py"],
)  # fmt: skip
def test_a_file_that_every_run_imports_moves_every_name(copy: Path, name: str) -> None:
    append(name, "\nnew = 1\n")(copy)
    assert moved(copy) == set(ALGORITHMS)


def test_a_file_of_one_method_moves_the_names_of_that_method(copy: Path) -> None:
    append("algorithms/ssl_alm.py", "\nnew = 1\n")(copy)
    assert moved(copy) == {"SSLALM"}
    append("algorithms/_subproblems/nnqp.py", "\nnew = 1\n")(copy)  # imported by what Ghost imports
    assert moved(copy) == {"SSLALM", "StochasticGhost", "TrackedSQP", "SQPAdam", "LevelConstrained"}


def test_every_source_is_needed(copy: Path) -> None:
    (copy / "data" / "splits.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no data/splits\.py, .*install fairbound again"):
        moved(copy)


def test_what_is_decided_elsewhere_exists_and_is_imported() -> None:
    sources = fingerprint.deciding_sources(PACKAGE, PACKAGE / "algorithms" / "sgd.py")
    for name in fingerprint.DECIDED_ELSEWHERE:
        assert (PACKAGE / name).exists()
        assert name not in sources
        assert any(Path(name).stem in code for code in sources.values()), name


def test_a_method_of_the_users_own_counts_with_what_it_imports(tmp_path: Path) -> None:
    text = """
from dataclasses import dataclass
from fairbound import SSLALM

@dataclass(frozen=True, kw_only=True)
class Mine(SSLALM):
    eta: float = {}
"""
    mine, other = tmp_path / "mine.py", tmp_path / "moved.py"
    mine.write_text(text.format(0.1))
    other.write_text("# a comment\n" + text.format(0.1))
    first, second = (load_custom_algorithm(f"{path}:Mine").method for path in (mine, other))
    assert code_hash(first) == code_hash(second) != code_hash(ALGORITHMS["SSLALM"])
    assert {"", "algorithms/ssl_alm.py"} <= set(fingerprint.deciding_sources(PACKAGE, mine))
    assert "algorithms/penalty.py" not in fingerprint.deciding_sources(PACKAGE, mine)
    mine.write_text(text.format(0.2))
    assert code_hash(load_custom_algorithm(f"{mine}:Mine").method) != code_hash(second)


def test_only_comments_docstrings_and_blank_lines_are_left_out() -> None:
    text = 'X = "a # b"  # why\n\n\ndef f(a: str = "é") -> str:\n    """Doc\n    more."""\n    # why\n'
    text += '    return f"{a} # {X}" "c"\n'
    kept = 'X = "a # b"\ndef f(a: str = "é") -> str:\n    return f"{a} # {X}" "c"'
    assert fingerprint.statements(text) == kept
