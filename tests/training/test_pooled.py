"""Constraints on very many groups in `run`: examples of any groups, rows of the state gathered and written back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fairbound import BatchSpec, Constrained, MiniBatch, Problem, Sampler, constraints, make_functional, run
from fairbound.algorithms import SGD, SSLALM, DescentAscent, Penalty, StochasticGhost, SwitchingSubgradient
from fairbound.constraints import Constraint
from fairbound.core import Algorithm
from fairbound.data import Dataset, Split
from fairbound.data.samplers import SamplerStack

GROUPS, EXAMPLES, STEPS = 50, 400, 40
SIZES = BatchSpec(objective=8, cell=24)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)).double()


def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(EXAMPLES, 4, generator=generator, dtype=torch.float64)
    y = (torch.rand(EXAMPLES, generator=generator) < 0.4).double()
    return Dataset(X, y, {"group": torch.randint(GROUPS, (EXAMPLES,), generator=generator)})


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """NaN for the label 2, which one example has where steps are to be skipped."""
    losses = binary_cross_entropy_with_logits(outputs, labels.clamp(max=1), reduction="none")
    return torch.where(labels > 1, torch.nan, losses)


def problem(constraint: Any) -> tuple[Problem, Tensor]:
    forward, x = make_functional(network())
    return Problem(forward, loss, constraint, data()), x


def sampler(constraint: Any) -> Sampler:
    return Sampler(Split.all_train(EXAMPLES), constraint.cells, SIZES, seed=3)


METHODS: dict[str, Algorithm[Any]] = {
    "DescentAscent": DescentAscent(tau=0.1, eta=0.05),
    "Penalty": Penalty(tau=0.1, weight=0.1),
    "SSLALM": SSLALM(tau=0.1, samples=1, eta=0.05, rho=0.1, slack_from_first=False),
    "SGD": SGD(tau=0.1),
}
CONSTRAINTS: dict[str, Constraint] = {
    "each": constraints.bounded_group_loss(GROUPS, bound=0.5),
    "against the mean": constraints.loss_parity(GROUPS, bound=0.1),
    "equal rates": constraints.minimum_rate(0.5, groups=GROUPS, equality=True),
    "rates": constraints.equal_opportunity(GROUPS, bound=0.1, contrast=constraints.against_mean, proxy=True),
}


def in_a_loop(method: Algorithm[Any], constraint: Constraint, given: Dataset) -> tuple[Tensor, list[float]]:
    """The same steps by `Constrained`, on the examples that the sampler draws."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fair = Constrained(model, constraint, method)
    (batch,) = SamplerStack([sampler(constraint)], 1, None).block(0, STEPS)
    inside = torch.arange(SIZES.objective + SIZES.cell) < SIZES.objective
    for f, c in zip(batch.objective[:, 0], batch.cells[:, 0, 0], strict=True):
        chosen = torch.cat([f, c])
        outputs, labels = model(given.X[chosen]), given.y[chosen]
        groups = given.groups["group"][chosen].clamp(max=len(constraint.cells) - 1).masked_fill(inside, -1)
        optimizer.zero_grad()
        fair.backward(MiniBatch(loss(outputs, labels), groups, labels, outputs, objective=inside))
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), [*fair.multipliers.values()]


PAIRS = [(method, name) for method in ("DescentAscent", "SSLALM") for name in CONSTRAINTS]
PAIRS += [("Penalty", "each"), ("SGD", "each")]


@pytest.mark.parametrize(
    ("method", "constraint", "compiled"),
    [(*pair, False) for pair in PAIRS] + [pytest.param("SSLALM", "rates", True, marks=pytest.mark.slow)],
)
def test_stacked_runs_equal_a_loop(method: str, constraint: str, compiled: bool) -> None:
    own, x = problem(CONSTRAINTS[constraint])
    samplers = sampler(CONSTRAINTS[constraint]).seeded(3, 4)
    found = run(own, METHODS[method], samplers, x, steps=STEPS, compile=compiled).result()
    point, y = in_a_loop(METHODS[method], CONSTRAINTS[constraint], data())
    assert torch.allclose(found.x[0], point, atol=1e-9)
    if y:
        assert found.multipliers[0].tolist() == pytest.approx(y, abs=1e-9)
        assert max(map(abs, y)) > 0.005
    alone = run(own, METHODS[method], samplers[1], x, steps=STEPS, compile=False).result()
    assert torch.allclose(found.x[1], alone.x[0], atol=1e-12)


def test_as_many_rows_of_constraints_as_parameters() -> None:
    """49 parameters, 48 constraints and a row for no cell: a vector of the model's size is no table of constraints."""
    constraint = constraints.bounded_group_loss(48, bound=0.5)
    own, x = problem(constraint)
    own = replace(own, data=replace(own.data, groups={"group": own.data.groups["group"].clamp(max=47)}))
    assert len(x) == constraint.m + 1
    found = run(own, METHODS["SSLALM"], sampler(constraint), x, steps=STEPS, compile=False).result()
    point, y = in_a_loop(METHODS["SSLALM"], constraint, data())
    assert torch.allclose(found.x[0], point, atol=1e-9)
    assert found.multipliers[0].tolist() == pytest.approx(y, abs=1e-9)


@pytest.mark.filterwarnings("ignore:step .* was skipped:RuntimeWarning")
def test_a_step_that_is_skipped_leaves_the_running_means_alone() -> None:
    own, x = problem(CONSTRAINTS["against the mean"])
    own = replace(own, data=replace(own.data, y=own.data.y.index_fill(0, torch.tensor([17]), 2.0)))
    found = run(own, METHODS["DescentAscent"], sampler(own.constraint), x, steps=STEPS, compile=False).result()
    assert 0 < int(found.skipped[0]) < STEPS
    point, y = in_a_loop(METHODS["DescentAscent"], CONSTRAINTS["against the mean"], own.data)
    assert torch.allclose(found.x[0], point, atol=1e-9)
    assert found.multipliers[0].tolist() == pytest.approx(y, abs=1e-9)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_evaluation_is_that_of_bound_constraints(name: str) -> None:
    """Over all examples; over those of some groups, rows about the others are NaN, and the mean is that of the rest."""
    own, x = problem(CONSTRAINTS[name])
    labels = own.data.y
    bound = replace(own, constraint=CONSTRAINTS[name].bind(own.data.groups["group"], labels))
    everybody = torch.arange(EXAMPLES)
    if name != "rates":  # some group has no example with label 1
        found, expected = (one.evaluate(x, everybody) for one in (own, bound))
        assert torch.allclose(found.loss, expected.loss)
        assert torch.allclose(found.c, expected.c)
    some = (own.data.groups["group"] < 20).nonzero().flatten()
    few = own.evaluate(x, some)
    rows = 20 * CONSTRAINTS[name].m // GROUPS
    assert few.c[:, rows:].isnan().all()
    if name == "each":
        assert torch.allclose(few.c[:, :rows], bound.evaluate(x, everybody).c[:, :rows])
    if name == "against the mean":
        gaps = few.c[0, :rows:2] + 0.1
        assert gaps.mean().abs() < 1e-9
        assert gaps.abs().max() > 0.01


@pytest.mark.parametrize("method", [StochasticGhost(), SwitchingSubgradient(), SSLALM()])
def test_methods_that_treat_all_together_are_refused(method: Algorithm[Any]) -> None:
    own, x = problem(CONSTRAINTS["each"])
    with pytest.raises(ValueError, match=r"treats all constraints together.*SSLALM\(samples=1\)"):
        run(own, method, sampler(CONSTRAINTS["each"]), x, steps=2)


def test_a_sampler_and_a_problem_must_agree() -> None:
    free = CONSTRAINTS["each"]
    bound = constraints.bounded_group_loss(2, bound=0.5).bind(torch.arange(EXAMPLES) % 2)
    own, x = problem(free)
    with pytest.raises(ValueError, match="bound to no dataset, and the sampler draws from cells"):
        run(own, DescentAscent(), sampler(bound), x, steps=2)
    own, x = problem(bound)
    with pytest.raises(ValueError, match="the sampler draws from"):
        run(own, DescentAscent(), sampler(free), x, steps=2)


def test_other_constraints_beside_it_are_told() -> None:
    both = constraints.combine(CONSTRAINTS["each"], constraints.weight_norm(1.0))
    own, x = problem(both)
    with pytest.raises(ValueError, match="'weight norm <= 1' cannot be evaluated on examples of any groups"):
        run(own, DescentAscent(), sampler(CONSTRAINTS["each"]), x, steps=2)
    pairs = constraints.pairwise_loss_parity(GROUPS, bound=0.1)
    own, x = problem(pairs)
    with pytest.raises(ValueError, match="compares all cells"):
        run(own, DescentAscent(), sampler(pairs), x, steps=2)


def test_a_custom_loop_needs_bound_constraints() -> None:
    own, _ = problem(CONSTRAINTS["each"])
    with pytest.raises(ValueError, match=r"work in run\(\); use constraint.bind"):
        own.source(sampler(CONSTRAINTS["each"])).next(("fc",), None)
