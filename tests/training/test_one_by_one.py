"""A model that cannot be vmapped runs alone: the same trajectories, records, signs and refusals as
a stack of one."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from methods import IN_A_LOOP, METHODS, bce, classification
from torch import Tensor
from torch.func import vjp

from fairbound import BatchSpec, Problem, Sampler, Split, run
from fairbound.algorithms import SGD, SSLALM, StochasticGhost
from fairbound.constraints._cells import Cells
from fairbound.constraints._constraint import FunctionConstraint
from fairbound.constraints._constraint_set import combine
from fairbound.constraints._contrasts import pairwise
from fairbound.constraints._notions import demographic_parity
from fairbound.constraints._regularizers import FairretNorm
from fairbound.core import Algorithm


class OneByOne:
    """A forward function that must not be vmapped."""

    stacks = False

    def __init__(self, forward: Any) -> None:
        self.forward, self.n = forward, forward.n

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        assert not torch._C._functorch.is_batchedtensor(x), "vmapped"
        found: Tensor = self.forward(x, inputs)
        return found


class Outside(OneByOne):
    """The same, computed outside autograd, as another library computes it: autograd sees one
    function of x."""

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        class Bridge(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, point: Tensor) -> Tensor:
                found, ctx.pull = vjp(
                    lambda at: OneByOne.__call__(self, at, inputs), point.detach()
                )[:2]
                return found

            @staticmethod
            def backward(ctx: Any, cotangent: Tensor) -> Tensor:
                return ctx.pull(cotangent)[0]

        found: Tensor = Bridge.apply(x)
        return found


def alone(problem: Problem, kind: type[OneByOne] = OneByOne) -> Problem:
    return replace(problem, forward=kind(problem.forward))


def assert_same_runs(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    for name in ("x", "output", "multipliers"):
        assert torch.allclose(getattr(a, name), getattr(b, name), atol=tolerance, equal_nan=True), (
            name
        )
    assert torch.equal(a.skipped, b.skipped)
    assert a.infeasible == b.infeasible
    for mine, theirs in zip(a.monitors, b.monitors, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("method", IN_A_LOOP.values(), ids=IN_A_LOOP)
@pytest.mark.parametrize("kind", [OneByOne, Outside])
def test_a_single_run_equals_a_stack_of_one(method: Algorithm[Any], kind: type[OneByOne]) -> None:
    problem, sampler, x0 = classification()
    mine, theirs = (
        run(p, method, sampler, x0[0], 40).result() for p in (alone(problem, kind), problem)
    )
    assert (mine.x - x0[0]).abs().max() > 1e-3
    assert_same_runs(mine, theirs)


@pytest.mark.parametrize(
    "name", ["DescentAscent, second draw", "SwitchingSubgradient", "Ghost, small box"]
)
@pytest.mark.parametrize("kind", ["regularizer", "rates", "function", "together", "absolute"])
def test_any_problem_the_same(name: str, kind: str) -> None:
    problem, _, x0 = classification()
    groups = problem.data.groups["group"]
    rates = demographic_parity(2, bound=0.05).bind(groups)
    ridge = FunctionConstraint(
        lambda batch: (batch.parameters[0].square().sum() + batch.outputs.mean()).reshape(1),
        ("ridge",),
        Cells.of_groups(["0"]).bind(groups.clamp(max=0)),
    )
    pair = problem.constraint
    one_sided = replace(
        pair,
        contrast=pairwise(["0", "1"], two_sided=False),
        bound=pair.bound[:1],
        names=(),
        absolute=True,
    )  # |a - b| once: twice would leave the multipliers undetermined
    made = {
        "regularizer": replace(problem, regularizer=FairretNorm(column="group", levels=2)),
        "rates": replace(problem, constraint=rates),
        "function": replace(problem, constraint=ridge),
        "together": replace(problem, constraint=combine(problem.constraint, rates)),
        "absolute": replace(problem, constraint=one_sided),
    }[kind]
    sampler = Sampler(
        Split.all_train(made.data.rows), made.constraint.cells, BatchSpec(6, 5), seed=2
    )
    mine, theirs = (run(p, METHODS[name], sampler, x0[1], 12).result() for p in (alone(made), made))
    assert_same_runs(mine, theirs)


def test_without_a_constraint() -> None:
    problem, sampler, x0 = classification()
    plain = replace(problem, constraint=None)
    assert_same_runs(*(run(p, SGD(), sampler, x0[0], 20).result() for p in (alone(plain), plain)))
    with pytest.raises(ValueError, match="SSLALM needs constraints"):
        run(alone(plain), SSLALM(), sampler, x0[0], 20)


def test_several_runs_go_one_after_another() -> None:
    problem, sampler, x0 = classification()
    methods = [SSLALM(), SGD(), SSLALM(tau=0.03)]
    samplers = sampler.seeded(0, 1, 2)
    going = run(alone(problem), methods, samplers, x0[:3], 12, every=5)
    assert [(record.step, record.runs) for record in going] == [
        (k, (i,)) for i in range(3) for k in (5, 10, 12)
    ]
    theirs = run(problem, methods, samplers, x0[:3], 12).result()
    assert_same_runs(going.result(), theirs)
    assert not going.compiled
    assert going.compiling == 0
    assert "one by one" in going.note


@pytest.mark.parametrize("method", [SSLALM(), StochasticGhost(cap=2)])
def test_steps_that_are_not_finite_are_skipped(
    method: Algorithm[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """An example whose loss is NaN spoils the mini-batches that it is in, and nothing else."""
    problem, sampler, x0 = classification()

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return bce(outputs, labels.clamp(max=1.0)) + torch.where(labels > 1, torch.nan, 0.0)

    spoilt = problem.data.y.clone()
    spoilt[:1] = 2.0
    bad = replace(problem, loss=loss, data=replace(problem.data, y=spoilt))
    with caplog.at_level(logging.WARNING, logger="fairbound"):
        mine, theirs = (
            run(p, method, sampler.seeded(5), x0[0], 80).result() for p in (alone(bad), bad)
        )
    assert 0 < int(mine.skipped[0]) < 80
    assert_same_runs(mine, theirs)
    assert "not finite" in caplog.text


def test_what_is_not_evaluated_is_nan() -> None:
    problem, sampler, x0 = classification()
    batch = problem.source(sampler)._stack(1, None).block(0, 1)[0]
    for own in (problem, alone(problem)):
        for evaluates, missing in (("f", "c"), ("c", "f")):
            parts = own.gather(type(batch)(batch.objective[0, 0], batch.cells[0, 0]), evaluates)
            e = own.sample(parts)(x0[0])
            assert torch.isnan(getattr(e, missing)).all()
            assert torch.isfinite(getattr(e, evaluates)).all()
            weights = {"f": 1.0} if evaluates == "c" else {"c": torch.ones(2, dtype=x0.dtype)}
            assert torch.isnan(e.grad(**weights)).all()
            assert torch.isnan(e.jac()).all() == (evaluates == "f")
            mine = {"c": torch.ones(2, dtype=x0.dtype)} if evaluates == "c" else {"f": 1.0}
            assert torch.isfinite(e.grad(**mine)).all()
