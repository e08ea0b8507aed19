"""Whether and how `run` uses torch.compile."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Hashable
from functools import cache
from types import CodeType, FunctionType
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


def compiled(function: Callable[..., Any], key: Hashable) -> Callable[..., Any]:
    """torch.compile for a function that is always called with the same shapes; `key` tells which functions are alike.

    Dynamo keeps its compilations at the code object, up to a limit beyond which it silently goes on uncompiled. All
    stacks would share one code object, that of vmap's wrapper, with each other and with whatever else the process
    compiles. So every key has a code object of its own, where runs of the same method find what was compiled before;
    and the limit is lifted for the first call, in which the compilation happens.
    """
    call = _calling(function)
    call.__code__ = _own_code(key)
    fast = torch.compile(call, dynamic=False)
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    started = False

    def first_call_lifts_the_limit(*args: Any) -> Any:
        nonlocal started
        if started:
            return fast(*args)
        with torch._dynamo.config.patch({limit: 10_000, f"accumulated_{limit}": 10_000}):
            result = fast(*args)
        started = True
        return result

    return first_call_lifts_the_limit


def _calling(function: Callable[..., Any]) -> FunctionType:
    def call(*args: Any) -> Any:
        return function(*args)

    return call  # type: ignore[return-value]


@cache
def _own_code(key: Hashable) -> CodeType:
    return _calling(len).__code__.replace()
