"""Classes whose losses must be within a bound of each other: noisy digits, and a hundred Gaussian
classes.

Ten digits are 90 constraints on gaps, a hundred classes of unequal noise 9,900. The constraints are
divided by sqrt(m), so that their vector has the size of one of them: the multipliers of so many
noisy gaps would grow beyond what a step size for one constraint can bear.
"""

from __future__ import annotations

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbound.benchmark.problems import BenchmarkProblem, Instance
from fairbound.benchmark.problems._scaled import scaled_constraint
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.data._dataset import Dataset, Split
from fairbound.data._samplers import BatchSpec
from fairbound.training._functional import initial_points, make_functional
from fairbound.training._problem import Problem

_HIDDEN, _SEED = 32, 2026
DIGITS_BOUND, DIGITS_NOISE, _COPIES = 0.1, 0.4, 3
CLASSES_BOUND, CLASSES, _EXAMPLES, INPUTS = 0.3, 100, 50, 16
LEAST, LARGEST = 0.5, 1.1  # noise of the first and of the last class


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(outputs, labels, reduction="none")


def parity(X: Tensor, y: Tensor, group: str, bound: float, batch: BatchSpec) -> Instance:
    """Instance of a network with one hidden layer, with classes y as groups."""
    classes = int(y.max()) + 1
    constraint = pairwise_loss_parity([str(k) for k in range(classes)], bound=bound).bind(y)
    constraint = scaled_constraint(constraint, constraint.m**-0.5, loss)

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(X.shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, classes))

    return Instance(
        problem=Problem(make_functional(network())[0], loss, constraint, Dataset(X, y, {group: y})),
        starts=partial(initial_points, network),
        splits=(Split.all_train(len(y)),),
        batch=batch,
        scale=constraint.m**-0.5,
    )


def digits() -> Instance:
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels / 16).float().repeat(_COPIES, 1)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(_SEED))
    X, y = (
        images - images.mean(0) + DIGITS_NOISE * noise,
        torch.from_numpy(labels).long().repeat(_COPIES),
    )
    return parity(X, y, "digit", DIGITS_BOUND, BatchSpec(objective=120, cell=24))


def gaussian_classes() -> Instance:
    generator = torch.Generator().manual_seed(_SEED)
    centers = torch.randn(CLASSES, 1, INPUTS, generator=generator)
    deviations = torch.linspace(LEAST, LARGEST, CLASSES)[:, None, None]
    X = centers + deviations * torch.randn(CLASSES, _EXAMPLES, INPUTS, generator=generator)
    y = torch.arange(CLASSES).repeat_interleave(_EXAMPLES)
    return parity(X.flatten(0, 1), y, "class", CLASSES_BOUND, BatchSpec(objective=100, cell=2))


PROBLEMS = (
    BenchmarkProblem(
        name="digits-parity",
        title="Noisy digits: the losses of the ten classes within 0.1 of each other",
        family="many constraints",
        build=digits,
        scale=DIGITS_BOUND,
        noise="which digits a mini-batch draws, of all and of each class",
        kinds="<= nonlinear",
        origin="class-loss parity of SPBM's experiments on CIFAR-10, on data without a download",
        license="digits of scikit-learn (UCI, CC BY 4.0)",
    ),
    BenchmarkProblem(
        name="many-classes",
        title="A hundred Gaussian classes of unequal noise: the losses of all pairs within 0.3",
        family="many constraints",
        build=gaussian_classes,
        scale=CLASSES_BOUND,
        noise="which examples a mini-batch draws, of all and of each class",
        kinds="<= nonlinear",
        origin="stands for SPBM's CIFAR-100 with 9,900 pairs of classes, without a download",
    ),
)
