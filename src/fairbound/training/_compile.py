"""Whether and how `run` compiles its steps: traced once into a graph of plain tensor operations,
built by inductor."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

_log = logging.getLogger("fairbound")

# steps from which compiling pays: it takes 5 to 15 s and saves 5 to 20 ms a step (9-64-32-1 net)
LONG = 2_000
LONG_WITH_RANDOM_SIZES = 300  # it takes 20 to 40 s and saves 100 ms a step


def choose_compilation(
    requested: bool | None, steps: int, random_sizes: bool = False
) -> tuple[bool, str]:
    """Whether to compile, and one line that says so."""
    long = LONG_WITH_RANDOM_SIZES if random_sizes else LONG
    if requested is False:
        return False, "not compiled, as asked"
    if not (
        os.environ.get("CXX")
        or shutil.which("g++")
        or shutil.which("clang++")
        or shutil.which("cl")
    ):
        note = "not compiled: no C++ compiler was found (install g++ for runs several times faster)"
        _log.log(logging.WARNING if requested or steps >= long else logging.INFO, note)
        return False, note
    if requested is None and steps < long:
        note = f"not compiled: {steps} steps are too few to pay for it (compile=True forces it)"
        _log.info(note)
        return False, note
    return True, "compiled"


class Compiler:
    """Compiles functions that are always called with tensors of the same shapes, and depend on
    nothing else.

    A function's operations on its arguments are traced once (`make_fx`), and inductor compiles the
    trace to machine code. Unlike `torch.compile` this parses no Python code and checks no guards at
    each call: for steps of a millisecond that took a third of the time. What was compiled for a
    `problem` under a key is cached there.

    Where that fails (a compiler that cannot build), a run that did not ask for compilation
    continues without it.
    """

    def __init__(self, problem: object, forced: bool) -> None:
        self.problem = problem
        self.forced = forced
        self.failure = ""  # why a function could not be compiled
        self.seconds = 0.0  # spent on compiling

    def __call__(
        self, function: Callable[..., Any], key: Hashable, as_graph: bool = False
    ) -> Callable[..., Any]:
        """The compiled function; `as_graph`: recorded as a CUDA graph, whose next call overwrites
        its results.

        Launched kernel by kernel, a step of a thousand small networks waits for Python most of the
        time.
        """
        chosen: Callable[..., Any] | None = None

        def first_or_chosen(*args: Any) -> Any:
            nonlocal chosen
            if chosen is None:
                chosen = self._cached_or_built(function, key, args, as_graph)
            return chosen(*args)

        return first_or_chosen

    def _cached_or_built(
        self, function: Callable[..., Any], key: Hashable, args: Any, as_graph: bool
    ) -> Callable[..., Any]:
        known = COMPILED.setdefault(self.problem, {})
        full_key = (key, _signature(args))
        if full_key not in known:
            start = perf_counter()
            try:
                known[full_key] = _built(function, args, as_graph)
                self.seconds += perf_counter() - start
            except Exception as error:
                function(*args)  # an error of the method itself is raised here, unchanged
                if self.forced:
                    raise
                self.failure = (
                    f"not compiled: inductor failed ({type(error).__name__}); compile=True"
                    " shows why"
                )
                _log.warning(self.failure)
                return function
        return known[full_key]


# by problem, then key
COMPILED: WeakKeyDictionary[object, dict[Hashable, Callable[..., Any]]] = WeakKeyDictionary()


def _signature(args: Any) -> Hashable:
    return tuple((leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in tree_leaves(args))


def _built(function: Callable[..., Any], args: Any, as_graph: bool) -> Callable[..., Any]:
    import torch._inductor as inductor  # takes seconds, and most processes never compile

    inputs, form = tree_flatten(args)
    returned_form: Any = None

    def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
        nonlocal returned_form
        leaves, returned_form = tree_flatten(function(*tree_unflatten(inputs, form)))
        return tuple(leaf.contiguous() for leaf in leaves)  # as the next call's inputs must be

    # by shapes: nothing is computed
    trace = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)
    # One C++ program instead of one for each kernel with Python between them: a third less to build
    # and to call.
    on_cpu = all(leaf.device.type == "cpu" for leaf in inputs)
    options = {
        "cpp_wrapper": on_cpu,
        "triton.cudagraphs": as_graph,
        "triton.cudagraph_trees": False,
    }
    if torch.__version__ < "2.7":  # whose cache raises at a hit outside of torch.compile
        options["fx_graph_cache"] = False
    fast = inductor.compile(trace(*inputs), inputs, options=options)

    def call(*args: Any) -> Any:
        return tree_unflatten(fast(*tree_leaves(args)), returned_form)

    return call
