"""A loop whose multipliers lengthen its step until it diverges: warned of while it happens, not called infeasible."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fairbound import Constrained, DescentAscent, constraints
from fairbound.algorithms.diagnostics import sign_of_divergence

GROUPS, BOUND = 20, 0.03


def twenty_groups(seed: int, rows: int = 8000) -> tuple[Tensor, Tensor, Tensor]:
    """Groups in different places, with 0 to 38 % of their labels flipped."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(GROUPS, (rows,), generator=generator)
    X = torch.randn(rows, 10, generator=generator) + torch.randn(GROUPS, 10, generator=generator)[groups]
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
        losses = binary_cross_entropy_with_logits(model(X[i])[:, 0], y[i], reduction="none")
        fair.backward(losses, groups[i])
        optimizer.step()
    return fair


@pytest.mark.parametrize("seed", range(5))
def test_it_warns_within_200_steps(seed: int) -> None:
    with pytest.warns(RuntimeWarning, match=r"by step \d+ the loss grew from .* the run diverges") as found:
        fair = train(seed, DescentAscent(eta=0.02), 200, lr=0.2)
    assert len([one for one in found if "diverges" in str(one.message)]) == 1
    assert found[0].filename == __file__
    assert "lr * (1 + sum of the multipliers)" in fair.diverging
    assert fair.infeasible is None


def test_a_smaller_step_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fair = train(0, DescentAscent(eta=0.02), 300, lr=0.02)
    assert fair.diverging is None


# The sign itself ------------------------------------------------------------------------------------------------------


def test_a_loss_that_grows_while_the_violation_falls_is_no_divergence() -> None:
    """From a model that fits the data the loss must grow until the constraints hold."""
    rising = [1e-3 * 1.2**k for k in range(40)]
    falling = [0.3 - 0.005 * k for k in range(40)]
    history = {"objective": rising, "violation": falling, "multiplier_sum": [3.0] * 40}
    assert sign_of_divergence(history) is None
    sign = sign_of_divergence(history | {"violation": [0.3 * 1.1**k for k in range(40)]})
    assert sign is not None
    assert "while the multipliers sum to 3" in sign


def test_one_bad_mini_batch_is_no_divergence() -> None:
    objective, violation = [0.7] * 40, [0.1] * 40
    objective[-2:], violation[-2:] = [100.0, 90.0], [50.0, 40.0]
    assert sign_of_divergence({"objective": objective, "violation": violation}) is None
    assert sign_of_divergence({"objective": objective[:8], "violation": violation[:8]}) is None


def test_without_multipliers_the_step_is_named() -> None:
    sign = sign_of_divergence({"objective": [2.0**k for k in range(30)]})
    assert sign is not None
    assert sign.endswith("the run diverges; use a smaller step")
