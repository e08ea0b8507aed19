"""Whether and how `run` uses torch.compile."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger("fairbound")

LONG = 10_000  # steps from which compiling pays: it takes 10 to 40 s and saves 2 to 15 ms a step (9-64-32-1 net)


def decide(wish: bool | None, steps: int) -> tuple[bool, str]:
    """Whether to compile, and one line that says so."""
    if wish is False:
        return False, "not compiled, as asked"
    if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("cl")):
        note = "not compiled: no C++ compiler was found (install g++ for runs several times faster)"
        log.log(logging.WARNING if wish or steps >= LONG else logging.INFO, note)
        return False, note
    if wish is None and steps < LONG:
        note = f"not compiled: {steps} steps are too few to pay for it (compile=True forces it)"
        log.info(note)
        return False, note
    return True, "compiled with torch.compile"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile for a function that is always called with the same shapes.

    All stacks share the code object of vmap's wrapper, so a benchmark of many methods meets dynamo's limit on
    versions of one function and would silently go on uncompiled. The limit is lifted for the first call, in which the
    compilation happens.
    """
    fast = torch.compile(function, dynamic=False)
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    compiled_already = False

    def call(*args: Any) -> Any:
        nonlocal compiled_already
        if compiled_already:
            return fast(*args)
        with torch._dynamo.config.patch({limit: 10_000, f"accumulated_{limit}": 10_000}):
            result = fast(*args)
        compiled_already = True
        return result

    return call
