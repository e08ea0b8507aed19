"""Names made from content: of settings, of data and of code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PACKAGE = Path(__file__).parents[1]


def key(settings: Mapping[str, Any]) -> str:
    """The name of the result with these settings: SHA-256 of their canonical JSON.

    >>> key({"tau": 0.1, "sizes": (8, 8)}) == key({"sizes": [8, 8], "tau": 0.1})
    True
    """
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Checksum of data: names and order of the arrays, their types, shapes and values, whatever the
    platform's order of bytes.

    >>> ages = [30, 40]
    >>> checksum({"AGEP": np.array(ages, dtype=">i2")}) == checksum(
    ...     {"AGEP": np.array(ages, dtype="<i2")}
    ... )
    True
    """
    digest = hashlib.sha256()
    for name, array in arrays.items():
        dtype = array.dtype.newbyteorder("<")
        digest.update(json.dumps([name, dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
    return digest.hexdigest()


@cache
def code_hash() -> str:
    """Hash of all source files of fairbound: what stands beside a result says by which code it was
    computed."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()} {file_hash(path)}\n".encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Hash of a text file, whatever its line endings."""
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()


def canonical_json(settings: Mapping[str, Any], *, finite: bool = True) -> str:
    try:
        return json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=not finite)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "settings are finite numbers, text, truth values, None, and lists and mappings of"
            f" these: {error}"
        ) from error
