"""Digits with losses of all ten classes within BOUND of each other: 90 constraints on the gaps.

The constraints are divided by sqrt(m), so that their vector has the size of one of them: the multipliers of so many
noisy gaps would grow beyond what a step size for one constraint can bear.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbound.benchmark.problems import BenchmarkProblem, Instance
from fairbound.benchmark.problems.scaled import scaled
from fairbound.constraints.notions import pairwise_loss_parity
from fairbound.data.dataset import Dataset, Split
from fairbound.data.samplers import BatchSpec
from fairbound.training.functional import initial_points, make_functional
from fairbound.training.problem import Problem

BOUND, NOISE, COPIES, SEED = 0.1, 0.4, 3, 2026


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")


def build(instance: int = 0, splits: int = 1) -> Instance:
    pixels, digits = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels / 16).float().repeat(COPIES, 1)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(SEED))
    X, y = images - images.mean(0) + NOISE * noise, torch.from_numpy(digits).long().repeat(COPIES)
    constraint = pairwise_loss_parity([str(digit) for digit in range(10)], bound=BOUND).bind(y)
    constraint = scaled(constraint, constraint.m**-0.5, loss)
    return Instance(
        problem=Problem(
            make_functional(network())[0],
            loss,
            constraint,
            Dataset(X, y, {"digit": y}),
        ),
        starts=lambda seeds: initial_points(network, seeds),
        splits=(Split.all_train(len(y)),),
        batch=BatchSpec(objective=120, cell=24),
        scale=constraint.m**-0.5,
    )


PROBLEMS = (
    BenchmarkProblem(
        name="digits-parity",
        title="Noisy digits: the losses of the ten classes within .1 of each other",
        family="images",
        tracks=("solve", "many"),
        build=build,
        scale=BOUND,
        noise="which digits a mini-batch draws, of all and of each class",
        kinds="<= nonlinear",
        origin="class-loss parity of SPBM's experiments on CIFAR-10, on data without a download",
        license="digits of scikit-learn (UCI, CC BY 4.0)",
    ),
)
