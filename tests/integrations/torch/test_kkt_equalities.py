"""Reports on equalities, and which constraints bind: by the data's standard error, whatever the
unit of c."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fairbound import KKT, MiniBatch, constraints, report_kkt
from fairbound.constraints._constraint import FunctionConstraint


class Point(nn.Module):
    """One number as a model."""

    def __init__(self, x: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([x], dtype=torch.float64))


def report(x: float, value: float, *, equality: bool, scale: float = 1.0) -> KKT:
    """Of min (x - 2)^2 / 2 s.t. x = value, or x <= value, at x."""
    model = Point(x)

    def excess(batch: MiniBatch) -> torch.Tensor:
        (point,) = batch.parameters
        return scale * (point - value)

    limit = FunctionConstraint(
        excess, ("x",), constraints.weight_norm(1.0).cells, equality=equality
    )
    return report_kkt(model, limit, [0], lambda _: MiniBatch((model.x - 2).square() / 2))


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_multiplier_of_an_equality_has_any_sign(scale: float) -> None:
    for value, multiplier in ((3.0, -1.0), (1.0, 1.0)):
        found = report(value, value, equality=True, scale=scale)
        assert found.multipliers["x"] == pytest.approx(multiplier / scale)
        assert found.stationarity == pytest.approx(0.0, abs=1e-12)
        assert "violated" not in str(found)


def test_an_equality_that_is_not_met_is_marked() -> None:
    assert "violated" in str(report(2.95, 3.0, equality=True))  # c = -0.05
    assert "violated" not in str(report(2.95, 3.0, equality=False))


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_what_binds_does_not_depend_on_the_unit(scale: float) -> None:
    """At x = 1 with x <= 1.0005 the constraint balances the gradient; with x <= 1.2 it does not
    bind."""
    near, far = (report(1.0, value, equality=False, scale=scale) for value in (1.0005, 1.2))
    assert near.multipliers["x"] == pytest.approx(1 / scale)
    assert near.stationarity == pytest.approx(0.0, abs=1e-12)
    assert (far.multipliers["x"], far.stationarity) == (0.0, pytest.approx(1.0))


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_a_gap_binds_within_its_standard_error(scale: float) -> None:
    """Two groups of 200 losses with standard deviation 1: the gap has one of 0.1."""
    torch.manual_seed(0)
    model = Point(1.0)
    noise, group = torch.randn(400, dtype=torch.float64), torch.arange(400) % 2
    # both groups have mean 0
    noise = noise - torch.stack([noise[group == k].mean() for k in (0, 1)])[group]

    def losses(_: int) -> MiniBatch:
        return MiniBatch(scale * (model.x * (1 + group) + noise), group)

    for room, binds in ((0.15, True), (0.25, False)):  # two standard errors
        limit = constraints.pairwise_loss_parity(2, bound=scale * (1 + room))  # the gap is 1
        multipliers = report_kkt(model, limit, [0], losses).multipliers
        # f falls with the gap
        assert (multipliers["1 - 0"] > 0 or multipliers["0 - 1"] > 0) is False
        found = report_kkt(
            model, limit, [0], lambda b: losses(b)._replace(losses=-losses(b).losses)
        )
        assert (max(found.multipliers.values()) > 0) is binds
