"""The contract of a method, checked in one place: `run`, `Constrained`, `--algorithm` and
`check_algorithm` call it.

It first checks what a method declares and how its functions are called. Then one step on a toy
problem shows what they return, how often the mini-batches pass through the model, and whether a
step takes several gradients of one. Every error is a sentence with the class, what is wrong, and
the remedy.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fairbound.core import Algorithm, CellGradients, Draw, Estimate, MultiplierMethod, Sample

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
MOST_ROWS = 50  # constraints of a trial step
MULTIPLIER_FUNCTIONS = {
    "start": ("like, m, equality=None, first=None", 2),
    "output": ("x, state", 0),
}
DERIVED = ("init", "update", "primal_step", "multipliers")  # once, by MultiplierMethod


class ContractError(TypeError):
    """How a method departs from the contract, and what to write instead."""


class StepFacts(NamedTuple):
    """What a trial step shows."""

    passes: tuple[int, ...]  # how often each mini-batch passes through the model
    # whether it takes several gradients of one mini-batch, as those of its constraints
    several_gradients: bool
    # whether it evaluates at another point than x, which `run` can and a loop cannot
    several_points: bool


def check_contract(method: Any, where: str, m: int | None = None) -> StepFacts:
    """Check that a method keeps the contract of `Algorithm` or `MultiplierMethod`; returns what a
    trial step shows.

    `m` is the number of constraints that it will have, if it is known.
    """
    check_declarations(method, where)
    m = toy_rows(method) if m is None or m > MOST_ROWS else m
    if isinstance(method, MultiplierMethod):
        _check_multiplier_step(method, m)
    return trial_step(method, m)


def check_declarations(method: Any, where: str) -> None:
    """The part of `check_contract` that calls none of the method's functions."""
    if isinstance(method, type):
        name = method.__name__
        raise ContractError(
            f"{where} takes a method that is built, such as {name}(), got the class {name}"
        )
    if not isinstance(method, Algorithm):
        raise ContractError(
            f"{where} takes one of fairbound.ALGORITHMS or a method of your own, built; got"
            f" {method!r}"
        )
    kind = type(method)
    # a base class has it
    forgotten = "__dataclass_params__" not in vars(kind) and inspect.get_annotations(kind)
    if forgotten or not is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        raise ContractError(
            f"{kind.__name__} is not a frozen dataclass; write {DECORATOR} above it"
        )
    _check_declarations(method)
    simple = isinstance(method, MultiplierMethod)
    for function, (arguments, optional) in (MULTIPLIER_FUNCTIONS if simple else FUNCTIONS).items():
        _check_signature(method, function, arguments, optional)
    if isinstance(method, MultiplierMethod):
        for function in DERIVED:
            if getattr(kind, function) is not getattr(MultiplierMethod, function):
                raise ContractError(
                    f"{kind.__name__}.{function} is not used: a MultiplierMethod is its start and"
                    " step; write these, or make it an Algorithm, which has no others"
                )
        _check_signature(
            method, "step", ", ".join(["state", *(f"c{i}" for i in range(method.draws))]), 0
        )
        if method.measures and "sizes" not in inspect.signature(method.step).parameters:
            raise ContractError(
                f"{kind.__name__} measures, and its step does not take what is measured; write "
                "`def step(self, state, *values, sizes=None)`"
            )


def _check_signature(method: Algorithm[Any], function: str, arguments: str, optional: int) -> None:
    kind = type(method)
    member = getattr(kind, function)
    remedy = f"write `def {function}(self, {arguments})`"
    if not callable(member):
        description = "a property" if isinstance(member, property) else repr(member)
        raise ContractError(
            f"{kind.__name__}.{function} is {description}, and drivers call it; {remedy}"
        )
    expected = [argument.partition("=")[0] for argument in arguments.split(", ")]
    signature = inspect.signature(getattr(method, function))
    names = list(signature.parameters)
    # in another order it would get the wrong things
    fits = sorted(names) != sorted(expected) or names == expected
    if fits:
        try:
            for passed in (expected, expected[: len(expected) - optional]):
                signature.bind(*passed)
        except TypeError:
            fits = False
    if not fits:
        written = inspect.signature(member)
        plain = [
            parameter.replace(annotation=parameter.empty)
            for parameter in written.parameters.values()
        ]
        shown = written.replace(parameters=plain, return_annotation=written.empty)
        raise ContractError(
            f"{kind.__name__}.{function} is `def {function}{shown}`, and drivers cannot call it;"
            f" {remedy}"
        )


def _check_declarations(method: Algorithm[Any]) -> None:
    name = type(method).__name__
    declared = ["evaluates", "batch_size_probs"]
    declared += ["smoothing", "row_wise"] if isinstance(method, MultiplierMethod) else []
    for member in declared:
        if callable(getattr(method, member)):
            raise ContractError(
                f"{name}.{member} is a function; write @property above it, or {member} = ..."
                " instead"
            )
    evaluates, probs = method.evaluates, method.batch_size_probs
    known = isinstance(evaluates, tuple) and all(read in ("f", "c", "fc") for read in evaluates)
    if not known or not any("f" in read for read in evaluates):
        raise ContractError(
            f"{name}.evaluates must be a tuple with 'f', 'c' or 'fc' for each mini-batch of a step,"
            f" one of them with 'f', got {evaluates!r}; write evaluates = ('fc',) for one"
            " mini-batch, ('fc', 'c') for two"
        )
    if method.solves not in ("kkt", "penalty", None):
        raise ContractError(
            f"{name}.solves must be 'kkt', 'penalty' or None, got {method.solves!r}"
        )
    if probs is not None and not (
        len(evaluates) == 4 and min(probs) > 0 and abs(sum(probs) - 1) < 1e-9
    ):
        raise ContractError(
            f"{name}.batch_size_probs must be None or positive numbers that sum to 1, for 4"
            f" mini-batches (X1, X, its halves), got {probs}"
        )
    if isinstance(method, MultiplierMethod):
        if not hasattr(method, "tau"):
            raise ContractError(
                f"{name} has no field tau, the step of x; write `tau: float = 0.01` in the class"
            )
        if not isinstance(method.row_wise, bool):
            raise ContractError(f"{name}.row_wise must be True or False, got {method.row_wise!r}")
        smoothing = method.smoothing
        if smoothing is not None and (not isinstance(smoothing, tuple) or len(smoothing) != 2):
            raise ContractError(
                f"{name}.smoothing must be None or two numbers (mu, beta), got {smoothing!r}"
            )


# What its functions return, seen in one step on a toy ---------------------------------------------


def toy_rows(method: Algorithm[Any]) -> int:
    """Constraints of the toy: as many as a tuple of settings has entries, one for each
    constraint."""
    settings = (getattr(method, field.name) for field in fields(method))  # type: ignore[arg-type]
    return next((len(setting) for setting in settings if isinstance(setting, tuple) and setting), 3)


def _check_state(method: Algorithm[Any], function: str, state: Any) -> None:
    if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(state)):
        kind = "" if isinstance(state, tuple) else f" {type(state).__name__}"
        raise ContractError(
            f"{type(method).__name__}.{function} returns a state{kind} that holds other things than"
            f" tensors, {state!r:.200}; {STATE}"
        )


def _check_pair(
    method: Algorithm[Any], function: str, returned: Any, first: str, state: Any
) -> None:
    """Whether a function returns what it makes and the next state, of the form of the one
    before."""
    if isinstance(returned, tuple) and len(returned) == 2 and type(returned[1]) is type(state):
        return
    description = f"one {type(returned).__name__}"
    if isinstance(returned, tuple):
        pair = len(returned) == 2
        description = (
            f"a state of type {type(returned[1]).__name__}" if pair else f"{len(returned)} things"
        )
    raise ContractError(
        f"{type(method).__name__}.{function} returns {description}; it returns {first} and the next"
        f" state, `return {first.rpartition(' ')[2]}, {type(state).__name__}(...)`"
    )


def _check_multiplier_step(method: MultiplierMethod[Any], m: int) -> None:
    name = type(method).__name__
    state = method.start(torch.zeros(()), m, None, torch.full((m,), -1.0))
    _check_state(method, "start", state)
    shapes = {tuple(leaf.shape) for leaf in tree_leaves(state)}
    if not hasattr(state, "_fields") or not shapes <= {(), (m,)} or not hasattr(state, "k"):
        raise ContractError(
            f"{name}.start returns {type(state).__name__} with tensors of shapes {sorted(shapes)};"
            " its state is a NamedTuple of tensors (m,) and (), k among them, such as"
            " State(y=like.new_zeros(m), k=like.new_zeros(()))"
        )
    c = torch.full((m,), 0.1)
    returned = method.step(state, *[c] * method.draws)
    _check_pair(method, "step", returned, "the weights w", state)
    w = returned[0]
    if w is not None and (not isinstance(w, Tensor) or w.shape != (m,)):
        shape = (
            f"of shape {tuple(w.shape)}"
            if isinstance(w, Tensor)
            else f"that are a {type(w).__name__}"
        )
        raise ContractError(
            f"{name}.step returns weights {shape}; they are one number for each constraint, ({m},)"
        )
    if w is not None and w.dtype != c.dtype:
        raise ContractError(
            f"{name}.step returns weights of {w.dtype}, and c is {c.dtype}; make new tensors like"
            " c, c.new_zeros(...)"
        )


def trial_step(method: Algorithm[Any], m: int | None = None) -> StepFacts:
    """One step on min |x - 1|^2 / 2 s.t. A x <= 1, m rows, from x = 0, with what it asks for."""
    try:
        hash(method)
    except TypeError:  # a setting is a list
        return _trial_step(method, m)
    return _cached_trial_step(method, m)


def _trial_step(method: Algorithm[Any], m: int | None) -> StepFacts:
    m = toy_rows(method) if m is None else m
    name, x = type(method).__name__, torch.zeros(4)
    A = (torch.arange(4.0 * m) % 3 - 1).reshape(m, 4)
    passes, gradients, moved = [0] * method.draws, [0] * method.draws, []

    def sample(i: int) -> Sample:
        def at(point: Tensor) -> Estimate:
            passes[i] += 1
            moved.append(point is not x)

            def vjp(w: Tensor) -> Tensor:
                gradients[i] += 1
                return w[0] * (point - 1) + w[1:] @ A

            def rows() -> Tensor:
                gradients[i] += m
                return A

            f, c = (point - 1).square().sum() / 2, A @ point - 1
            return Estimate(f, c, vjp, CellGradients(m, rows, lambda rows: rows))

        return Sample(at)

    samples = [sample(i) for i in range(method.draws)]
    first = Estimate(
        torch.tensor(2.0),
        torch.full((m,), -1.0),
        lambda w: x,
        CellGradients(m, lambda: A, lambda rows: rows),
    )
    state = method.init(x, m, first, None)
    _check_state(method, "init", state)
    step = method.primal_step(state)
    draw = Draw.of(*samples, weight=2.0, uniform=0.5)
    returned: Any
    if isinstance(method, MultiplierMethod):
        returned = method.update(x, state, draw, probe=False)
    else:
        returned = method.update(x, state, draw)
    _check_pair(method, "update", returned, "the step d", state)
    d, new = returned
    if not isinstance(d, Tensor) or d.shape != x.shape:
        shape = (
            f"of shape {tuple(d.shape)}"
            if isinstance(d, Tensor)
            else f"that is a {type(d).__name__}"
        )
        raise ContractError(
            f"{name}.update returns a step {shape}, and the point has shape {tuple(x.shape)}; the"
            " step is what is added to x, such as d = -self.tau * estimate.grad(f=1.0)"
        )
    if d.dtype != x.dtype:
        raise ContractError(
            f"{name}.update returns a step of {d.dtype}, and the point is {x.dtype}; make new"
            " tensors like x, x.new_zeros(...)"
        )
    _check_state(method, "update", new)
    if not isinstance(step, int | float | Tensor):
        raise ContractError(
            f"{name}.primal_step returns a {type(step).__name__}; it returns a number, as"
            " self.tau is"
        )
    method.output(x, new), method.multipliers(new), method.monitor(new)
    return StepFacts(tuple(passes), max(gradients) > 1, any(moved))


# a board asks for the same entries again and again
_cached_trial_step = lru_cache(maxsize=256)(_trial_step)


def start_warning(method: Algorithm[Any], where: str, c: Tensor) -> str | None:
    """What a driver says where a method with `needs_feasible_start` has none, or one without room
    to move."""
    if not getattr(method, "needs_feasible_start", False) or not bool((c >= 0).any()):
        return None
    return (
        f"{type(method).__name__} keeps a feasible path from a start with c < 0, and the first"
        f" mini-batch of {where} has a c of {float(c.max()):.3g}; for gaps between groups start"
        ' from a last layer of 0: initial_points(..., feasible="zero-last-layer"), or'
        " training.functional.zero_last_layer(model) in a loop"
    )
