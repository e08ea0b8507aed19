"""Names made from content: of settings, of data, and of the code that decides results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What decides results, relative to the package. The data count by their checksum, so loaders are not here.
DECIDING = (
    "core.py",
    "algorithms/**/*.py",
    "subproblems/**/*.py",
    "schedules.py",
    "problem.py",
    "sampling.py",
    "streams.py",
    "trees.py",
    "modules.py",
    "stacking.py",
    "recorded.py",
    "stepping.py",
    "chunked.py",
    "runner.py",
    "single.py",
    "eager.py",
    "compiling.py",
    "replaying.py",
    "fairness/cells.py",
    "fairness/constraints.py",
    "fairness/contrasts.py",
    "fairness/counts.py",
    "fairness/groups.py",
    "fairness/intervals.py",
    "fairness/limits.py",
    "fairness/notions.py",
    "fairness/regularizers.py",
    "fairness/scores.py",
    "fairness/values.py",
    "data/dataset.py",
    "data/splits.py",
    "data/encoding.py",
    "data/outcomes.py",
    "bench/evaluate.py",
    "bench/execute.py",
    "bench/recording.py",
    "bench/setting.py",
)

Column = NDArray[Any]  # (rows, ...): numbers, truth values or text


def key(settings: Mapping[str, Any]) -> str:
    """The name of the cell with these settings: SHA-256 of their canonical JSON.

    The order of entries does not matter, a tuple is a list, and numbers count by their value:

    >>> key({"tau": 1, "sizes": (8, 8)}) == key({"sizes": [8, 8], "tau": 1.0})
    True
    >>> key({"tau": float("nan")})
    Traceback (most recent call last):
    ValueError: settings.tau is nan; a setting that decides results is finite
    """
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def checksum(columns: Mapping[str, Column]) -> str:
    """Of data: names and order of columns, shapes and values, whatever the platform's widths and order of bytes.

    >>> ages = [30, 40]
    >>> checksum({"AGEP": np.array(ages, dtype=">i2")}) == checksum({"AGEP": np.array(ages)})
    True
    """
    digest = hashlib.sha256()
    for name, column in columns.items():
        column = np.asarray(column)
        kind, parts = _portable(column, name)
        digest.update(json.dumps([name, kind, column.shape]).encode())
        for part in parts:
            digest.update(part)
    return digest.hexdigest()


def code_hash(*own: Path | str) -> str:
    """Of the source files that decide results, wherever they are installed; and of a user's `own`, by their content.

    >>> code_hash() == code_hash()
    True
    """
    return hash_of_sources(Path(__file__).parents[1], own)


def hash_of_sources(package: Path, own: Iterable[Path | str] = ()) -> str:
    sources: list[tuple[str, Path]] = []
    for pattern in DECIDING:
        found = sorted((path.relative_to(package).as_posix(), path) for path in package.glob(pattern))
        if not found:
            raise FileNotFoundError(f"{package} has no {pattern}, so results cannot be named; install fairbound again")
        sources += found
    digest = hashlib.sha256()
    for name, path in (*sources, *(("", Path(path)) for path in own)):
        text = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        digest.update(json.dumps([name, len(text)]).encode() + text)
    return digest.hexdigest()


def canonical_json(settings: Mapping[str, Any]) -> str:
    return json.dumps(_canonical(settings, "settings"), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _canonical(value: Any, where: str) -> Any:
    """The same in JSON's own types, a float with a whole value as an integer; what has no one form is refused."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{where} is {value}; a setting that decides results is finite")
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [_canonical(entry, f"{where}[{i}]") for i, entry in enumerate(value)]
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"{where} has the entry {name!r}; settings are named with text, write {str(name)!r}")
        return {str(name): _canonical(entry, f"{where}.{name}") for name, entry in value.items()}
    raise ValueError(
        f"{where} is a {type(value).__name__}; settings are numbers, text, truth values, None, and lists and "
        "mappings of these"
    )


def _portable(column: Column, name: str) -> tuple[str, list[bytes | memoryview]]:
    """What a column is, and its values as bytes that are the same everywhere."""
    kind, size = column.dtype.kind, column.dtype.itemsize
    if kind == "b":
        return "b", [_bytes_of(column, "u1")]
    if kind == "i" or (kind == "u" and size < 8):  # the width of an integer is the platform's choice
        return "i", [_bytes_of(column, "<i8")]
    if kind == "u":
        return "u", [_bytes_of(column, "<u8")]
    if kind in "mM":
        return column.dtype.str[1:], [_bytes_of(column, "<i8")]  # with its unit
    if kind == "f" and size <= 8:
        missing = np.isnan(column)  # NaN has many bit patterns, and processors disagree on which
        return f"f{size}", [_bytes_of(np.where(missing, np.nan, column) if missing.any() else column, f"<f{size}")]
    if kind in "UO":
        return "text", _text_bytes(column, name)
    raise ValueError(f"column {name!r} holds {column.dtype}, which has no checksum; make it numbers or text")


def _bytes_of(column: Column, dtype: str) -> memoryview:
    flat: Column = np.ascontiguousarray(column.astype(dtype, copy=False)).reshape(-1)
    return flat.view(np.uint8).data


def _text_bytes(column: Column, name: str) -> list[bytes | memoryview]:
    """Text, and the truth values and None that a column of a Table may hold: type, length and text of each entry."""
    codes: dict[type, int] = {str: 0, type(None): 1, bool: 2}
    values = column.reshape(-1).tolist()
    unknown = set(map(type, values)) - set(codes)
    if unknown:
        shown = ", ".join(sorted(kind.__name__ for kind in unknown))
        raise ValueError(f"column {name!r} holds objects of type {shown}; make the table with read_table")
    texts = list(map(str, values))
    lengths = np.fromiter(map(len, texts), dtype="<i8", count=len(texts))
    return [
        bytes(map(codes.__getitem__, map(type, values))),
        lengths.view(np.uint8).data,
        "".join(texts).encode("utf-8", "surrogatepass"),
    ]
