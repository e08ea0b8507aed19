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


class Compiler:
    """torch.compile for functions that are always called with the same shapes.

    Dynamo keeps its compilations at the code object, up to a limit beyond which it silently goes on uncompiled. All
    stacks would share one code object, that of vmap's wrapper, with each other and with whatever else the process
    compiles. So every key has a code object of its own, where runs of the same method find what was compiled before;
    and the limit is lifted for the first call, in which the compilation happens.

    Where the first call fails (a compiler that cannot build), a run that did not ask for compilation goes on without.
    """

    def __init__(self, forced: bool) -> None:
        self.forced = forced
        self.failure = ""  # why a function could not be compiled

    def __call__(self, function: Callable[..., Any], key: Hashable) -> Callable[..., Any]:
        call = _calling(function)
        call.__code__ = _own_code(key)
        fast = torch.compile(call, dynamic=False)
        chosen: Callable[..., Any] | None = None

        def first_or_chosen(*args: Any) -> Any:
            nonlocal chosen
            if chosen is not None:
                return chosen(*args)
            result, chosen = self._first(fast, function, args)
            return result

        return first_or_chosen

    def _first(self, fast: Callable[..., Any], slow: Callable[..., Any], args: Any) -> tuple[Any, Callable[..., Any]]:
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        try:
            with torch._dynamo.config.patch({limit: 10_000, f"accumulated_{limit}": 10_000}):
                return fast(*args), fast
        except Exception as error:
            result = slow(*args)  # an error of the method itself is raised here, in its own words
            if self.forced:
                raise
            self.failure = f"not compiled: torch.compile failed ({type(error).__name__}); compile=True shows why"
            log.warning(self.failure)
            return result, slow


def _calling(function: Callable[..., Any]) -> FunctionType:
    def call(*args: Any) -> Any:
        return function(*args)

    return call  # type: ignore[return-value]


@cache
def _own_code(key: Hashable) -> CodeType:
    return _calling(len).__code__.replace()
