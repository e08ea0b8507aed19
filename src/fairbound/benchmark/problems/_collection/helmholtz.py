"""A network that solves the Helmholtz equation u'' + u = 0 on [-4, 4] from measurements of one
half.

min mean squared error of noisy measurements on [-4, 0]  s.t.  mean squared residual of the equation
on [-4, 4] <= BOUND

The equation continues the solution into the half without measurements. The exact one is sin(z +
PHASE), in units where the wave number is 1. An example is a pair, a measurement and a point where
the residual is taken.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fairbound.benchmark.problems import BenchmarkProblem, Instance
from fairbound.benchmark.problems.expectation import expectation
from fairbound.training._functional import initial_points, make_functional

_EXAMPLES, _WIDTH, LENGTH, PHASE, _NOISE, _BOUND, _SEED = 512, 24, 4.0, 0.5, 0.1, 0.02, 2026


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, 1)
    )


_FORWARD = make_functional(_network())[0]


def _solution(z: Tensor) -> Tensor:
    return torch.sin(z + PHASE)


def _derivatives(x: Tensor, z: Tensor) -> Tensor:
    """(3, B): u, u' and u'' of the network at the points z (B,), carried from layer to layer by the
    chain rule."""
    one = torch.ones_like(z)
    h = torch.stack([z, one, 0 * one])[..., None]  # (3, B, units)
    tensors = [
        part.view(shape)
        for part, shape in zip(x.split(_FORWARD.sizes), _FORWARD.shapes, strict=True)
    ]
    *hidden, last = zip(tensors[::2], tensors[1::2], strict=True)
    only_u = h.new_tensor([1.0, 0.0, 0.0])[:, None, None]
    for weight, bias in hidden:
        a, slope, curvature = (h @ weight.T + only_u * bias).unbind(0)
        t = torch.tanh(a)
        s = 1 - t.square()
        h = torch.stack([t, s * slope, s * curvature - 2 * t * s * slope.square()])
    found: Tensor = (h @ last[0].T + only_u * last[1]).squeeze(-1)
    return found


def _values(x: Tensor, examples: Tensor) -> Tensor:
    """examples (B, 3): where and what was measured, and where the residual is taken -> (B, 2)."""
    u, _, curvature = _derivatives(x, torch.cat([examples[:, 0], examples[:, 2]]))
    (fit, at), (_, bend) = u.chunk(2), curvature.chunk(2)
    return torch.stack([(fit - examples[:, 1]).square(), (bend + at).square() - _BOUND], 1)


def build() -> Instance:
    generator = torch.Generator().manual_seed(_SEED)
    measured = -LENGTH * torch.rand(_EXAMPLES, generator=generator)
    data = _solution(measured) + _NOISE * torch.randn(_EXAMPLES, generator=generator)
    points = torch.linspace(-LENGTH, LENGTH, _EXAMPLES)
    examples = torch.stack([measured, data, points], 1)
    made = expectation(_values, examples, torch.zeros(_FORWARD.n), inequalities=1, batch=16)
    return replace(made, starts=lambda seeds: initial_points(_network, seeds))


PROBLEMS = (
    BenchmarkProblem(
        name="helmholtz",
        title=(
            "Physics-informed network: fit of measurements, with the Helmholtz equation's residual"
            " at most 0.02"
        ),
        family="control, physics, others",
        build=build,
        changed=True,
        scale=_BOUND,
        noise="which measurements and which points of the residual a mini-batch draws",
        kinds="<= nonlinear",
        origin=(
            "physics-informed networks with the residual as constraint, as in SQP-Adam's"
            " experiments"
        ),
    ),
)
