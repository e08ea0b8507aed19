"""The contract of an algorithm: what departs from it is a sentence, in every place where a method enters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from methods import classification
from torch import Tensor, nn

from fairbound import Constrained, check_algorithm, run
from fairbound.constraints.notions import pairwise_loss_parity
from fairbound.core import Algorithm, Draw, Estimate
from fairbound.training.contract import check_contract


class State(NamedTuple):
    k: Tensor  # () step


@dataclass(frozen=True, kw_only=True)
class Sound(Algorithm[State]):
    tau: float = 0.1

    def init(self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None) -> State:
        return State(x.new_zeros(()))

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        (sample,) = draw.unpack(self)
        return -self.tau * sample(x).grad(f=1.0), State(state.k + 1)

    def primal_step(self, state: State) -> float:
        return self.tau


def with_own(**members: Any) -> Algorithm[Any]:
    """The sound method with other members."""
    return dataclass(frozen=True, kw_only=True)(type("Mine", (Sound,), members))()


class Forgotten(Sound):
    tau: float = 0.2  # without the decorator it stays .1


DECLARED = {  # seen before a step
    r"Mine\.init is `def init\(self, x, m\)`, and drivers cannot call it; write `def init\(self, x, m, first=None": (
        with_own(init=lambda self, x, m: None)
    ),
    r"Mine\.init is .*, and drivers cannot call it; write": with_own(init=lambda self, x, m, first, equality: None),
    r"Mine\.init is `def init\(self, x, m, equality=None, first=None\)`, and": (
        with_own(init=lambda self, x, m, equality=None, first=None: None)
    ),
    r"Mine\.update is `def update\(self, x, state\)`, .* write `def update\(self, x, state, draw\)`": (
        with_own(update=lambda self, x, state: None)
    ),
    r"Mine\.primal_step is `def primal_step\(self\)`, .*; write `def primal_step\(self, state\)`": (
        with_own(primal_step=lambda self: 0.1)
    ),
    r"Mine\.primal_step is 0\.1, and drivers call it; write": with_own(primal_step=0.1),
    r"Mine\.multipliers is a property, and drivers call it": with_own(multipliers=property(lambda self: None)),
    r"Mine\.draws is a function; write @property above it, or draws = \.\.\. instead": with_own(draws=lambda self: 2),
    r"Mine\.is_gradient_step is a function; write @property": with_own(is_gradient_step=lambda self: False),
    r"Mine\.draws must be a whole number, at least 1, got 0": with_own(draws=0),
    r"Mine\.row_wise must be True or False, got 'no'": with_own(row_wise="no"),
    r"Mine makes 2 draws a step, so `evaluates` is a tuple with 2 of .* write evaluates = \('fc', 'c'\)": (
        with_own(draws=2, evaluates=("fc",))
    ),
    r"Mine makes 1 draws a step, so `evaluates` is a tuple .* got 'fc'; write evaluates = \('fc',\)": (
        with_own(evaluates="fc")
    ),
    r"Mine makes 1 draws a step, so `evaluates` .* one of them with 'f'; got \('c',\)": with_own(evaluates=("c",)),
    r"Mine makes 1 draws a step, so `passes` is a tuple of 1 numbers; got 2": with_own(passes=2),
    r"Mine\.solves must be 'kkt', 'penalty' or None, got 'KKT'": with_own(solves="KKT"),
    r"Forgotten is no frozen dataclass; write @dataclass\(frozen=True, kw_only=True\) above it": Forgotten(),
}
RETURNED = {  # seen at the first step
    r"Mine\.init returns a state dict that holds other things than tensors, \{'k': 0\}; a state is a NamedTuple of": (
        with_own(init=lambda self, x, m, first=None, equality=None: {"k": 0})
    ),
    r"Mine\.update returns one Tensor; it returns the step and the next state, `return d, State\(\.\.\.\)`": (
        with_own(update=lambda self, x, state, draw: -x)
    ),
    r"Mine\.update returns 3 things; it returns the step and": with_own(update=lambda self, x, state, draw: (x, x, x)),
    r"Mine\.update returns a state of type tuple; it returns": (
        with_own(update=lambda self, x, state, draw: (-x, (state.k,)))
    ),
    r"Mine\.update returns a step of shape \(\), and the point has shape \(\d+,\); the step is what is added to x": (
        with_own(update=lambda self, x, state, draw: (-x.sum(), state))
    ),
    r"Mine\.update returns a step that is a float, and the point has": (
        with_own(update=lambda self, x, state, draw: (0.1, state))
    ),
}


def in_run(method: Algorithm[Any]) -> None:
    problem, sampler, x0 = classification()
    run(problem, method, sampler.seeded(0), x0[:1], 2, compile=False).result()


def in_a_loop(method: Algorithm[Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    fair = Constrained(model, pairwise_loss_parity(2, bound=0.1), method)
    fair.backward(model(torch.ones(4, 2)).square(), torch.tensor([0, 1, 0, 1]))


PLACES = {"run": (in_run, TypeError), "Constrained": (in_a_loop, TypeError), "check": (check_algorithm, AssertionError)}


@pytest.mark.parametrize("said", DECLARED)
def test_what_is_declared_is_checked_before_anything_is_computed(said: str) -> None:
    with pytest.raises(TypeError, match=said):
        check_contract(DECLARED[said], "run")


@pytest.mark.parametrize("place", PLACES)
def test_every_place_checks(place: str) -> None:
    used: Callable[[Any], Any] = PLACES[place][0]
    for said, method in [next(iter(DECLARED.items())), *RETURNED.items()]:
        with pytest.raises(PLACES[place][1], match=said):
            used(method)


def test_a_class_or_a_name_in_the_place_of_a_method() -> None:
    for place, (used, _) in PLACES.items():
        with pytest.raises(TypeError, match=rf"{place}.* takes a method that is built, such as Sound\(\), got the cl"):
            used(Sound)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=rf"{place}.* takes one of fairbound.ALGORITHMS or .*; got 'SGD'"):
            used("SGD")  # type: ignore[arg-type]


def test_what_is_abstract_says_what_it_lacks() -> None:
    class Empty(Algorithm[State]):
        pass

    with pytest.raises(TypeError, match="Empty is abstract: it does not define init and primal_step and update, as ev"):
        Empty()  # type: ignore[abstract]


def test_the_sound_one_is_taken_everywhere() -> None:
    in_run(Sound())
    in_a_loop(Sound())
    check_contract(Sound(), "run")
