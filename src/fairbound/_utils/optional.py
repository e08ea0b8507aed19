"""Optional packages: loaded where they are used, and a sentence that says what to install where
they are not."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def need(module: str, extra: str, purpose: str) -> Any:
    """The module, or an ImportError with the command that installs it.

    >>> need("math", "data", "Arithmetic").pi > 3
    True
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"{purpose} needs {package}, which is not installed: pip install 'fairbound[{extra}]'"
        ) from error
