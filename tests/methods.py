"""Every method of the registry in its variants, and a small problem to run them on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fairbound import (
    ALGORITHMS,
    BatchSpec,
    Dataset,
    Problem,
    Sampler,
    Split,
    initial_points,
    make_functional,
)
from fairbound.algorithms import (
    PHRALM,
    SPBM,
    SSLALM,
    Adaptive,
    DescentAscent,
    NuPI,
    StochasticGhost,
    SwitchingSubgradient,
    TrackedSQP,
)
from fairbound.algorithms.schedules import InverseSqrt, Linear
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.core import Algorithm, Draw, Estimate

F64 = torch.float64
METHODS: dict[str, Algorithm[Any]] = {name: build() for name, build in ALGORITHMS.items()} | {
    "DescentAscent, second draw": DescentAscent(second=True, eta=InverseSqrt(0.05)),
    "ALM": SSLALM(mu=0.0),
    "SSLALM, one draw": SSLALM(samples=1, clamp=True, y_max=0.05),
    "SSLALM, three draws": SSLALM(samples=3, slack_from_first=False, tau=Linear(0.05, 100)),
    "SSLALM, lag": SSLALM(samples=1, lag=True),
    "ALM, lag": SSLALM(samples=1, lag=True, mu=0.0),
    "PHRALM, second draw": PHRALM(second=True, lag=False, eta=InverseSqrt(5.0)),
    "NuPI, without memory": NuPI(nu=0.0, y_max=3.0),
    "SPBM, adaptive": SPBM(adapt=0.9, shrink=0.9, every=50, reciprocal=True),
    "Switching, adaptive": SwitchingSubgradient(
        eta_f=Adaptive(), eta_c=Adaptive(0.1), feasible_only=False, k0=3
    ),
    "Ghost, small box": StochasticGhost(beta=0.05, rho=0.01, p0=0.6, cap=3, alpha=0.3, d_max=0.1),
    "TrackedSQP, two steps": TrackedSQP(rhs="crz", alpha=0.1, alpha_c=0.3, least=0.05),
    "TrackedSQP, decay": TrackedSQP(rhs="decay", gamma=0.3, average=0.2),
}
# Scenarios of loops: a multiplier method, SSL-ALM in two forms, a method with Jacobians, Ghost.
# `check_algorithm` runs every method in a loop.
IN_A_LOOP = {
    name: METHODS[name]
    for name in ("DescentAscent", "SSLALM", "SSLALM, one draw", "TrackedSQP", "StochasticGhost")
}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))


def bce(outputs: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs, labels, reduction="none")


def classification(
    dtype: torch.dtype = F64, rows: int = 240, bound: float = 0.01
) -> tuple[Problem, Sampler, Tensor]:
    """A small net on two groups of synthetic examples: problem, sampler and eight starting
    points."""
    generator = torch.Generator().manual_seed(0)
    groups = (torch.arange(rows) % 3 == 0).long()
    X = torch.randn(rows, 4, dtype=F64, generator=generator) + 0.5 * groups[:, None]
    y = (X.sum(1) + 2 * torch.randn(rows, dtype=F64, generator=generator) > groups).to(F64)
    data = Dataset(X, y, {"group": groups}).to(dtype=dtype)
    constraint = pairwise_loss_parity(2, bound=bound).bind(groups)
    problem = Problem(make_functional(network())[0], bce, constraint, data)
    sampler = Sampler(Split.all_train(rows), constraint.cells, BatchSpec(6, 5))
    return problem, sampler, initial_points(network, range(8)).to(dtype)


def spoilt(problem: Problem, value: float, example: int = 17) -> Problem:
    """The loss of one example is multiplied by a value that is not finite."""
    marked = problem.data.X[example].clone()

    def forward(x: Tensor, X: Tensor) -> Tensor:
        factor = torch.where((marked == X).all(1), value, 1.0).to(x.dtype)
        return torch.stack([problem.forward(x, X), factor], 1)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return bce(outputs[:, 0], labels) * outputs[:, 1]

    return replace(problem, forward=forward, loss=loss)


class Counted(NamedTuple):
    k: Tensor  # () steps made


@dataclass(frozen=True, kw_only=True)
class Descends(Algorithm[Any]):
    """Gradient descent as a general method: what tests make others of."""

    tau: float = 0.1

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> Any:
        return Counted(x.new_zeros(()))

    def update(self, x: Tensor, state: Any, draw: Draw) -> tuple[Tensor, Any]:
        (sample,) = draw.unpack(self)
        return -self.tau * sample(x).grad(f=1.0), state._replace(k=state.k + 1)

    def primal_step(self, state: Any) -> float | Tensor:
        return self.tau
