"""Names made from content: of settings, of data, and of the code that decides results."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import sys
import tokenize
from collections.abc import Mapping
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKAGE = Path(__file__).parents[1]
ROOT = "benchmark/executor.py"  # it computes results: whatever it imports decides them, and what that imports, but for
DECIDED_ELSEWHERE = (  # files whose outcome is in the name already (settings, checksum of the data), or which have none
    "benchmark/config.py",
    "benchmark/custom_algorithm.py",
    "benchmark/fingerprint.py",
    "benchmark/result_file.py",
    "benchmark/store.py",
    "data/sources.py",
    "data/table.py",
)

Column = NDArray[Any]  # (rows, ...): numbers, truth values or text


def key(settings: Mapping[str, Any]) -> str:
    """The name of the result with these settings: SHA-256 of their canonical JSON.

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


def code_hash(method: type[Any]) -> str:
    """Of the code that decides a method's results: its own file, `ROOT`, and all that these import of ours.

    Imports are followed through the source: no file can be forgotten, and another method, a plot or a command changes
    nothing. Comments, docstrings and blank lines do not count.

    >>> from fairbound.algorithms import SGD, SSLALM
    >>> code_hash(SGD) == code_hash(SGD), code_hash(SGD) == code_hash(SSLALM)
    (True, False)
    """
    return hash_of_sources(PACKAGE, Path(str(sys.modules[method.__module__].__file__)))


def hash_of_sources(package: Path, method: Path) -> str:
    """The same for a package in any place; `method` is a file of it, or one of the user's."""
    digest = hashlib.sha256()
    for name, code in sorted(deciding_sources(package, method).items()):
        digest.update(json.dumps([name, len(code)]).encode() + code.encode())
    return digest.hexdigest()


def deciding_sources(package: Path, method: Path) -> dict[str, str]:
    """The code that decides a method's results, by file name in the package; a file of the user's has no name."""
    found: dict[str, str] = {}
    waiting = [package / ROOT, method]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(package).as_posix() if path.is_relative_to(package) else ""
        if name in found or name in DECIDED_ELSEWHERE:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{package} has no {name}, so results cannot be named; install fairbound again"
            ) from error
        found[name] = statements(text)
        waiting += [_source(package, *one) for one in _imports(text, ".".join(("fairbound", *Path(name).parts[:-1])))]
    return found


@cache
def statements(text: str) -> str:
    """A source without comments, docstrings (any text that stands alone) and blank lines.

    >>> statements("x = 1  # one\\n\\n'why'\\nif x:\\n    y = 2\\n")
    'x = 1\\nif x:\\n    y = 2'
    """
    lines = text.splitlines()
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type != tokenize.NL]
    starts = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)
    for i in reversed(range(len(tokens))):  # from the end: what is cut moves nothing that is still to be cut
        token = tokens[i]
        alone = token.type == tokenize.STRING and tokens[i + 1].type == tokenize.NEWLINE
        if token.type == tokenize.COMMENT or (alone and (i == 0 or tokens[i - 1].type in starts)):
            (first, begin), (last, end) = token.start, token.end
            lines[first - 1 : last] = [lines[first - 1][:begin] + lines[last - 1][end:]]
    return "\n".join(line.rstrip() for line in lines if line.strip())


@cache
def _imports(text: str, home: str) -> list[tuple[str, str]]:
    """The modules of ours that a source in the package `home` imports, and the names that it takes from them."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = home.split(".")[: 1 - node.level or None] if node.level else []
            found += [(".".join([*above, *filter(None, [node.module])]), alias.name) for alias in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == "fairbound"]


def _source(package: Path, module: str, name: str) -> Path:
    """The file that defines a name; where the `__init__` of a package only passes it on, the file it comes from."""
    folder = package.joinpath(*module.split(".")[1:])
    if (folder / f"{name}.py").exists():
        return folder / f"{name}.py"
    if not (folder / "__init__.py").exists():
        return folder.with_suffix(".py")
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    for origin, passed_on in _imports(text, module):
        if passed_on == name:
            return _source(package, origin, name)
    on_first_use = re.search(rf'^ +"{name}": "([\w.]+)"', text, re.MULTILINE)  # "SGD": "algorithms"
    return _source(package, f"{module}.{on_first_use[1]}", name) if on_first_use else folder / "__init__.py"


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
