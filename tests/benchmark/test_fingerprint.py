"""Names made from content: settings, data and code."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import fairbound
from fairbound.benchmark import _fingerprint as fingerprint
from fairbound.benchmark._fingerprint import checksum, code_hash, key

PACKAGE = Path(fairbound.__file__).parent
FEW = examples(max_examples=50, deadline=None)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
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
    assert (key({"tau": a}) == key({"tau": b})) == (
        repr(shuffled(a, Unmoved())) == repr(shuffled(b, Unmoved()))
    )


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


@pytest.mark.parametrize(
    "value", [[0.1, float("inf")], float("nan"), np.zeros(2), {1, 2}, Path("a")]
)
def test_settings_without_one_form_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="finite numbers, text"):
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
from fairbound.benchmark._fingerprint import checksum, code_hash, key
print(key({"b": 1, "a": 2.5}), checksum({"n": np.arange(3)}), code_hash())
"""
    ours = f"{key({'b': 1, 'a': 2.5})} {checksum({'n': np.arange(3)})} {code_hash()}"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(PACKAGE)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
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


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's sources in another place, whose hash is asked for."""
    package = tmp_path / "elsewhere"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.csv"))
    monkeypatch.setattr(fingerprint, "_PACKAGE", package)
    return package


def test_the_same_sources_elsewhere_have_the_same_hash(copy: Path) -> None:
    for path in copy.rglob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert code_hash.__wrapped__() == code_hash()


@pytest.mark.parametrize("name", ["core.py", "algorithms/_ssl_alm.py", "benchmark/new.py"])
def test_an_edited_or_new_file_is_other_code(copy: Path, name: str) -> None:
    with (copy / name).open("a") as file:
        file.write("\nnew = 1\n")
    assert code_hash.__wrapped__() != code_hash()
