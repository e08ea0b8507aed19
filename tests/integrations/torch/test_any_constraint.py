"""Constraints of every kind in a loop: proxies, values handed over, observed at some steps, bounds,
scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from methods import bce
from torch import Tensor, nn

from fairbound import Constrained, constraints
from fairbound.algorithms import (
    SSLALM,
    DescentAscent,
    LevelConstrained,
    Penalty,
    SQPAdam,
    TrackedSQP,
)
from fairbound.constraints import MiniBatch
from fairbound.core import Algorithm


def data(size: int = 400) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    y = (X.sum(1) + torch.randn(size, generator=generator, dtype=torch.float64) > 1).double()
    return X, y


def logistic() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1).double()


# Proxies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("proxy", "reached"), [(True, 0.70), (False, 0.69)])
def test_a_rate_is_met_exactly_with_a_proxy(proxy: bool, reached: float) -> None:
    """70 % of the predictions positive: the probabilities' mean is .7 where the decisions' share is
    another."""
    X, y = data()
    model = logistic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    rate = constraints.minimum_rate(0.7, equality=True, proxy=proxy)
    fair = Constrained(model, rate, DescentAscent(eta=0.05))
    for k in range(1500):
        for group in optimizer.param_groups:
            group["lr"] = 0.3 / (1 + k / 200)
        optimizer.zero_grad()
        outputs = model(X)[:, 0]
        fair.backward(bce(outputs, y), outputs=outputs)
        optimizer.step()
    outputs = model(X)[:, 0].detach()
    share, probability = (outputs > 0).double().mean().item(), torch.sigmoid(outputs).mean().item()
    if proxy:
        assert share == pytest.approx(0.7, abs=0.003)
        assert abs(probability - 0.7) > 0.02
    else:
        assert probability == pytest.approx(0.7, abs=0.003)
        assert abs(share - 0.7) > 0.02


def test_a_proxy_moves_multipliers_by_the_rate_and_the_model_by_the_surrogate() -> None:
    X, y = data(40)
    group = torch.arange(40) % 2
    model = logistic()
    fair = Constrained(
        model, constraints.demographic_parity(2, bound=0.0, proxy=True), DescentAscent(eta=1.0)
    )
    outputs = model(X)[:, 0]
    info = fair.backward(bce(outputs, y), group, outputs=outputs)
    exact = [(outputs[group == g] > 0).double().mean() for g in (0, 1)]
    assert info.c.tolist() == pytest.approx(
        [float(exact[0] - exact[1]), float(exact[1] - exact[0])], abs=1e-12
    )
    multipliers = [*fair.multipliers.values()]
    assert multipliers == pytest.approx([max(0.0, float(c)) for c in info.c], abs=1e-12)
    model.zero_grad()
    outputs = model(X)[:, 0]
    soft = [torch.sigmoid(outputs)[group == g].mean() for g in (0, 1)]
    lagrangian = bce(outputs, y).mean() + (multipliers[0] - multipliers[1]) * (soft[0] - soft[1])
    expected = torch.autograd.grad(lagrangian, [*model.parameters()], retain_graph=True)
    fair.backward(bce(outputs, y), group, outputs=outputs)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, gradient, atol=1e-12)  # type: ignore[arg-type]


def test_a_proxy_is_for_rates() -> None:
    with pytest.raises(ValueError, match=r"proxy=True.*for rates"):
        constraints.equal_opportunity(2, bound=0.1, of="loss", proxy=True)


# Values that the loop computes --------------------------------------------------------------------

METHODS: dict[str, Algorithm[Any]] = {
    "DescentAscent": DescentAscent(eta=0.1),
    "SSLALM": SSLALM(samples=1, eta=0.1),
    "Penalty": Penalty(weight=3.0),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_second_task_is_bounded_by_a_value_handed_over(name: str) -> None:
    """min (x - 2)^2 s.t. (x + 1)^2 <= 2.25, that is x = .5; the second value is there at every
    third step only."""
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([x], lr=0.02)
    fair = Constrained([x], constraints.given("second task"), METHODS[name])
    for k in range(1500):
        optimizer.param_groups[0]["lr"] = 0.02 / (1 + k / 300)
        optimizer.zero_grad()
        values = {"second task": (x + 1).square() - 2.25} if k % 3 == 0 else None
        fair.backward((x - 2).square(), values=values)
        optimizer.step()
    assert x.item() == pytest.approx(0.5, abs=0.03)
    assert fair.observed == {"second task": 500}


@pytest.mark.parametrize(
    "method",
    [DescentAscent(eta=1.0), SSLALM(eta=1.0, mu=0.0, rho=0.0, samples=1, slack_from_first=False)],
)
def test_what_is_not_observed_leaves_no_trace(method: Algorithm[Any]) -> None:
    x = nn.Parameter(torch.ones(1, dtype=torch.float64))
    fair = Constrained([x], constraints.given("a", "b", equality=True), method)
    info = fair.backward(x.square(), values={"a": 2 * x})
    assert fair.multipliers == {"a": 2.0, "b": 0.0}
    assert info.c[1].isnan()
    assert fair.ages == {"a": 0, "b": 1}
    x.grad = None
    fair.backward(x.square())
    assert fair.multipliers == {"a": 2.0, "b": 0.0}
    assert x.grad.item() == 2.0  # type: ignore[attr-defined]


def test_a_function_says_which_of_its_rows_are_observed() -> None:
    x = nn.Parameter(torch.ones(2, dtype=torch.float64))
    shown = iter([[True, False], [False, True], [True, True]])

    def some(batch: MiniBatch) -> tuple[Tensor, Tensor]:
        return batch.parameters[0] * torch.tensor([1.0, 3.0]), torch.tensor(next(shown))

    fair = Constrained([x], constraints.function(some, "one", "two"), DescentAscent(eta=1.0))
    for expected in ({"one": 1.0, "two": 0.0}, {"one": 1.0, "two": 3.0}, {"one": 2.0, "two": 6.0}):
        x.grad = None
        fair.backward(x.sum().reshape(1))
        assert fair.multipliers == pytest.approx(expected)
    assert x.grad is not None
    assert x.grad.tolist() == [1 + 1.0, 1 + 9.0]


@pytest.mark.parametrize("method", [SQPAdam(), TrackedSQP(), LevelConstrained()])
def test_every_row_s_gradient_where_some_rows_are_not_observed(method: Algorithm[Any]) -> None:
    """A function has the graph of all its rows; a step is that of the function of those that are
    observed."""
    gradients = []
    for rows in (1, 2):
        x = nn.Parameter(torch.tensor([0.3, 2.0]))

        def some(batch: MiniBatch, rows: int = rows) -> tuple[Tensor, Tensor]:
            return batch.parameters[0].square()[:rows] - 1, torch.tensor([True, False])[:rows]

        fair = Constrained([x], constraints.function(some, *["one", "two"][:rows]), method)
        assert not fair.backward(x.sum().reshape(1)).skipped
        assert x.grad is not None
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_names_of_values() -> None:
    with pytest.raises(TypeError, match=r"given\(\) needs.*name"):
        constraints.given()


# Bounds -------------------------------------------------------------------------------------------


def test_one_bound_and_one_step_for_each_constraint() -> None:
    losses, groups = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 2])
    each = constraints.bounded_group_loss(["A", "B", "C"], bound=[0.5, 1.0, 5.0])
    assert each.names == ("loss of A <= 0.5", "loss of B <= 1", "loss of C <= 5")
    assert each.evaluate(MiniBatch(losses, groups)).tolist() == pytest.approx([0.5, 1.0, -1.0])
    parity = constraints.loss_parity(3, bound=[0.1, 0.2, 0.3])
    assert parity.bound.tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    pairs = constraints.pairwise_loss_parity(3, bound=[0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    assert pairs.bound.tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    steps = DescentAscent(eta=(0.5, 0.25, 1.0))  # and one step for each
    scale = nn.Parameter(torch.ones(1))
    fair = Constrained([scale], each, steps)
    fair.backward(scale * losses, groups)
    assert [*fair.multipliers.values()] == pytest.approx([0.25, 0.25, 0.0])
    with pytest.raises(ValueError, match=r"\(2,\) bounds.*3 constraints"):
        constraints.bounded_group_loss(3, bound=[0.1, 0.2])
    with pytest.raises(ValueError, match="finite and >= 0"):
        constraints.loss_parity(2, bound=[0.1, -0.2])
