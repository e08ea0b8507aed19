"""The contract of an algorithm, checked where a method enters: `run`, `Constrained`, `--algorithm`, `check_algorithm`.

What a method declares and how its functions are called is checked before anything is computed; what `init` and
`update` return, at the first step. Every error is a sentence with the class, what is wrong, and the remedy.
"""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor

from fairbound._utils.pytree import tree_leaves
from fairbound.core import Algorithm, Draw, Estimate

DECORATOR = "@dataclass(frozen=True, kw_only=True)"
STATE = "a state is a NamedTuple of tensors, such as State(y=x.new_zeros(m), k=x.new_zeros(()))"
FUNCTIONS = {  # how drivers call them, and how many arguments they may leave out
    "init": ("x, m, first=None, equality=None", 2),
    "update": ("x, state, draw", 0),
    "primal_step": ("state", 0),
    "output": ("x, state", 0),
    "multipliers": ("state", 0),
    "monitor": ("state", 0),
}
SWITCHES = ("needs_initial_estimate", "needs_feasible_start", "is_gradient_step", "uses_jacobian", "row_wise")


class ContractError(TypeError):
    """How a method departs from the contract, and what to write instead."""


def check_contract(method: Any, where: str) -> None:
    """Whether a method keeps the contract of `Algorithm` in all that can be seen without a step of it."""
    if isinstance(method, type):
        name = method.__name__
        raise ContractError(f"{where} takes a method that is built, such as {name}(), got the class {name}")
    if not isinstance(method, Algorithm):
        raise ContractError(f"{where} takes one of fairbound.ALGORITHMS or a method of your own, built; got {method!r}")
    kind = type(method)
    forgotten = "__dataclass_params__" not in vars(kind) and inspect.get_annotations(kind)  # a base class has it
    if forgotten or not is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        raise ContractError(f"{kind.__name__} is no frozen dataclass; write {DECORATOR} above it")
    for function, (arguments, optional) in FUNCTIONS.items():
        _check_signature(method, function, arguments, optional)
    _check_declarations(method)


def _check_signature(method: Algorithm[Any], function: str, arguments: str, optional: int) -> None:
    kind = type(method)
    found = getattr(kind, function)
    remedy = f"write `def {function}(self, {arguments})`"
    if not callable(found):
        what = "a property" if isinstance(found, property) else repr(found)
        raise ContractError(f"{kind.__name__}.{function} is {what}, and drivers call it; {remedy}")
    expected = [one.partition("=")[0] for one in arguments.split(", ")]
    signature = inspect.signature(getattr(method, function))
    names = list(signature.parameters)
    fits = sorted(names) != sorted(expected) or names == expected  # in another order it would get the wrong things
    if fits:
        try:
            for given in (expected, expected[: len(expected) - optional]):
                signature.bind(*given)
        except TypeError:
            fits = False
    if not fits:
        whole = inspect.signature(found)
        plain = [one.replace(annotation=one.empty) for one in whole.parameters.values()]
        shown = whole.replace(parameters=plain, return_annotation=whole.empty)
        raise ContractError(
            f"{kind.__name__}.{function} is `def {function}{shown}`, and drivers cannot call it; {remedy}"
        )


def _check_declarations(method: Algorithm[Any]) -> None:
    name = type(method).__name__
    for declared in ("draws", "evaluates", "passes", "points", "batch_size_probs", *SWITCHES):
        if callable(getattr(method, declared)):
            raise ContractError(
                f"{name}.{declared} is a function; write @property above it, or {declared} = ... instead"
            )
    for declared in ("draws", "points"):
        value = getattr(method, declared)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ContractError(f"{name}.{declared} must be a whole number, at least 1, got {value!r}")
    for declared in SWITCHES:
        if not isinstance(getattr(method, declared), bool):
            raise ContractError(f"{name}.{declared} must be True or False, got {getattr(method, declared)!r}")
    draws, evaluates, passes = method.draws, method.evaluates, method.passes
    known = isinstance(evaluates, tuple) and all(read in ("f", "c", "fc") for read in evaluates)
    if not known or len(evaluates) != draws or not any("f" in read for read in evaluates):
        raise ContractError(
            f"{name} makes {draws} draws a step, so `evaluates` is a tuple with {draws} of 'f', 'c', 'fc', one of them "
            f"with 'f'; got {evaluates!r}; write evaluates = {('fc', *('c',) * (draws - 1))}"
        )
    if not isinstance(passes, tuple) or len(passes) != draws:
        raise ContractError(
            f"{name} makes {draws} draws a step, so `passes` is a tuple of {draws} numbers; got {passes!r}"
        )
    if method.solves not in ("kkt", "penalty", None):
        raise ContractError(f"{name}.solves must be 'kkt', 'penalty' or None, got {method.solves!r}")
    probs = method.batch_size_probs
    if probs is not None and not (draws == 4 and min(probs) > 0 and abs(sum(probs) - 1) < 1e-9):
        raise ContractError(
            f"{name}.batch_size_probs must be None or positive numbers that sum to 1, for 4 draws (X1, X, its halves), "
            f"got {probs}"
        )


# What init and update return ------------------------------------------------------------------------------------------


def checked_init(
    method: Algorithm[Any], x: Tensor, m: int, first: Estimate | None, equality: Tensor | None = None
) -> Any:
    """`init`, whose state must consist of tensors."""
    state = method.init(x, m, first, equality)
    try:
        tree_leaves(state)
    except TypeError:
        held = "" if isinstance(state, tuple) else f" {type(state).__name__}"
        raise ContractError(
            f"{type(method).__name__}.init returns a state{held} that holds other things than tensors, {state!r:.200}; "
            f"{STATE}"
        ) from None
    return state


def checked_update(method: Algorithm[Any], x: Tensor, state: Any, draw: Draw) -> tuple[Any, Any]:
    """`update`, which must return a step of the form of x and a state of the form of the one before."""
    made: Any = method.update(x, state, draw)
    name = type(method).__name__
    if not isinstance(made, tuple) or len(made) != 2 or type(made[1]) is not type(state):
        two = isinstance(made, tuple) and len(made) == 2
        what = f"a state of type {type(made[1]).__name__}" if two else f"one {type(made).__name__}"
        what = f"{len(made)} things" if isinstance(made, tuple) and len(made) != 2 else what
        raise ContractError(
            f"{name}.update returns {what}; it returns the step and the next state, `return d, "
            f"{type(state).__name__}(...)`"
        )
    d = made[0]
    if isinstance(x, Tensor) and (not isinstance(d, Tensor) or d.shape != x.shape):  # a loop may step on symbols
        found = f"of shape {tuple(d.shape)}" if isinstance(d, Tensor) else f"that is a {type(d).__name__}"
        raise ContractError(
            f"{name}.update returns a step {found}, and the point has shape {tuple(x.shape)}; the step is what is "
            "added to x, such as d = -self.tau * estimate.grad(f=1.0)"
        )
    return made
