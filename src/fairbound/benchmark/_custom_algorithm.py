"""A method of the user's own: `my_file.py:MyMethod`, or `my_file.py:MyMethod(tau=0.1)`.

The file is loaded by its path, alone: it need not be installed, and what stands beside it is not
found. The method is a subclass of `fairbound.core.Algorithm` and a frozen dataclass with a default
for every field.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fairbound._utils.modules import line_of, load_module
from fairbound._utils.sentences import did_you_mean
from fairbound.core import Algorithm
from fairbound.training._contract import (
    DECORATOR,
    ContractError,
    check_contract,
    check_declarations,
)

BASE = "fairbound.core.Algorithm"
_FORM = (
    "a method of your own is named FILE:CLASS, such as my_file.py:MyMethod or"
    " my_file.py:MyMethod(tau=0.1)"
)
TEXT = re.compile(r"(?P<path>.+):\s*(?P<name>[^\W\d]\w*)\s*(?P<settings>\(.*\))?\s*")


@dataclass(frozen=True)
class CustomAlgorithm:
    """A method of the user's own."""

    name: str  # of its row: the class, with the settings that were named
    path: Path
    method: type[Algorithm[Any]]
    settings: Mapping[str, float | bool]  # those that were named; the others have their defaults


def load_custom_algorithm(text: str) -> CustomAlgorithm:
    """The method that `my_file.py:MyMethod(tau=0.1)` names; the settings, numbers or truth values,
    are optional."""
    found = TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{_FORM}; got {text!r}{_methods_of(Path(text.strip()).expanduser())}")
    path, name = Path(found["path"]).expanduser(), found["name"]
    method = _class(load_module(path, _FORM), name, path)
    settings = _settings(method, found["settings"] or "()", f"{path.name}:{name}")
    shown = ", ".join(f"{key}={value}" for key, value in settings.items())
    custom = CustomAlgorithm(f"{name}({shown})" if shown else name, path, method, settings)
    _refuse_unbuildable(custom)
    return custom


def _methods_of(path: Path) -> str:
    """What a file has to choose from, where it alone was named."""
    if path.suffix != ".py" or not path.is_file():
        return ""
    module = load_module(path)
    found = [f"{path}:{name}" for name, one in vars(module).items() if _is_method(one, module)]
    return (
        f"; write {' or '.join(found)}"
        if found
        else f", which has no class that derives from {BASE}"
    )


def _is_method(one: Any, module: ModuleType) -> bool:
    return (
        isinstance(one, type) and issubclass(one, Algorithm) and one.__module__ == module.__name__
    )


# The class ----------------------------------------------------------------------------------------


def _class(module: ModuleType, name: str, path: Path) -> type[Algorithm[Any]]:
    if not hasattr(module, name):
        written = [key for key, value in vars(module).items() if _is_method(value, module)]
        raise ValueError(f"{path} has no {name!r}; {did_you_mean(name, written)}")
    method = getattr(module, name)
    if not (isinstance(method, type) and issubclass(method, Algorithm)):
        raise ValueError(
            f"{path}: {name} is {method!r}; a method is a class that derives from {BASE}"
        )
    missing = sorted(method.__abstractmethods__)
    if missing:
        raise ValueError(
            f"{path}: {name} does not define {' and '.join(missing)}, as every Algorithm does"
        )
    _refuse_unless_settings(method, path)
    return method


def _refuse_unless_settings(method: type[Algorithm[Any]], path: Path) -> None:
    """Hyper-parameters are the fields of a frozen dataclass: runs that differ in them are computed
    together."""
    if not is_dataclass(method):
        raise ValueError(
            f"{path}: {method.__name__} is not a frozen dataclass; write {DECORATOR} above it"
        )
    for field in fields(method):
        if field.init and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(
                f"{path}: the field {field.name!r} of {method.__name__} has no default; give it"
                f" one, such as {field.name}: float = 0.1"
            )
        if field.default.__hash__ is None or field.default_factory is not MISSING:
            raise ValueError(
                f"{path}: the default of {field.name!r} of {method.__name__} must be a number, a"
                " truth value, text, a schedule or a tuple of those: runs are grouped by it"
            )


def _settings(method: type[Algorithm[Any]], text: str, place: str) -> dict[str, float | bool]:
    """Parse settings such as `(tau=0.1, reuse=True)`."""
    try:
        call = ast.parse(f"_{text}", mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"{place}: {text} is not a list of settings as (tau=0.1, eta=0.5): {error.msg}"
        ) from error
    if (
        not isinstance(call, ast.Call)
        or call.args
        or any(keyword.arg is None for keyword in call.keywords)
    ):
        raise ValueError(f"{place}: settings are named, such as (tau=0.1, eta=0.5); got {text}")
    defaults = {field.name: field.default for field in fields(method) if field.init}  # type: ignore[arg-type]
    settings: dict[str, float | bool] = {}
    for keyword in call.keywords:
        name = str(keyword.arg)
        if name not in defaults:
            raise ValueError(f"{place} has no setting {name!r}; {did_you_mean(name, defaults)}")
        if name in settings:
            raise ValueError(f"{place}: {name} is given twice in {text}")
        settings[name] = _number(keyword.value, f"{place}: {name}", like=defaults[name])
    return settings


def _number(node: ast.expr, place: str, like: Any) -> float | bool:
    """A whole number where the default is a float becomes one: floats stack, whole numbers do
    not."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = ast.unparse(node)
    if not isinstance(value, bool | int | float):
        raise ValueError(f"{place} must be a number, True or False, got {ast.unparse(node)}")
    return float(value) if isinstance(like, float) and not isinstance(value, bool) else value


def _refuse_unbuildable(custom: CustomAlgorithm) -> None:
    """The method itself checks the ranges of its settings; then the contract is checked. No step is
    taken."""
    try:
        made = custom.method(**custom.settings)
    except Exception as error:
        raise ValueError(f"{custom.path}: {custom.name} cannot be made: {error}") from error
    try:
        check_declarations(made, "--algorithm")
    except ContractError as error:
        raise ValueError(f"{custom.path}: {error}") from error


def tried_algorithm(text: str) -> CustomAlgorithm:
    """The same after a step of it on a small problem: a method of whoever runs the command, never
    one that was sent."""
    custom = load_custom_algorithm(text)
    try:
        check_contract(custom.method(**custom.settings), "--algorithm")
    except ContractError as error:
        raise ValueError(f"{custom.path}: {error}") from error
    except ValueError:  # it refuses the problem of the trial, and would say so of another
        return custom
    except Exception as error:
        line = line_of(error, str(custom.path.resolve()))
        raise ValueError(
            f"{custom.path}, line {line}: a first step of {custom.name} raised"
            f" {type(error).__name__}: {error}"
        ) from error
    return custom
