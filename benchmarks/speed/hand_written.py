"""The same methods written directly, as an engineer would, one run at a time: what stacked runs are
compared with.

`plain_*` are plain eager loops: examples drawn, one forward pass for all of a step, one backward
pass, the formulas; SSL-ALM and switching keep parameters and gradients in one vector each, since
their formulas are about vectors.

`authors_*` have the form of the code behind the paper as far as it is known. Of that code itself
the reference has only times on another machine, where a plain SGD step took .56 to .72 ms: SSL-ALM
5.3 to 7 ms, 9 to 10 plain steps; Ghost 90 to 108 ms, 140 to 160 plain steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import torch
from measuring import Contestant
from setting import BOUND, examples, network
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound.algorithms import StochasticGhost
from fairbound.data import Dataset

B, TAU, ETA, RHO, MU, BETA = 8, 0.01, 0.05, 1.0, 2.0, 0.5
Step = Callable[[], None]


class Draws:
    """Mini-batches: examples of the objective and as many of each of two groups."""

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
    """Both sides of the gap between two groups, whose examples stand one after the other."""
    first, second = losses.unflatten(0, (2, -1)).mean(1)
    return torch.stack([first - second, second - first]) - BOUND


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def moved(model: nn.Module, d: Tensor) -> None:
    with torch.no_grad():
        for p, part in zip(
            model.parameters(), d.split([p.numel() for p in model.parameters()]), strict=True
        ):
            p.add_(part.view_as(p))


class Flat:
    """All parameters of a model in one vector `x`, all gradients in another, `g`: the model's
    tensors are views."""

    def __init__(self, model: nn.Module) -> None:
        parameters = list(model.parameters())
        self.x = flat([p.detach() for p in parameters])
        self.g = torch.zeros_like(self.x)
        sizes = [p.numel() for p in parameters]
        for p, x, g in zip(parameters, self.x.split(sizes), self.g.split(sizes), strict=True):
            p.data, p.grad = x.view_as(p), g.view_as(p)

    def backward(self, value: Tensor) -> None:
        self.g.zero_()
        value.backward()


# Plain eager loops --------------------------------------------------------------------------------


def plain_sgd(draws: Draws | None = None, model: nn.Module | None = None) -> Step:
    draws, model = draws or Draws(examples()), model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=TAU)

    def step() -> None:
        chosen = draws.objective()
        optimizer.zero_grad()
        bce(model(draws.X[chosen]), draws.y[chosen]).backward()
        optimizer.step()

    return step


def plain_ssl_alm(draws: Draws | None = None, model: nn.Module | None = None) -> Step:
    """Both mini-batches in one pass: they are evaluated at the same x."""
    draws, model = draws or Draws(examples()), model or network()
    parameters = Flat(model)
    x, zx = parameters.x, parameters.x.clone()
    y, s, zs = torch.zeros(2), torch.zeros(2), torch.zeros(2)

    def step() -> None:
        nonlocal y, s, zs
        chosen = torch.cat([draws.objective(), draws.cells(), draws.cells()])
        losses = bce(model(draws.X[chosen]), draws.y[chosen], reduction="none")
        c = constraints(losses[B : 3 * B])
        with torch.no_grad():
            y = y + ETA * (c + s)
            if y.norm() >= 10.0:
                y = torch.zeros(2)
            w = y + RHO * (constraints(losses[3 * B :]) + s)
        parameters.backward(losses[:B].mean() + w @ c)
        with torch.no_grad():
            from_zx, from_zs = x - zx, s - zs
            x.sub_(parameters.g.add_(from_zx, alpha=MU), alpha=TAU)
            zx.add_(from_zx, alpha=BETA)
            s, zs = (s - TAU * (w + MU * from_zs)).clamp_(min=0), zs + BETA * from_zs

    return step


def plain_switching(draws: Draws | None = None, model: nn.Module | None = None) -> Step:
    """Test, objective and constraint in one pass: a second one costs more than the examples that
    are not used."""
    draws, model = draws or Draws(examples()), model or network()
    parameters, k = Flat(model), 0

    def step() -> None:
        nonlocal k
        chosen = torch.cat([draws.cells(), draws.objective(), draws.cells()])
        losses = bce(model(draws.X[chosen]), draws.y[chosen], reduction="none")
        with torch.no_grad():
            worst, side = constraints(losses[: 2 * B]).max(0)
        feasible = worst.item() <= 0.01 / (k + 1) ** 0.5
        parameters.backward(
            losses[2 * B : 3 * B].mean() if feasible else constraints(losses[3 * B :])[side]
        )
        with torch.no_grad():
            parameters.x.sub_(parameters.g, alpha=0.05 if feasible else 0.04)
        k += 1

    return step


# In the form of the authors' code -----------------------------------------------------------------


class Passes:
    """Values and gradients one by one: passes of its own for each."""

    def __init__(self, draws: Draws | None = None, model: nn.Module | None = None) -> None:
        self.draws, self.model = draws or Draws(examples()), model or network()

    def _passed(self, value: Tensor) -> tuple[float, Tensor]:
        self.model.zero_grad()
        value.backward()
        return value.item(), flat([p.grad for p in self.model.parameters()])  # type: ignore[misc]

    def loss(self, chosen: Tensor) -> Tensor:
        return bce(self.model(self.draws.X[chosen]), self.draws.y[chosen])

    def constraint(self, side: int, first: Tensor, second: Tensor) -> Tensor:
        gap = self.loss(first) - self.loss(second)
        return (gap if side == 0 else -gap) - BOUND

    def values(self, first: Tensor, second: Tensor) -> Tensor:
        """c, without derivatives."""
        with torch.no_grad():
            return torch.stack([self.constraint(side, first, second) for side in (0, 1)])

    def all(
        self, objective: Tensor, first: Tensor, second: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """g, c, J."""
        g = self._passed(self.loss(objective))[1]
        found = [self._passed(self.constraint(side, first, second)) for side in (0, 1)]
        return (
            g,
            torch.tensor([value for value, _ in found]),
            torch.stack([row for _, row in found]),
        )


def authors_ssl_alm(draws: Draws | None = None, model: nn.Module | None = None) -> Step:
    """SSL-ALM that evaluates the objective and every constraint by itself.

    Modelled: a forward and a backward pass for the objective and for each constraint of the first
    mini-batch, forward passes alone for each constraint of the second, and gradients flattened for
    the formulas. That every constraint is evaluated by itself is documented for the authors' loop
    (of its SGD), and so is the deep copy of its parameters inside it; how it passes examples
    through the model is not, and is our interpretation. Not modelled, though documented: the
    printing inside the loop. The reference's figure for the code itself is 9 to 10 plain SGD steps;
    `stacked.py` prints what this one takes, about half of that.
    """
    passes = Passes(draws, model)
    draws, model = passes.draws, passes.model
    y, s, zs = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    zx = flat([p.detach() for p in model.parameters()])

    def step() -> None:
        nonlocal y, s, zs, zx
        g, c, J = passes.all(draws.objective(), draws.group(0), draws.group(1))
        again = passes.values(draws.group(0), draws.group(1))
        y = y + ETA * (c + s)
        if y.norm() >= 10.0:
            y = torch.zeros(2)
        w = y + RHO * (again + s)
        x = flat([p.detach() for p in model.parameters()])
        d = -TAU * (g + J.T @ w + MU * (x - zx))
        zx, zs, s = (
            zx + BETA * (x - zx),
            zs + BETA * (s - zs),
            (s - TAU * (w + MU * (s - zs))).clamp(min=0),
        )
        moved(model, d)
        deepcopy(model.state_dict())

    return step


def solved(g: Tensor, c: Tensor, J: Tensor, rho: float, beta: float, lam: float) -> np.ndarray:
    """Ghost's two subproblems in n dimensions, with tau = 1: kappa by HiGHS, the direction by
    OSQP."""
    import scipy.sparse as sparse
    from qpsolvers import solve_qp
    from scipy.optimize import linprog

    g_, c_, J_ = (t.double().numpy() for t in (g, c, J))
    m, n = J_.shape
    A = np.hstack([J_, -np.ones((m, 1))])
    t = linprog(
        np.r_[np.zeros(n), 1.0],
        A_ub=A,
        b_ub=-c_,
        bounds=[(-rho, rho)] * n + [(0, None)],
        method="highs",
    ).fun
    kappa = (1 - lam) * max(c_.max(), 0.0) + lam * t
    box = np.full(n, beta)
    return solve_qp(
        sparse.eye(n, format="csc"),
        g_,
        sparse.csc_matrix(J_),
        kappa - c_,
        lb=-box,
        ub=box,
        solver="osqp",
    )


def authors_ghost(
    method: StochasticGhost,
    draws: Draws | None = None,
    model: nn.Module | None = None,
    levels: Iterator[int] | None = None,
) -> Step:
    """Ghost with the settings of `method`, its subproblems in n dimensions.

    Mini-batches of B and B 2^(N+1) examples, N geometric; odd and even half, the whole, and the
    single one. Documented of the authors' code: OSQP and HiGHS on n variables, most of the time
    here. The reference's figure for the code itself is 140 to 160 plain SGD steps; `ghost.py`
    prints what this one takes.
    """
    import osqp  # noqa: F401  (a solver that is missing is told here, not in the first step)
    import qpsolvers  # noqa: F401
    import scipy.optimize  # noqa: F401

    assert method.batch_size_probs is not None
    law = np.array(method.batch_size_probs)
    passes, alpha = Passes(draws, model), method.alpha
    draws, drawn = passes.draws, levels or _levels(law)

    def step() -> None:
        nonlocal alpha
        level = next(drawn)
        single, whole = (
            [draws.objective(b), draws.group(0, b), draws.group(1, b)]
            for b in (B, B * 2 ** (level + 1))
        )
        batches = [single, whole, [part[::2] for part in whole], [part[1::2] for part in whole]]
        d = [
            solved(*passes.all(*batch), rho=method.rho, beta=method.beta, lam=method.lam)
            for batch in batches
        ]
        direction = d[0] + (d[1] - (d[2] + d[3]) / 2) / law[level]
        moved(passes.model, torch.from_numpy(alpha * direction).float())
        alpha = alpha * (1 - method.decay * alpha)

    return step


def _levels(law: np.ndarray) -> Iterator[int]:
    generator = np.random.default_rng(0)
    while True:
        yield int(generator.choice(len(law), p=law))
