"""Two moons where every point has its own constraint: a loss of at most BOUND, on average over
noise in its position.

Feasible learning (Ramirez et al., 2025): no average hides a point that is hard. Each of POINTS
points has COPIES copies with Gaussian noise: they are its group, of which a step draws one. Weight
decay in the objective wants a smooth boundary, which leaves points at the tips of the moons with a
large loss. The constraints are divided by sqrt(m), so that their vector has the size of one of
them.
"""

from __future__ import annotations

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from fairbound.benchmark.problems import BenchmarkProblem, Instance
from fairbound.benchmark.problems._scaled import scaled_constraint
from fairbound.benchmark.problems.table import binary_cross_entropy, fully_connected
from fairbound.constraints._notions import bounded_group_loss
from fairbound.data._dataset import Dataset, Split
from fairbound.data._samplers import BatchSpec
from fairbound.training._functional import initial_points, make_functional
from fairbound.training._problem import Problem

POINTS, _COPIES, SPREAD, _NOISE, _DECAY, _BOUND, _SEED = 100, 20, 0.12, 0.05, 0.01, 0.15, 2026


def _network() -> nn.Module:
    return fully_connected(2, 32, 16)


NETWORK = make_functional(_network())[0]


def forward(x: Tensor, inputs: Tensor) -> Tensor:
    """(B, 2): the logit, and the weight decay."""
    logits = NETWORK(x, inputs)
    return torch.stack([logits, (_DECAY / 2 * x.square().sum()).expand_as(logits)], 1)


def own_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy(outputs[:, 0], labels)


def objective(outputs: Tensor, labels: Tensor) -> Tensor:
    return own_loss(outputs, labels) + outputs[:, 1]


def build() -> Instance:
    points, labels = make_moons(POINTS, noise=SPREAD, random_state=_SEED)
    generator = torch.Generator().manual_seed(_SEED)
    copies = torch.from_numpy(points).float().repeat_interleave(_COPIES, 0)
    X = copies + _NOISE * torch.randn(copies.shape, generator=generator)
    y = torch.from_numpy(labels).float().repeat_interleave(_COPIES)
    point = torch.arange(POINTS).repeat_interleave(_COPIES)
    constraint = scaled_constraint(
        bounded_group_loss(POINTS, bound=_BOUND).bind(point), POINTS**-0.5, own_loss
    )
    return Instance(
        problem=Problem(forward, objective, constraint, Dataset(X, y, {"point": point})),
        starts=lambda seeds: initial_points(_network, seeds),
        splits=(Split.all_train(len(y)),),
        batch=BatchSpec(objective=20, cell=1),
        scale=POINTS**-0.5,
    )


PROBLEMS = (
    BenchmarkProblem(
        name="two-moons",
        title="Two moons: the loss of every one of 100 points at most 0.15",
        family="many constraints",
        build=build,
        changed=True,
        scale=_BOUND,
        noise="which noisy copy of each point a mini-batch draws",
        kinds="<= nonlinear",
        origin="Feasible Learning (Ramirez et al., 2025), with noise in the inputs",
    ),
)
