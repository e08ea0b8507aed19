"""A loop whose multipliers lengthen its step until it diverges is warned of; signs of infeasibility
beside it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from methods import bce
from torch import Tensor, nn

from fairbound import Constrained, DescentAscent, MiniBatch, constraints
from fairbound.algorithms import PHRALM, SPBM, NuPI, Penalty, StochasticGhost, TrackedSQP
from fairbound.algorithms._diagnostics import sign_of_divergence, signs_of_infeasibility

GROUPS, BOUND = 20, 0.03


def twenty_groups(seed: int, rows: int = 8000) -> tuple[Tensor, Tensor, Tensor]:
    """Groups in different places, with 0 to 38 % of their labels flipped."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(GROUPS, (rows,), generator=generator)
    X = (
        torch.randn(rows, 10, generator=generator)
        + torch.randn(GROUPS, 10, generator=generator)[groups]
    )
    y = (X @ torch.randn(10, generator=generator) > 0).float()
    flipped = torch.rand(rows, generator=generator) < 0.4 * groups / GROUPS
    return X, torch.where(flipped, 1 - y, y), groups


def train(seed: int, method: DescentAscent, steps: int, lr: float) -> Constrained:
    """A linear model with 380 constraints, mini-batches of 256."""
    X, y, groups = twenty_groups(seed)
    torch.manual_seed(seed)
    model = nn.Linear(10, 1)
    fair = Constrained(model, constraints.pairwise_loss_parity(GROUPS, bound=BOUND), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed + 100)
    for _ in range(steps):
        i = torch.randint(len(X), (256,), generator=generator)
        optimizer.zero_grad()
        fair.backward(bce(model(X[i])[:, 0], y[i]), groups[i])
        optimizer.step()
    return fair


@pytest.mark.parametrize("seed", range(5))
def test_it_warns_within_200_steps(seed: int) -> None:
    with pytest.warns(RuntimeWarning, match=r"step \d+.*loss.*diverges") as found:
        fair = train(seed, DescentAscent(eta=0.02), 200, lr=0.2)
    assert len([one for one in found if "diverges" in str(one.message)]) == 1
    assert found[0].filename == __file__
    assert "lr * (1 + sum of the multipliers)" in fair.diverging


def test_a_smaller_step_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fair = train(0, DescentAscent(eta=0.02), 300, lr=0.02)
    assert fair.diverging is None


# Two disjoint discs -------------------------------------------------------------------------------


def disjoint_discs(method: Any, steps: int = 200) -> Constrained:
    """|x - (3, 0)| <= 1 and |x + (3, 0)| <= 1."""
    x, center = nn.Parameter(torch.tensor([0.5, 1.0])), torch.tensor([3.0, 0.0])
    fair = Constrained([x], constraints.given("left", "right"), method)
    optimizer = torch.optim.SGD([x], lr=0.05)

    def batch(size: int = 1) -> MiniBatch:
        values = {"left": (x + center).square().sum() - 1, "right": (x - center).square().sum() - 1}
        return MiniBatch((x - torch.tensor([0.0, 2.0])).square().sum().expand(4), values=values)

    for _ in range(steps):
        optimizer.zero_grad()
        fair.backward_closure(batch)
        optimizer.step()
    return fair


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "method", [DescentAscent(), PHRALM(), NuPI(), SPBM()], ids=lambda m: type(m).__name__
)
def test_infeasible_and_diverging_are_both_reported(method: Any) -> None:
    fair = disjoint_discs(method)
    assert "the multipliers still grow" in (fair.infeasible or "")
    assert "the run diverges" in (fair.diverging or "")


@pytest.mark.parametrize(
    "method", [Penalty(), StochasticGhost(), TrackedSQP()], ids=lambda m: type(m).__name__
)
def test_a_violation_that_stands_is_a_sign_of_infeasibility(method: Any) -> None:
    fair = disjoint_discs(method)
    assert "the largest violation stands at " in (fair.infeasible or "")
    assert fair.diverging is None


# The sign itself ----------------------------------------------------------------------------------


def test_a_loss_that_grows_while_the_violation_falls_is_no_divergence() -> None:
    """From a model that fits the data the loss must grow until the constraints hold."""
    rising = [1e-3 * 1.2**k for k in range(40)]
    falling = [0.3 - 0.005 * k for k in range(40)]
    history = {"objective": rising, "violation": falling, "multiplier_sum": [3.0] * 40}
    assert sign_of_divergence(history) is None
    sign = sign_of_divergence(history | {"violation": [0.3 * 1.1**k for k in range(40)]})
    assert sign is not None
    assert "while the multipliers sum to 3" in sign


def test_a_loss_that_falls_while_the_violation_explodes_is_divergence() -> None:
    history = {
        "objective": [1 - 0.01 * k for k in range(40)],
        "violation": [0.5 * 1.3**k for k in range(40)],
    }
    assert "the largest violation grew from 0.845 to" in (sign_of_divergence(history) or "")
    assert (
        sign_of_divergence(history | {"violation": [-0.01 + 0.01 * k for k in range(40)]}) is None
    )


@pytest.mark.parametrize(
    ("last", "stands"), [([8.0] * 20, True), ([8.0 - 0.1 * k for k in range(20)], False)]
)
def test_a_violation_that_falls_or_is_noise_is_no_sign(last: list[float], stands: bool) -> None:
    def sign(violation: list[float]) -> str | None:
        return signs_of_infeasibility(
            {"violation": torch.tensor(violation)[:, None]}, range(len(violation))
        )[0]

    assert (sign([9.0] * 20 + last) is not None) == stands
    assert sign([9.0] * 20 + [0.1, -0.05, 0.2, 0.05] * 5) is None


def test_one_bad_mini_batch_is_no_divergence() -> None:
    objective, violation = [0.7] * 40, [0.1] * 40
    objective[-2:], violation[-2:] = [100.0, 90.0], [50.0, 40.0]
    assert sign_of_divergence({"objective": objective, "violation": violation}) is None
    assert sign_of_divergence({"objective": objective[:8], "violation": violation[:8]}) is None


def test_without_multipliers_the_step_is_named() -> None:
    sign = sign_of_divergence({"objective": [2.0**k for k in range(30)]})
    assert sign is not None
    assert sign.endswith("the run diverges; use a smaller step")
