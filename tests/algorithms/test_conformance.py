"""Every method of the registry is certified by `check_algorithm`, and `check_algorithm` finds the
faults it is for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from methods import IN_A_LOOP, METHODS, Descends, classification
from own_method import Optimistic
from torch import Tensor
from transcription import draws

from fairbound import (
    ALGORITHMS,
    SGD,
    Constrained,
    DescentAscent,
    Penalty,
    check_algorithm,
    constraints,
    run,
)
from fairbound.algorithms import Adaptive, LevelConstrained, StochasticGhost, SwitchingSubgradient
from fairbound.core import Algorithm, Draw, Estimate, refuse_equality
from fairbound.training._contract import StepFacts, trial_step

# with settings that let them reach a solution at a distance of 1, whose multiplier is 1, soon
SETTLING = METHODS | {
    "SSLALM, one draw": replace(METHODS["SSLALM, one draw"], y_max=5.0),
    "Switching, adaptive": SwitchingSubgradient(
        eta_f=Adaptive(), eta_c=Adaptive(0.1), feasible_only=False, eps=0.02
    ),
    "LevelConstrained, exact": LevelConstrained(exact=True, tau=0.3, L=2.0),
    "Ghost, small box": StochasticGhost(beta=0.5, rho=0.1, p0=0.6, cap=3, alpha=0.1),
}


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(SETTLING[n], id=n, marks=() if n in ALGORITHMS else pytest.mark.slow)
        for n in SETTLING
    ],
)
def test_it_is_certified(method: Algorithm[Any]) -> None:
    assert check_algorithm(method).startswith(f"{type(method).__name__} passes 11 checks: ")


@pytest.mark.parametrize("method", IN_A_LOOP.values(), ids=IN_A_LOOP)
def test_it_lowers_the_loss_of_a_network(method: Algorithm[Any]) -> None:
    """In float32, on a bound that never binds, every method is a descent method."""
    problem, sampler, x0 = classification(torch.float32, bound=100.0)
    quick = replace(method, alpha=0.3) if hasattr(method, "alpha") else method
    result = run(problem, quick, sampler.seeded(0, 1), x0[:2], 300, compile=False).result()
    examples = torch.arange(problem.data.rows)
    assert (
        problem.evaluate(result.x, examples).loss < problem.evaluate(x0[:2], examples).loss - 0.01
    ).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_wrong_number_of_mini_batches_is_a_sentence(name: str) -> None:
    method = ALGORITHMS[name]()
    _, samples, x = draws(method.draws + 1)
    point = torch.tensor(x)
    state = method.init(point, 3)
    with pytest.raises(ValueError, match=rf"{name} needs {method.draws} mini-batches"):
        method.update(point, state, Draw.of(*samples))


# Faults that are found ----------------------------------------------------------------------------


class State(NamedTuple):
    y: Tensor  # (m,)
    v: Tensor  # (n,) or ()


@dataclass(frozen=True, kw_only=True)
class Sound(Descends):
    """Descent-ascent with momentum: what the faulty ones are variants of."""

    solves = "kkt"
    tau: float = 0.05
    eta: float = 0.05
    keep: float = 0.5

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> State:
        refuse_equality(self, equality)
        return State(x.new_zeros(m), torch.zeros_like(x))

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        (e,) = (sample(x) for sample in draw.unpack(self))
        v = self.keep * state.v + e.grad(f=1.0, c=state.y)
        return -self.tau * v, State(torch.relu(state.y + self.eta * e.c), v)

    def multipliers(self, state: State) -> Tensor | None:
        return state.y


class SecondPoint(Sound):
    """Also evaluates where it will be: `run` can, a loop cannot."""

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        d, new = super().update(x, state, draw)
        draw.samples[0](x + d)
        return d, new


@pytest.mark.parametrize(
    "method", [Sound(), SecondPoint(), Optimistic()], ids=lambda method: type(method).__name__
)
def test_a_sound_method_passes(method: Algorithm[Any]) -> None:
    assert check_algorithm(method).endswith('solves, equality ("kkt").')


def test_a_method_at_a_second_point_is_refused_by_a_loop_alone() -> None:
    assert trial_step(SecondPoint()) == StepFacts(
        passes=(2,), several_gradients=False, several_points=True
    )
    model = torch.nn.Linear(2, 1)
    fair = Constrained(model, constraints.pairwise_loss_parity(2, bound=0.1), SecondPoint())
    with pytest.raises(
        ValueError,
        match=r"second point.*fairbound\.",
    ):
        fair.backward(model(torch.ones(4, 2))[:, 0].square(), torch.tensor([0, 1, 0, 1]))


def test_rows_may_depend_on_each_other_where_row_wise_is_not_declared() -> None:
    shared = dataclass(frozen=True, kw_only=True)(
        type("Shared", (SharesItsState,), {"row_wise": False, "solves": None})
    )
    assert "rows" in check_algorithm(shared())


class DoesNothing(Sound):
    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        return torch.zeros_like(x), state


class Ascends(Sound):
    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        d, new = super().update(x, state, draw)
        return -d, new


class StepOfOne(Sound):
    def primal_step(self, state: State) -> float:
        return 1.0


class StepOfTheDual(Sound):
    def primal_step(self, state: State) -> float:
        return self.eta


class TwiceItsStep(Sound):
    def primal_step(self, state: State) -> float | Tensor:
        return 2 * self.tau


class Random(Sound):
    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        d, new = super().update(x, state, draw)
        return d + 1e-3 * torch.randn_like(x), new


class InPlace(Sound):
    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        d, new = super().update(x, state, draw)
        state.y.add_(1.0)
        return d, new


class RemembersOutside(Sound):
    """Its velocity is the instance's own, and begins anew with `init`."""

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> State:
        object.__setattr__(self, "steps", Counter())
        return super().init(x, m, first, equality)

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        d, new = super().update(x, state, draw)
        self.__dict__["steps"]["made"] += 1
        return d / self.__dict__["steps"]["made"] ** 0.5, new


class Branches(Sound):
    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        d, new = super().update(x, state, draw)
        return (d if x[0] < 0.5 else 0.9 * d), new


class WrongPrecision(Sound):
    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        d, new = super().update(x, state, draw)
        return d, State(new.y.double(), new.v)


class ReadsWhatItDoesNotDeclare(Sound):
    evaluates = ("f",)


class TooManyEvaluated(Sound):
    evaluates = ("fc", "c")


class IgnoresConstraints(SGD):
    solves = "kkt"


class PenalizesBothSides(Sound):
    """rho/2 |c|^2 on inequalities: wrong where they do not bind."""

    def update(self, x: Tensor, state: State, draw: Draw) -> tuple[Tensor, State]:
        (e,) = (sample(x) for sample in draw.unpack(self))
        return -self.tau * e.grad(f=1.0, c=0.1 * e.c), state


@dataclass(frozen=True, kw_only=True)
class PenaltyThatCallsItselfExact(Penalty):
    solves = "kkt"
    weight: float = 0.4  # below the multiplier


class UnconstrainedPenalty(SGD):
    solves = "penalty"


class TakesEqualitiesForInequalities(Sound):
    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> State:
        return super().init(x, m, first)


class PenalizesOneSide(Penalty):
    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> Any:
        return super().start(like, m)


# Of the kind that writes `start` and `step`


class AnotherStep(DescentAscent):
    def primal_step(self, state: Any) -> float | Tensor:  # type: ignore[misc]
        return 1.1 * self.tau  # type: ignore[operator]


class AnotherUpdate(DescentAscent):
    def update(self, x: Tensor, state: Any, draw: Draw) -> tuple[Tensor, Any]:  # type: ignore[misc, override]
        d, new = super().update(x, state, draw)
        return 2 * d, new


class SharesItsWeights(Optimistic):
    """A weight of 1 in all."""

    def step(self, state: Any, c: Tensor) -> tuple[Tensor, Any]:
        y, new = super().step(state, c)
        return y / y.abs().sum().clamp(min=1.0), new


class SharesItsStart(Optimistic):
    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> Any:
        return super().start(like, m, equality, None if first is None else first - first.mean())


class SharesItsState(Optimistic):
    """Each constraint remembers the worst of all."""

    def step(self, state: Any, c: Tensor) -> tuple[Tensor, Any]:
        y, new = super().step(state, c)
        return y, new._replace(last=c.max().expand_as(c))


class StepsInPlace(Optimistic):
    def step(self, state: Any, c: Tensor) -> tuple[Tensor, Any]:
        state.y.add_(1.0)
        return super().step(state, c)


class BranchesOnValues(Optimistic):
    def step(self, state: Any, c: Tensor) -> tuple[Tensor, Any]:
        y, new = super().step(state, c)
        return (y if c[0] < 0.5 else 0.9 * y), new


class AscendsOnConstraints(Optimistic):
    def step(self, state: Any, c: Tensor) -> tuple[Tensor, Any]:
        return super().step(state, -c)


class ForgetsEqualities(Optimistic):
    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> Any:
        return super().start(like, m, None, first)


ROWS = r"'rows': a constraint is treated differently beside others than alone; omit row_wise"
FAULTS = {
    DoesNothing: r"'primal_step'.*does not descend",
    Ascends: r"'primal_step'.*does not descend; d is to be added to x",
    StepOfOne: r"'primal_step': d is proportional to tau and primal_step is not.*return self\.tau",
    StepOfTheDual: r"'primal_step': d is proportional to tau and primal_step is not",
    TwiceItsStep: (
        r"'primal_step': d is -0\.5 times primal_step times the gradient, whatever the settings"
    ),
    Random: r"'purity': the same arguments give two different steps",
    InPlace: r"'purity': update changes x or the state in place",
    RemembersOutside: r"'purity': .*put what it remembers into the state",
    Branches: r"'vmap': it raised",
    WrongPrecision: r"'shapes': update changes the form of the state",
    ReadsWhatItDoesNotDeclare: (
        r"'shapes': the step is not finite; it may read what evaluates=\('f',\) does not"
    ),
    TooManyEvaluated: r"'declarations': it raised ValueError: too many values to unpack",
    IgnoresConstraints: r"'solves': after 2000 steps it does not reach the KKT point",
    PenalizesBothSides: r"'solves': .*does not reach the minimizer of f.*constraints do not bind",
    PenaltyThatCallsItselfExact: r"'solves': .*it does not reach the KKT point",
    UnconstrainedPenalty: r"'solves': .*it minimizes no penalized objective",
    TakesEqualitiesForInequalities: r"'equality': .*not met from c < 0.*core\.refuse_equality",
    PenalizesOneSide: (
        r"'equality': .*it does not penalize c < 0 of a constraint c = 0; use `equality` of init"
    ),
    AnotherStep: (
        r"'declarations': AnotherStep\.primal_step is not used: a MultiplierMethod is its start and"
        r" step"
    ),
    AnotherUpdate: r"'declarations': AnotherUpdate\.update is not used: .* or make it an Algorithm",
    SharesItsWeights: ROWS,
    SharesItsStart: ROWS,
    SharesItsState: ROWS,
    StepsInPlace: r"'purity': update changes x or the state in place",
    BranchesOnValues: r"'vmap': it raised",
    AscendsOnConstraints: (
        r"'solves': .*it does not reach the minimizer of f, .* whose constraints do not bind"
    ),
    ForgetsEqualities: r"'equality': .*not met from c < 0",
}


@pytest.mark.parametrize("method", FAULTS, ids=[method.__name__ for method in FAULTS])
def test_a_fault_is_found_with_its_sentence(
    method: type[Algorithm[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a sound method takes fewer
    monkeypatch.setattr("fairbound.testing._algorithms.MOST_STEPS", 2000)
    with pytest.raises(
        AssertionError, match=rf"{method.__name__} fails the check {FAULTS[method]}"
    ):
        check_algorithm(method())


def test_a_method_without_primal_step_cannot_be_built() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Forgets(Algorithm[State]):
        init, update = Sound.init, Sound.update

    with pytest.raises(TypeError, match=r"abstract.*primal_step"):
        Forgets()


def test_a_class_is_no_method() -> None:
    with pytest.raises(TypeError, match=r"such as SGD\(\), got.*SGD"):
        check_algorithm(SGD)  # type: ignore[arg-type]
