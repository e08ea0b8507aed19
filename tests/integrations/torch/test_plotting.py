"""`fair.plot()` draws what the loop went through: the loss, every constraint with its bound, and
the forces."""

from __future__ import annotations

import pytest
import torch

from fairbound import Constrained, DescentAscent, MultiplierMethod, constraints

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")


def trained(steps: int, groups: int = 2, method: MultiplierMethod | None = None) -> Constrained:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    fair = Constrained(model, constraints.bounded_group_loss(groups, bound=0.1), method)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = (model(torch.randn(60, 3))[:, 0] - torch.randn(60)).square()
        fair.backward(losses, torch.arange(60) % groups)
        optimizer.step()
    return fair


def test_the_last_point_is_what_the_loop_logs() -> None:
    fair = trained(60)
    loss, c, force = fair.plot().axes
    # the bound is a line of its own
    assert [len(axis.lines) for axis in (loss, c, force)] == [1, 3, 2]
    assert set(c.lines[-1].get_ydata()) == {0.0}
    logged = fair.log_values()
    for axis, kind in ((c, "constraint"), (force, "force")):
        for line, name in zip(axis.lines, fair.names, strict=False):
            assert (line.get_label(), line.get_xdata()[-1]) == (
                name,
                59 + (line.get_xdata()[0] == 1),
            )
            assert line.get_ydata()[-1] == pytest.approx(logged[f"{kind}/{name}"], abs=1e-5)


def test_a_method_without_forces_shows_multipliers_and_many_constraints_their_largest() -> None:
    few, many = trained(60, method=DescentAscent()), trained(60, groups=30)
    assert [axis.get_ylabel().split(",")[0] for axis in few.plot().axes] == [
        "loss",
        "constraint",
        "multiplier",
    ]
    largest = many.plot().axes[1].lines[0]
    assert largest.get_ydata()[-1] == pytest.approx(
        many.log_values()["constraint/largest"], rel=1e-4
    )


def test_many_steps_are_thinned_and_none_is_an_error() -> None:
    points = trained(450).plot().axes[0].lines[0].get_xdata()
    assert 100 <= len(points) <= 200
    assert set(points[1:] - points[:-1]) == {4}
    with pytest.raises(ValueError, match=r"before.*first step"):
        trained(0).plot()
