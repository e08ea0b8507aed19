"""The same methods as an engineer would write them by hand, one run at a time: what stacked runs are compared with.

`plain_*` are plain eager loops: rows drawn, one forward pass for all rows of a step, one backward pass, the formulas.
`authors_*` have the form of the code behind the paper: a forward and a backward pass of its own for the objective and
for every constraint and mini-batch, gradients flattened after each, and for Ghost the n-dimensional problems given to
OSQP and HiGHS. They are written from that description (paper-notes.md has its times on another machine).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from measuring import Contestant
from setting import BOUND, network, people
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound.data import Dataset

B, TAU, ETA, RHO, MU, BETA = 8, 0.01, 0.05, 1.0, 2.0, 0.5
Step = Callable[[], None]


class Rows:
    """Mini-batches: rows of the objective and as many of each of two groups."""

    def __init__(self, data: Dataset) -> None:
        self.X, self.y = data.X, data.y
        self.pools = [(data.groups["group"] == g).nonzero().flatten() for g in (0, 1)]
        self.generator = torch.Generator().manual_seed(0)

    def objective(self, size: int = B) -> Tensor:
        return torch.randint(len(self.X), (size,), generator=self.generator)

    def group(self, g: int, size: int = B) -> Tensor:
        return self.pools[g][torch.randint(len(self.pools[g]), (size,), generator=self.generator)]

    def cells(self, size: int = B) -> Tensor:
        return torch.cat([self.group(0, size), self.group(1, size)])


def repeated(step: Step, chunk: int) -> Contestant:
    def work() -> int:
        for _ in range(chunk):
            step()
        return chunk

    return work


def constraints(losses: Tensor) -> Tensor:
    """Both sides of the gap between two groups, whose rows stand one after the other."""
    first, second = losses.unflatten(0, (2, -1)).mean(1)
    return torch.stack([first - second, second - first]) - BOUND


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def moved(model: nn.Module, d: Tensor) -> None:
    with torch.no_grad():
        for p, part in zip(model.parameters(), d.split([p.numel() for p in model.parameters()]), strict=True):
            p.add_(part.view_as(p))


# Plain eager loops ----------------------------------------------------------------------------------------------------


def plain_sgd(rows: Rows | None = None, model: nn.Module | None = None) -> Step:
    rows, model = rows or Rows(people()), model or network()
    optimiser = torch.optim.SGD(model.parameters(), lr=TAU)

    def step() -> None:
        chosen = rows.objective()
        optimiser.zero_grad()
        bce(model(rows.X[chosen]), rows.y[chosen]).backward()
        optimiser.step()

    return step


def plain_ssl_alm(rows: Rows | None = None, model: nn.Module | None = None) -> Step:
    rows, model = rows or Rows(people()), model or network()
    parameters = list(model.parameters())
    y, s, zs = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    zx = flat([p.detach() for p in parameters])

    def step() -> None:
        nonlocal y, s, zs, zx
        chosen, second = torch.cat([rows.objective(), rows.cells()]), rows.cells()
        losses = bce(model(rows.X[chosen]), rows.y[chosen], reduction="none")
        c = constraints(losses[B:])
        with torch.no_grad():
            again = constraints(bce(model(rows.X[second]), rows.y[second], reduction="none"))
            y = y + ETA * (c + s)
            if y.norm() >= 10.0:
                y = torch.zeros(2)
            w = y + RHO * (again + s)
        gradients = torch.autograd.grad(losses[:B].mean() + (w * c).sum(), parameters)
        with torch.no_grad():
            x = flat([p.detach() for p in parameters])
            d = -TAU * (flat(list(gradients)) + MU * (x - zx))
            zx, zs, s = zx + BETA * (x - zx), zs + BETA * (s - zs), (s - TAU * (w + MU * (s - zs))).clamp(min=0)
        moved(model, d)

    return step


def plain_switching(rows: Rows | None = None, model: nn.Module | None = None) -> Step:
    rows, model = rows or Rows(people()), model or network()
    parameters, k = list(model.parameters()), 0

    def step() -> None:
        nonlocal k
        test = rows.cells()
        with torch.no_grad():
            c = constraints(bce(model(rows.X[test]), rows.y[test], reduction="none"))
        feasible = bool(c.max() <= 0.01 / (k + 1) ** 0.5)
        chosen = rows.objective() if feasible else rows.cells()
        losses = bce(model(rows.X[chosen]), rows.y[chosen], reduction="none")
        value = losses.mean() if feasible else constraints(losses)[int(c.argmax())]
        gradients = torch.autograd.grad(value, parameters)
        moved(model, -(0.05 if feasible else 0.04) * flat(list(gradients)))
        k += 1

    return step


# In the form of the authors' code -------------------------------------------------------------------------------------


class Passes:
    """Values and gradients one by one: a forward and a backward pass for each."""

    def __init__(self, rows: Rows | None = None, model: nn.Module | None = None) -> None:
        self.rows, self.model = rows or Rows(people()), model or network()

    def _passed(self, value: Tensor) -> tuple[float, Tensor]:
        self.model.zero_grad()
        value.backward()
        return value.item(), flat([p.grad for p in self.model.parameters()])  # type: ignore[misc]

    def loss(self, chosen: Tensor) -> Tensor:
        return bce(self.model(self.rows.X[chosen]), self.rows.y[chosen])

    def objective(self, chosen: Tensor) -> tuple[float, Tensor]:
        return self._passed(self.loss(chosen))

    def constraint(self, side: int, first: Tensor, second: Tensor) -> tuple[float, Tensor]:
        gap = self.loss(first) - self.loss(second)
        return self._passed((gap if side == 0 else -gap) - BOUND)

    def all(self, objective: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """g, c, J."""
        g = self.objective(objective)[1]
        found = [self.constraint(side, first, second) for side in (0, 1)]
        return g, torch.tensor([value for value, _ in found]), torch.stack([row for _, row in found])


def authors_ssl_alm(rows: Rows | None = None, model: nn.Module | None = None) -> Step:
    passes = Passes(rows, model)
    rows, model = passes.rows, passes.model
    y, s, zs = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    zx = flat([p.detach() for p in model.parameters()])

    def step() -> None:
        nonlocal y, s, zs, zx
        g, c, J = passes.all(rows.objective(), rows.group(0), rows.group(1))
        first, second = rows.group(0), rows.group(1)
        again = torch.tensor([passes.constraint(side, first, second)[0] for side in (0, 1)])
        y = y + ETA * (c + s)
        if y.norm() >= 10.0:
            y = torch.zeros(2)
        w = y + RHO * (again + s)
        x = flat([p.detach() for p in model.parameters()])
        d = -TAU * (g + J.T @ w + MU * (x - zx))
        zx, zs, s = zx + BETA * (x - zx), zs + BETA * (s - zs), (s - TAU * (w + MU * (s - zs))).clamp(min=0)
        moved(model, d)

    return step


def solved(g: Tensor, c: Tensor, J: Tensor, rho: float, beta: float, lam: float) -> np.ndarray:
    """Ghost's two subproblems in n dimensions: kappa by HiGHS, the direction by OSQP."""
    import scipy.sparse as sparse
    from qpsolvers import solve_qp
    from scipy.optimize import linprog

    g_, c_, J_ = (t.double().numpy() for t in (g, c, J))
    m, n = J_.shape
    A = np.hstack([J_, -np.ones((m, 1))])
    t = linprog(np.r_[np.zeros(n), 1.0], A_ub=A, b_ub=-c_, bounds=[(-rho, rho)] * n + [(0, None)], method="highs").fun
    kappa = (1 - lam) * max(c_.max(), 0.0) + lam * t
    box = np.full(n, beta)
    return solve_qp(sparse.eye(n, format="csc"), g_, sparse.csc_matrix(J_), kappa - c_, lb=-box, ub=box, solver="osqp")


def authors_ghost(p0: float, most: int) -> Step:
    """Mini-batches of B and B 2^(N+1) rows, N geometric; odd and even half, the whole, and the single one."""
    passes = Passes()
    rows, draws = passes.rows, np.random.default_rng(0)
    law = p0 * (1 - p0) ** np.arange(most + 1)
    law = law / law.sum()

    def step() -> None:
        level = int(draws.choice(most + 1, p=law))
        sizes = (B, B * 2 ** (level + 1))
        single, whole = ([rows.objective(b), rows.group(0, b), rows.group(1, b)] for b in sizes)
        batches = [single, whole, [part[::2] for part in whole], [part[1::2] for part in whole]]
        d = [solved(*passes.all(*batch), rho=0.1, beta=10.0, lam=0.5) for batch in batches]
        direction = d[0] + (d[1] - (d[2] + d[3]) / 2) / law[level]
        moved(passes.model, torch.from_numpy(0.01 * direction).float())

    return step
