"""The Fairret regularizer against the fairret library, value and gradient."""

from __future__ import annotations

import pytest
import torch

from fairbound import BatchSpec, Dataset, Problem, Sampler, Split, run
from fairbound.algorithms import SGD
from fairbound.constraints._regularizers import FairretNorm

fairret = pytest.importorskip(
    "fairret", reason="the fairret library is the oracle; pip install fairret"
)


@pytest.mark.parametrize("levels", [2, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_the_library(levels: int, seed: int) -> None:
    from fairret.loss import NormLoss
    from fairret.statistic import Accuracy

    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(40, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 2, (40,), generator=generator).double()
    groups = torch.cat(
        [torch.arange(levels), torch.randint(0, levels, (40 - levels,), generator=generator)]
    )
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    value = FairretNorm(column="race", levels=levels, weight=3.0)(ours, labels, {"race": groups})
    one_hot = torch.nn.functional.one_hot(groups, levels).double()
    expected = 3.0 * NormLoss(Accuracy())(theirs[:, None], one_hot, labels[:, None])
    value.backward()
    expected.backward()
    assert float(value.detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-12)


def test_an_absent_group_adds_nothing() -> None:
    """Where the library adds a constant 1."""
    logits, labels, groups = (
        torch.tensor([0.3, -0.2, 1.0]),
        torch.tensor([1.0, 0.0, 1.0]),
        torch.tensor([0, 1, 1]),
    )
    with_two = FairretNorm(column="g", levels=2)(logits, labels, {"g": groups})
    with_three = FairretNorm(column="g", levels=3)(logits, labels, {"g": groups})
    assert torch.equal(with_two, with_three)


def test_an_accuracy_of_zero_is_finite() -> None:
    value = FairretNorm(column="g", levels=2)(
        torch.full((4,), -1e4), torch.ones(4), {"g": torch.tensor([0, 0, 1, 1])}
    )
    assert torch.isfinite(value)


def test_regularized_sgd_narrows_the_accuracy_gap() -> None:
    """The paper's SGD-Fairret, in stacked runs: two groups of which one is noisier."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(1000) % 2
    X = torch.cat([torch.randn(1000, 1, generator=generator), groups[:, None].float()], 1)
    y = (X[:, 0] + groups * torch.randn(1000, generator=generator) * 3 > 0).float()
    data = Dataset(X, y, {"g": groups})
    loss = torch.nn.BCEWithLogitsLoss(reduction="none")
    soft_gap = {}
    for weight in (0.0, 3.0):
        regularizer = FairretNorm(column="g", levels=2, weight=weight)
        problem = Problem(
            lambda x, Z: Z @ x[:2] + x[2] + x[3] * Z[:, 0] * Z[:, 1], loss, None, data, regularizer
        )
        x = (
            run(
                problem,
                SGD(tau=0.1),
                Sampler(Split.all_train(1000), sizes=BatchSpec(64)).seeded(0, 1),
                torch.zeros(4),
                400,
            )
            .result()
            .x
        )
        # probability of the right label
        right = [torch.exp(-loss(problem.forward(point, X), y)) for point in x]
        soft_gap[weight] = sum(
            float((r[groups == 0].mean() - r[groups == 1].mean()).abs()) for r in right
        )
    assert soft_gap[3.0] < 0.7 * soft_gap[0.0]
