"""Neyman-Pearson classification of digits: min loss on the even ones s.t. loss on the odd ones <=
BOUND.

Logistic regression on the 64 pixels of scikit-learn's digits, with weight decay inside the loss, so
that the solution is unique. An example is a pair, one digit of each class: every gradient sees
both.
"""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, hessian
from torch.nn.functional import softplus

from fairbound.benchmark.problems import BenchmarkProblem, Instance, Solution
from fairbound.benchmark.problems.expectation import expectation

_BOUND, _DECAY, _SEED = 0.2, 1e-3, 2026


def _values(x: Tensor, pairs: Tensor) -> Tensor:
    """x (65,), pairs (B, 2, 65) with a column of ones -> (B, 2)."""
    even, odd = (pairs @ x).unbind(1)
    return torch.stack([softplus(-even) + _DECAY / 2 * x.square().sum(), softplus(odd) - _BOUND], 1)


@cache
def _examples() -> Tensor:
    """(N, 2, 65) pairs of an even and an odd digit; each in one pair, as far as there are even
    ones."""
    pixels, digits = load_digits(return_X_y=True)
    scaled = torch.from_numpy(pixels / 16 - (pixels / 16).mean(0))
    inputs = torch.cat([scaled, torch.ones(len(scaled), 1)], 1).double()
    classes = [inputs[torch.from_numpy(digits % 2 == odd)] for odd in (0, 1)]
    size, generator = min(map(len, classes)), torch.Generator().manual_seed(_SEED)
    return torch.stack(
        [one[torch.randperm(len(one), generator=generator)[:size]] for one in classes], 1
    )


@cache
def _solution() -> Solution:
    """Solve by Newton's method: in x at y = 1, then on the KKT conditions with the constraint
    active."""
    pairs = _examples()

    def lagrangian(z: Tensor) -> Tensor:
        f, c = _values(z[:-1], pairs).mean(0)
        value: Tensor = f + z[-1] * c
        return value

    z = torch.cat([torch.zeros(pairs.shape[-1]), torch.ones(1)]).double()
    n = len(z) - 1
    for k in range(18):
        g, H = grad(lagrangian)(z), hessian(lagrangian)(z)
        last = n if k < 8 else n + 1
        z = torch.cat([z[:last] - torch.linalg.solve(H[:last, :last], g[:last]), z[last:]])
    return Solution(z[:-1], z[-1:])


def build() -> Instance:
    start = torch.zeros(_examples().shape[-1], dtype=torch.float64)
    return expectation(_values, _examples(), start, inequalities=1, batch=32, solution=_solution())


PROBLEMS = (
    BenchmarkProblem(
        name="neyman-pearson",
        title=(
            "Digits, logistic regression: loss on even digits, with the loss on odd ones at"
            " most 0.2"
        ),
        family="known answers",
        build=build,
        changed=True,
        scale=_BOUND,
        noise="which digits a mini-batch draws",
        kinds="<= convex",
        convex=True,
        origin="Neyman-Pearson classification, as in the experiments of APriD (Yan and Xu, 2022)",
        license="digits of scikit-learn (UCI, CC BY 4.0)",
    ),
)
