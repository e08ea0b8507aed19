"""The contract of an algorithm: what departs from it is a sentence, in every place where a method
enters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from methods import Counted, Descends, classification
from own_method import Optimistic
from own_method import State as OwnState
from torch import Tensor, nn

from fairbound import SSLALM, Constrained, DescentAscent, MultiplierMethod, check_algorithm, run
from fairbound.algorithms import TrackedSQP
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.core import Algorithm
from fairbound.training._contract import (
    ContractError,
    StepFacts,
    check_contract,
    check_declarations,
)


def with_own(**members: Any) -> Algorithm[Any]:
    """The sound method with other members."""
    return dataclass(frozen=True, kw_only=True)(type("Mine", (Descends,), members))()


class Forgotten(Descends):
    tau: float = 0.2  # without the decorator it stays .1


FOUR = ("fc",) * 4
DECLARED = {  # seen before a step
    r"Mine\.init is `def init\(self, x, m\)`, and drivers cannot call it; write `def init\(self, x, m, first=None": with_own(
        init=lambda self, x, m: None
    ),
    r"Mine\.init is .*, and drivers cannot call it; write": with_own(
        init=lambda self, x, m, first, equality: None
    ),
    r"Mine\.init is `def init\(self, x, m, equality=None, first=None\)`, and": with_own(
        init=lambda self, x, m, equality=None, first=None: None
    ),
    r"Mine\.update is `def update\(self, x, state\)`, .* write `def update\(self, x, state, draw\)`": with_own(
        update=lambda self, x, state: None
    ),
    r"Mine\.primal_step is `def primal_step\(self\)`, .*; write `def primal_step\(self, state\)`": (
        with_own(primal_step=lambda self: 0.1)
    ),
    r"Mine\.primal_step is 0\.1, and drivers call it; write": with_own(primal_step=0.1),
    r"Mine\.multipliers is a property, and drivers call it": with_own(
        multipliers=property(lambda self: None)
    ),
    r"Mine\.evaluates is a function; write @property above it, or evaluates = \.\.\. instead": (
        with_own(evaluates=lambda self: ("fc",))
    ),
    r"Mine\.batch_size_probs is a function; write @property": with_own(
        batch_size_probs=lambda self: None
    ),
    r"Mine\.evaluates must be a tuple with 'f', 'c' or 'fc' for each .*, got 'fc'; write evaluates = \('fc',\) for": with_own(
        evaluates="fc"
    ),
    r"Mine\.evaluates must be a tuple .*, got \('cf',\)": with_own(evaluates=("cf",)),
    r"Mine\.evaluates must be a tuple .*, got \(\)": with_own(evaluates=()),
    r"Mine\.evaluates must be .* one of them with 'f', got \('c',\)": with_own(evaluates=("c",)),
    r"Mine\.batch_size_probs must be None or positive numbers that sum to 1, for 4 .*, got \(0\.5, 0\.5\)": with_own(
        batch_size_probs=(0.5, 0.5)
    ),
    r"Mine\.batch_size_probs must be .*, got \(0\.5, 0\.4\)": with_own(
        evaluates=FOUR, batch_size_probs=(0.5, 0.4)
    ),
    r"Mine\.batch_size_probs must be .*, got \(1\.5, -0\.5\)": with_own(
        evaluates=FOUR, batch_size_probs=(1.5, -0.5)
    ),
    r"Mine\.solves must be 'kkt', 'penalty' or None, got 'KKT'": with_own(solves="KKT"),
    r"Forgotten is not a frozen dataclass; write @dataclass\(frozen=True, kw_only=True\) above it": (
        Forgotten()
    ),
}
RETURNED = {  # seen at the first step
    r"Mine\.init returns a state dict that holds other things than tensors, \{'k': 0\}; a state is a NamedTuple of": with_own(
        init=lambda self, x, m, first=None, equality=None: {"k": 0}
    ),
    r"Mine\.update returns one Tensor; it returns the step d and the next state, `return d, Counted\(\.\.\.\)`": with_own(
        update=lambda self, x, state, draw: -x
    ),
    r"Mine\.update returns 3 things; it returns the step d": with_own(
        update=lambda self, x, state, draw: (x, x, x)
    ),
    r"Mine\.update returns a state of type tuple; it returns": with_own(
        update=lambda self, x, state, draw: (-x, (state.k,))
    ),
    r"Mine\.update returns a step of shape \(\), and the point has shape \(\d+,\); the step is what is added to x": with_own(
        update=lambda self, x, state, draw: (-x.sum(), state)
    ),
    r"Mine\.update returns a step that is a float, and the point has": with_own(
        update=lambda self, x, state, draw: (0.1, state)
    ),
    r"Mine\.update returns a step of torch\.float64, and the point is torch\.float32; make new tensors like x": with_own(
        update=lambda self, x, state, draw: (-x.double(), state)
    ),
    r"Mine\.update returns a state that holds other things than tensors, Counted\(k=1\); a state is a NamedTuple of": with_own(
        update=lambda self, x, state, draw: (-x, Counted(1))
    ),  # type: ignore[arg-type]
    r"Mine\.primal_step returns a str; it returns a number, as self\.tau is": with_own(
        primal_step=lambda self, state: "0.1"
    ),
}


# A multiplier method ------------------------------------------------------------------------------


def with_own_steps(**members: Any) -> MultiplierMethod[Any]:
    """The sound multiplier method with other members."""
    return dataclass(frozen=True, kw_only=True)(type("Mine", (Optimistic,), members))()


@dataclass(frozen=True, kw_only=True)
class NoStepOfX(MultiplierMethod[Any]):
    start, step = Optimistic.start, Optimistic.step


class NoCounter(NamedTuple):
    y: Tensor  # (m,)


def starting(make: Callable[[Tensor, int], Any]) -> MultiplierMethod[Any]:
    return with_own_steps(start=lambda self, like, m, equality=None, first=None: make(like, m))


def stepping(returned: Callable[[OwnState, Tensor], Any]) -> MultiplierMethod[Any]:
    return with_own_steps(step=lambda self, state, c: returned(state, c))


FORM = (
    r"its state is a NamedTuple of tensors \(m,\) and \(\), k among them, such as"
    r" State\(y=like\.new_zeros\(m\), k=li"
)
DECLARED |= {
    r"Mine\.start is `def start\(self, like, m\)`, .* write `def start\(self, like, m, equality=None, first=None\)`": with_own_steps(
        start=lambda self, like, m: None
    ),
    r"Mine\.start is `def start\(self, like, m, first=None, equality=None\)`, and drivers cannot call it": with_own_steps(
        start=lambda self, like, m, first=None, equality=None: None
    ),
    r"Mine\.start is .*, and drivers cannot call it": with_own_steps(
        start=lambda self, like, m, equality, first: None
    ),
    r"Mine\.step is `def step\(self, state\)`, and drivers cannot call it; write `def step\(self, state, c0\)`": with_own_steps(
        step=lambda self, state: None
    ),
    r"Mine\.step is `def step\(self, state, c\)`, .*; write `def step\(self, state, c0, c1\)`": (
        with_own_steps(evaluates=("fc", "c"))
    ),
    r"Mine\.step is None, and drivers call it; write": with_own_steps(step=None),
    r"Mine\.output is `def output\(self, x\)`, and drivers": with_own_steps(
        output=lambda self, x: x
    ),
    r"Mine\.smoothing is a function; write @property above it, or smoothing = \.\.\. instead": (
        with_own_steps(smoothing=lambda self: None)
    ),
    r"Mine\.row_wise is a function; write @property": with_own_steps(row_wise=lambda self: True),
    r"Mine\.row_wise must be True or False, got 'no'": with_own_steps(row_wise="no"),
    r"Mine\.smoothing must be None or two numbers \(mu, beta\), got 2\.0": with_own_steps(
        smoothing=2.0
    ),
    r"Mine\.smoothing must be None or two numbers \(mu, beta\), got \(2\.0,\)": with_own_steps(
        smoothing=(2.0,)
    ),
    r"NoStepOfX has no field tau, the step of x; write `tau: float = 0\.01` in the class": (
        NoStepOfX()
    ),
} | {
    rf"Mine\.{function} is not used: a MultiplierMethod is its start and step; write these, or make it an Algorithm": with_own_steps(
        **{function: lambda self, *given: None}
    )
    for function in ("init", "update", "primal_step", "multipliers")
}
RETURNED |= {
    r"Mine\.start returns a state dict that holds other things than tensors": starting(
        lambda like, m: {"k": 0}
    ),
    rf"Mine\.start returns State with tensors of shapes \[.*\(9,\).*\]; {FORM}": starting(
        lambda like, m: Optimistic().start(like, m)._replace(last=like.new_zeros(9))
    ),
    rf"Mine\.start returns NoCounter with tensors of shapes \[\(\d,\)\]; {FORM}": starting(
        lambda like, m: NoCounter(like.new_zeros(m))
    ),
    rf"Mine\.start returns tuple with tensors of shapes \[\(\), \(\d,\)\]; {FORM}": starting(
        lambda like, m: (like.new_zeros(m), like.new_zeros(()))
    ),
    r"Mine\.step returns one Tensor; it returns the weights w and the next state, `return w, State\(\.\.\.\)`": stepping(
        lambda state, c: c
    ),
    r"Mine\.step returns 3 things; it returns the weights w": stepping(
        lambda state, c: (c, c, state)
    ),
    r"Mine\.step returns a state of type tuple; it returns the weights w": stepping(
        lambda state, c: (c, tuple(state))
    ),
    r"Mine\.step returns weights of shape \(\); they are one number for each constraint, \(\d,\)": (
        stepping(lambda state, c: (c.sum(), state))
    ),
    r"Mine\.step returns weights of torch\.float64, and c is torch\.float32; make new tensors like c": stepping(
        lambda state, c: (c.double(), state)
    ),
    r"Mine\.step returns weights that are a float; they are one number": stepping(
        lambda state, c: (0.5, state)
    ),
}


def in_run(method: Algorithm[Any]) -> None:
    problem, sampler, x0 = classification()
    run(problem, method, sampler.seeded(0), x0[:1], 2, compile=False).result()


def in_a_loop(method: Algorithm[Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    fair = Constrained(model, pairwise_loss_parity(2, bound=0.1), method)
    fair.backward(model(torch.ones(4, 2)).square(), torch.tensor([0, 1, 0, 1]))


PLACES = {
    "run": (in_run, TypeError),
    "Constrained": (in_a_loop, TypeError),
    "check": (check_algorithm, AssertionError),
}


@pytest.mark.parametrize("said", DECLARED)
def test_what_is_declared_is_checked_before_anything_is_computed(said: str) -> None:
    with pytest.raises(ContractError, match=said):
        check_declarations(DECLARED[said], "run")


@pytest.mark.parametrize("place", PLACES)
def test_every_place_checks(place: str) -> None:
    used: Callable[[Any], Any] = PLACES[place][0]
    for said, method in [next(iter(DECLARED.items())), *RETURNED.items()]:
        with pytest.raises(PLACES[place][1], match=said):
            used(method)


def test_a_class_or_a_name_in_the_place_of_a_method() -> None:
    for place, (used, _) in PLACES.items():
        with pytest.raises(
            TypeError,
            match=rf"{place}.*Descends\(\), got",
        ):
            used(Descends)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=rf"{place}.*fairbound.ALGORITHMS or .*; got 'SGD'"):
            used("SGD")  # type: ignore[arg-type]


def test_what_is_abstract_says_what_it_lacks() -> None:
    class Empty(Algorithm[Any]):
        pass

    with pytest.raises(TypeError, match=r"Empty .*init.*primal_step.*update"):
        Empty()  # type: ignore[abstract]

    class Half(MultiplierMethod[Any]):
        start = Optimistic.start

    with pytest.raises(TypeError, match=r"abstract.*Half .*step"):
        Half()  # type: ignore[abstract]


def test_the_sound_one_is_taken_everywhere() -> None:
    for method in (Descends(), Optimistic()):
        in_run(method)
        in_a_loop(method)
        assert check_contract(method, "run") == StepFacts(
            (1,), several_gradients=False, several_points=False
        )


def test_a_trial_step_shows_what_a_method_asks_for() -> None:
    assert check_contract(SSLALM(samples=3), "run").passes == (1, 1, 1)
    assert not check_contract(SSLALM(), "run").several_gradients
    assert check_contract(TrackedSQP(), "run").several_gradients
    twice = with_own(
        update=lambda self, x, state, draw: (
            -draw.samples[0](x).grad(f=1.0 + draw.samples[0](x).f * 0),
            state,
        )
    )
    assert check_contract(twice, "run") == StepFacts(
        (2,), several_gradients=False, several_points=False
    )
    many = with_own(
        update=lambda self, x, state, draw: (-sum(map(draw.samples[0](x).grad, (0.5, 0.5))), state)
    )
    assert check_contract(many, "run") == StepFacts(
        (1,), several_gradients=True, several_points=False
    )


def test_settings_for_each_constraint_are_tried_with_as_many() -> None:
    # of the tuple's size, where the number is not known
    check_contract(DescentAscent(eta=(0.1,) * 7), "run")
    with pytest.raises(ValueError, match=r"7 step sizes.*2 constraints"):
        check_contract(DescentAscent(eta=(0.1,) * 7), "run", 2)
    check_contract(DescentAscent(eta=(0.1,) * 70), "run", 70)  # more than a trial has
