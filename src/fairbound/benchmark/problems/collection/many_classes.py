"""A hundred Gaussian classes of unequal noise, the losses of all pairs within BOUND: 9,900 constraints.

The constraints are divided by sqrt(m), so that their vector has the size of one of them: the multipliers of so many
noisy gaps would grow beyond what a step size for one constraint can bear.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbound.benchmark.problems import BenchmarkProblem, Instance
from fairbound.benchmark.problems.scaled import scaled
from fairbound.constraints.notions import pairwise_loss_parity
from fairbound.data.dataset import Dataset, Split
from fairbound.data.samplers import BatchSpec
from fairbound.training.functional import initial_points, make_functional
from fairbound.training.problem import Problem

CLASSES, EXAMPLES, INPUTS, WIDTH, BOUND, SEED = 100, 50, 16, 32, 0.3, 2026
LEAST, LARGEST = 0.5, 1.1  # noise of the first and of the last class


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")


def build(instance: int = 0, splits: int = 1) -> Instance:
    generator = torch.Generator().manual_seed(SEED)
    centers = torch.randn(CLASSES, 1, INPUTS, generator=generator)
    deviations = torch.linspace(LEAST, LARGEST, CLASSES)[:, None, None]
    X = centers + deviations * torch.randn(CLASSES, EXAMPLES, INPUTS, generator=generator)
    y = torch.arange(CLASSES).repeat_interleave(EXAMPLES)
    constraint = pairwise_loss_parity([str(k) for k in range(CLASSES)], bound=BOUND).bind(y)
    constraint = scaled(constraint, constraint.m**-0.5, loss)
    return Instance(
        problem=Problem(
            make_functional(network())[0],
            loss,
            constraint,
            Dataset(X.flatten(0, 1), y, {"class": y}),
        ),
        starts=lambda seeds: initial_points(network, seeds),
        splits=(Split.all_train(len(y)),),
        batch=BatchSpec(objective=100, cell=2),
        scale=constraint.m**-0.5,
    )


PROBLEMS = (
    BenchmarkProblem(
        name="many-classes",
        title="A hundred Gaussian classes of unequal noise: the losses of all pairs within .3",
        family="many classes",
        tracks=("solve", "many"),
        build=build,
        scale=BOUND,
        noise="which examples a mini-batch draws, of all and of each class",
        kinds="<= nonlinear",
        origin="stands for SPBM's CIFAR-100 with 9,900 pairs of classes, without a download",
    ),
)
