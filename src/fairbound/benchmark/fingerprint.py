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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKAGE = Path(__file__).parents[1]
ROOT = "benchmark/task.py"  # it computes results: whatever it imports decides them, and what that imports, but for
DECIDED_ELSEWHERE = (  # files whose outcome is in the name already (settings, checksum of the data), or which have none
    "benchmark/custom_algorithm.py",
    "benchmark/entry.py",
    "benchmark/environment.py",
    "benchmark/fingerprint.py",
    "benchmark/result_file.py",
    "benchmark/user_files.py",
    "data/sources.py",
    "data/table.py",
    "training/contract.py",
)


def key(settings: Mapping[str, Any]) -> str:
    """The name of the result with these settings: SHA-256 of their canonical JSON.

    >>> key({"tau": 0.1, "sizes": (8, 8)}) == key({"sizes": [8, 8], "tau": 0.1})
    True
    """
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Of data: names and order of the arrays, their types, shapes and values, whatever the platform's order of bytes.

    >>> ages = [30, 40]
    >>> checksum({"AGEP": np.array(ages, dtype=">i2")}) == checksum({"AGEP": np.array(ages, dtype="<i2")})
    True
    """
    digest = hashlib.sha256()
    for name, array in arrays.items():
        dtype = array.dtype.newbyteorder("<")
        digest.update(json.dumps([name, dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
    return digest.hexdigest()


def code_hash(method: type[Any], *others: Path) -> str:
    """Of the code that computes a method's results: its own file, ROOT, others, and all that these import of ours.

    Imports are followed through the source: no file can be forgotten, and another method, a plot or a command changes
    nothing. Comments, docstrings and blank lines do not count.

    >>> from fairbound.algorithms import SGD, SSLALM
    >>> code_hash(SGD) == code_hash(SGD), code_hash(SGD) == code_hash(SSLALM)
    (True, False)
    """
    return hash_of_sources(PACKAGE, Path(str(sys.modules[method.__module__].__file__)), *others)


def hash_of_sources(package: Path, method: Path, *others: Path) -> str:
    """The same for a package in any place; `method` and the others are files of it, or the user's."""
    digest = hashlib.sha256()
    for name, code in sorted(deciding_sources(package, method, *others).items()):
        digest.update(json.dumps([name, len(code)]).encode() + code.encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Of the statements of a user's file."""
    return hashlib.sha256(statements(path.read_text(encoding="utf-8")).encode()).hexdigest()


def deciding_sources(package: Path, method: Path, *others: Path) -> dict[str, str]:
    """The code that decides a method's results, by file name in the package.

    A method of the user's has no name, a further file of the user's has a number: where they lie decides nothing.
    """
    found: dict[str, str] = {}
    own = {method: "", **{path: str(number) for number, path in enumerate(others, 1) if path != method}}
    waiting = [package / ROOT, method, *others]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(package).as_posix() if path.is_relative_to(package) else own[path]
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


def canonical_json(settings: Mapping[str, Any], *, finite: bool = True) -> str:
    try:
        return json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=not finite)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"settings are finite numbers, text, truth values, None, and lists and mappings of these: {error}"
        ) from error
