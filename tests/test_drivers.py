"""In every driver the method's own `step` runs.

A new notion has one place: its name then works in every driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from methods import bce, classification, network
from small_study import small_study
from torch import Tensor
from two_groups import make_data, small

import fairbound
from fairbound import SSLALM, Constrained, DescentAscent, constraints, run
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._study import load_study as load_study
from fairbound.core import Algorithm
from fairbound.training._contract import check_contract

SOURCE = Path(fairbound.__file__).parent


@dataclass(frozen=True, kw_only=True)
class CountedDescentAscent(DescentAscent):
    """Counts the calls of `step`, and notes which method was called."""

    def step(self, state: Any, *values: Tensor) -> tuple[Tensor, Any]:
        CALLS.append(DescentAscent.step)
        return super().step(state, *values)


@dataclass(frozen=True, kw_only=True)
class CountedSSLALM(SSLALM):
    def step(self, state: Any, *values: Tensor) -> tuple[Tensor, Any]:
        CALLS.append(SSLALM.step)
        return super().step(state, *values)


CALLS: list[Callable[..., Any]] = []
METHODS: dict[str, Algorithm[Any]] = {
    "DescentAscent": CountedDescentAscent(eta=0.1),
    "SSLALM": CountedSSLALM(samples=1),
}
every_method = pytest.mark.parametrize("name", METHODS)


class Loop:
    """Three lines of a loop of one's own."""

    def __init__(self, method: Algorithm[Any]) -> None:
        problem, _, _ = classification(torch.float32)
        self.data, self.model = problem.data, network()
        self.fair = Constrained(self.model, constraints.pairwise_loss_parity(2, bound=0.01), method)

    def step(self) -> None:
        losses = bce(self.model(self.data.X)[:, 0], self.data.y)
        self.fair.backward(losses, self.data.groups["group"])


def run_of(method: Algorithm[Any], steps: int) -> Iterator[Any]:
    problem, sampler, x0 = classification()
    return iter(run(problem, method, sampler, x0[0], steps, every=1, compile=False))


def fit(method: Algorithm[Any] | None) -> None:
    X, y, group = make_data(300)
    small(method=method, epochs=1, cv=2, ensemble_size=2).fit(X, y, sensitive_features=group)


# The method's own step ----------------------------------------------------------------------------


@contextmanager
def frames(note: Callable[[CodeType], None]) -> Iterator[None]:
    """Notes the code of every function that is called meanwhile."""

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            note(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(before)


def calls_of_step(work: Callable[[], object]) -> tuple[int, int]:
    """How often the counting subclass was asked, and how often the code of the method's own `step`
    ran."""
    CALLS.clear()
    ran: list[CodeType] = []
    with frames(ran.append):
        work()
    own = {step.__code__ for step in CALLS}
    assert len(own) <= 1
    return len(CALLS), sum(code in own for code in ran)


@every_method
def test_a_loop_calls_the_method_s_own_step(name: str) -> None:
    loop = Loop(METHODS[name])
    for _ in range(3):
        assert calls_of_step(loop.step) == (1, 1)


@every_method
def test_a_run_calls_the_method_s_own_step(name: str) -> None:
    records = run_of(METHODS[name], 5)
    for _ in range(5):
        assert calls_of_step(lambda: next(records)) == (1, 1)


@every_method
def test_the_classifier_calls_the_method_s_own_step(name: str) -> None:
    check_contract(METHODS[name], "fit", 2)  # its trial step is made once in a process
    asked, ran = calls_of_step(lambda: fit(METHODS[name]))
    assert asked == ran
    # Two networks, each with 7 mini-batches of 16 from 120 examples, and the check of a step when
    # its method is made.
    assert asked == 2 * (7 + 1)


def test_an_accumulated_step_asks_once() -> None:
    """For the weights of all its mini-batches."""
    loop = Loop(METHODS["SSLALM"])
    losses = [
        bce(loop.model(loop.data.X[part])[:, 0], loop.data.y[part])
        for part in (slice(0, 120), slice(120, 240))
    ]
    groups = loop.data.groups["group"].split(120)

    def step() -> None:
        for own, group in zip(losses, groups, strict=True):
            loop.fair.accumulate(own.detach(), group)
        for own, group in zip(losses, groups, strict=True):
            loop.fair.backward(own, group)

    assert calls_of_step(step) == (1, 1)


# One place for a new notion -----------------------------------------------------------------------


@pytest.fixture
def worst_group(monkeypatch: pytest.MonkeyPatch) -> str:
    """A notion that nobody has: the losses of all groups but the first at most that of the first
    plus the bound."""

    def no_worse_than_the_first(
        groups: Any, *, bound: float, by: str | None = None
    ) -> constraints.Constraint:
        made = constraints.pairwise_loss_parity(groups, bound=bound, by=by)
        names = [f"{name} no worse" for name in made.cells.names[1:]]
        entries = torch.cat([-torch.ones(len(names), 1), torch.eye(len(names))], 1).double()
        contrast = constraints.Matrix(tuple(names), entries)
        return constraints.Constraint(made.cells, contrast, made.bound[: len(names)], by=by)

    name = "no_worse_than_the_first"
    monkeypatch.setitem(constraints.NOTIONS, name, no_worse_than_the_first)
    return name


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_new_notion_works_by_its_name_everywhere(worst_group: str, tmp_path: Path) -> None:
    """In a loop, a run, FairClassifier, a verdict and an experiment file; Keras' `fit` has a test
    beside its others."""
    made = constraints.make_constraint(worst_group, ["A", "B"], 0.01)
    assert made.names == ("B no worse",)

    problem, sampler, x0 = classification()
    bound = made.bind(problem.data.groups["group"])
    result = run(
        fairbound.Problem(problem.forward, bce, bound, problem.data), SSLALM(), sampler, x0[0], 5
    ).result()
    assert result.multipliers.shape == (1, 1)

    loop = Loop(DescentAscent())
    loop.fair = Constrained(loop.model, made, DescentAscent())
    loop.step()
    assert [*loop.fair.constraints] == ["B no worse"]

    X, y, group = make_data(400)
    fair = small(constraint=worst_group, bound=0.05).fit(X, y, sensitive_features=group)
    assert [gap.name for gap in fair.verdict_.gaps] == ["B no worse"]
    verdict = fairbound.verdict(made, group == "B", losses=torch.rand(400).numpy())
    assert [gap.name for gap in verdict.gaps] == ["B no worse"]

    file = tmp_path / "own.toml"
    entry = '{ name = "SSLALM", method = "SSLALM", steps = 20 }'
    file.write_text(small_study(entry).replace('"pairwise"', f'"{worst_group}"'))
    problem = Plan(load_study(file).on(source="synthetic:OK"))._built.problem
    assert problem.names == ("non-white no worse",)
    assert problem.m == 1
