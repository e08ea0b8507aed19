"""A Python file of the user's own as a module."""

from __future__ import annotations

import hashlib
import sys
import traceback
from pathlib import Path
from types import ModuleType


def load_module(path: Path, form: str = "") -> ModuleType:
    """The file as a module whose name is made from its place and content.

    So the same file is the same class, also in another process that has loaded it, and a changed
    one is another class.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no file {path} (seen from {Path.cwd()}); {form}"
        ) from error
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror}); {form}") from error
    place = str(path.resolve())
    name = "fairbound_custom_" + hashlib.sha256(place.encode() + b"\n" + text).hexdigest()[:16]
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)  # dataclasses need their module
        module.__file__ = place
        _execute(module, text, path)
    return sys.modules[name]


def _execute(module: ModuleType, text: bytes, path: Path) -> None:
    """The text that was read: Python's own loader may take an older version from its cache."""
    try:
        exec(compile(text, str(module.__file__), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        place = f"{path}, line {line_of(error, str(module.__file__))}"
        raise ImportError(
            f"{place}: the file cannot be loaded: {type(error).__name__}: {message}"
        ) from error


def line_of(error: BaseException, file: str) -> int | str:
    """Line of the user's file where it broke."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    if not lines and isinstance(error, SyntaxError):
        return error.lineno or "?"
    return lines[-1] or "?" if lines else "?"
