"""Story 2: a physics-informed network that fits noisy measurements, with residual and boundary
within bounds.

Convection: u_t + 30 u_x = 0 on [0, 2 pi] x [0, 1], u(x, 0) = sin x, periodic in x; u = sin(x - 30
t). Helmholtz: u_xx + u_yy + u = q on [-1, 1]^2, u = 0 on the boundary; u = sin(pi x) sin(4 pi y), q
from it.

200 measurements with a noise of 0.1; their mean squared error is the objective. The bounds are on
mean squares, in the raw units of the equation: the residual of Helmholtz starts near 7,000, the
boundary below 1.
"""

from __future__ import annotations

from functools import cache
from math import pi

import torch
from story import Draw, Loss, Practice, Problem, Run, generator, seeded
from torch import Tensor, nn

from fairbound import constraints

BETA, POINTS, EDGE, NOISE = 30.0, 256, 64, 0.1


class Field(nn.Module):
    """(N, 2) points -> u (N,), its first derivatives (2, N) and its second ones (2, N), carried
    through the layers."""

    def __init__(
        self, center: tuple[float, float], radius: tuple[float, float], width: int = 64
    ) -> None:
        super().__init__()
        self.register_buffer("center", torch.tensor(center))
        self.register_buffer("radius", torch.tensor(radius))
        self.layers = nn.ModuleList(
            [
                nn.Linear(2, width),
                nn.Linear(width, width),
                nn.Linear(width, width),
                nn.Linear(width, 1),
            ]
        )

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = (points - self.center) / self.radius
        first = torch.diag(1 / self.radius)[:, None, :].expand(2, len(points), 2)
        second = torch.zeros_like(first)
        for k, layer in enumerate(self.layers):
            a, first, second = layer(a), first @ layer.weight.T, second @ layer.weight.T
            if k < 3:
                a = torch.tanh(a)
                slope = 1 - a * a
                first, second = slope * first, slope * second - 2 * a * slope * first * first
        return a[:, 0], first[..., 0], second[..., 0]


def uniform(low: Tensor, high: Tensor, count: int, rng: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, 2, generator=rng)


class Convection:
    low, high, lr, bounds = (
        torch.tensor([0.0, 0.0]),
        torch.tensor([2 * pi, 1.0]),
        1e-3,
        torch.tensor([0.1, 0.01]),
    )

    @staticmethod
    def solution(p: Tensor) -> Tensor:
        return torch.sin(p[:, 0] - BETA * p[:, 1])

    @staticmethod
    def residual(p: Tensor, u: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return first[1] + BETA * first[0]

    @staticmethod
    def edge(model: nn.Module, s: Tensor) -> Tensor:
        """(2 EDGE,) what must be 0: the initial value, and the difference of both sides; s is
        uniform in [0, 1]."""
        x, t, zero = 2 * pi * s[:EDGE], s[EDGE:], torch.zeros(EDGE)
        sides = torch.stack([zero, t], 1), torch.stack([zero + 2 * pi, t], 1)
        u = model(torch.cat([torch.stack([x, zero], 1), *sides]))[0]
        return torch.cat([u[:EDGE] - torch.sin(x), u[EDGE : 2 * EDGE] - u[2 * EDGE :]])


class Helmholtz:
    low, high, lr, bounds = (
        torch.tensor([-1.0, -1.0]),
        torch.tensor([1.0, 1.0]),
        1e-3,
        torch.tensor([10.0, 0.01]),
    )

    @staticmethod
    def solution(p: Tensor) -> Tensor:
        return torch.sin(pi * p[:, 0]) * torch.sin(4 * pi * p[:, 1])

    @staticmethod
    def residual(p: Tensor, u: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return second.sum(0) + u - (1 - 17 * pi**2) * Helmholtz.solution(p)

    @staticmethod
    def edge(model: nn.Module, s: Tensor) -> Tensor:
        """(2 EDGE,) u on the four sides."""
        along, side = 2 * s - 1, torch.ones(2 * EDGE)
        side[::2] = -1
        flip = (torch.arange(2 * EDGE) % 4 < 2)[:, None]
        return model(
            torch.where(flip, torch.stack([along, side], 1), torch.stack([side, along], 1))
        )[0]


@cache
def measurements(equation: type) -> tuple[Tensor, Tensor]:
    rng = generator(3)
    points = uniform(equation.low, equation.high, 200, rng)
    return points, equation.solution(points) + NOISE * torch.randn(200, generator=rng)


def built(equation: type, seed: int) -> Run:
    rng, (where, measured), low, high = (
        generator(seed),
        measurements(equation),
        equation.low,
        equation.high,
    )
    with seeded(seed):
        model = Field(tuple((low + high).div(2).tolist()), tuple((high - low).div(2).tolist()))

    def values(points: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        u, first, second = model(torch.cat([where, points]))
        n = len(where)
        residual = equation.residual(points, u[n:], first[:, n:], second[:, n:]).square().mean()
        fit = (u[:n] - measured).square().mean()
        return fit, torch.stack([residual, equation.edge(model, s).square().mean()])

    def draw() -> Draw:
        fit, terms = values(uniform(low, high, POINTS, rng), torch.rand(2 * EDGE, generator=rng))
        residual, boundary = terms - equation.bounds
        return Draw(
            fit,
            terms,
            {"losses": fit[None], "values": {"residual": residual, "boundary": boundary}},
        )

    def evaluate() -> tuple[float, Tensor]:
        rng = generator(98)
        fit, terms = values(uniform(low, high, 4096, rng), torch.rand(2 * EDGE, generator=rng))
        return float(fit), terms / equation.bounds - 1

    def error() -> list[float]:
        """Relative error of the solution in %, which no run knows, to two digits."""
        points = uniform(low, high, 4096, generator(97))
        exact = equation.solution(points)
        return [float(f"{100 * float((model(points)[0] - exact).norm() / exact.norm()):.2g}")]

    optimizer = torch.optim.Adam(model.parameters(), lr=equation.lr)
    return Run(model, optimizer, draw, constraints.given("residual", "boundary"), evaluate, error)


def convection(seed: int) -> Run:
    return built(Convection, seed)


def helmholtz(seed: int) -> Run:
    return built(Helmholtz, seed)


def weighted_residual(run: Run, weight: float) -> Loss:
    """Measurements and boundary, which have the unit of u, count 1; the residual has the weight."""
    return lambda draw: draw.f + draw.terms[1] + weight * draw.terms[0]


def gradient_norms(run: Run, share: float) -> Loss:
    """Learning rate annealing of Wang, Teng and Perdikaris (2021).

    Every 10 steps each weight moves by `share` to max |grad residual| / mean |grad of its term|.
    """
    weights, turn, parameters = [1.0, 1.0], 0, list(run.model.parameters())

    def gradient(term: Tensor) -> Tensor:
        parts = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        return torch.cat([part.reshape(-1).abs() for part in parts if part is not None])

    def loss(draw: Draw) -> Tensor:
        nonlocal turn
        residual, boundary = draw.terms
        if turn % 10 == 0:
            top = float(gradient(residual).max())
            for i, term in enumerate((draw.f, boundary)):
                weights[i] += share * (top / max(float(gradient(term).mean()), 1e-12) - weights[i])
        turn += 1
        return residual + weights[0] * draw.f + weights[1] * boundary

    return loss


PRACTICES = (
    Practice(
        "fixed weight of the residual",
        "",
        1.0,
        (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0),
        weighted_residual,
    ),
    Practice(
        "gradient-norm weighting",
        "share",
        0.1,
        (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9),
        gradient_norms,
    ),
)
PROBLEMS = tuple(
    Problem(
        name,
        "misfit",
        f"mean squared residual at most {limit}, boundary 0.01",
        6000,
        build,
        PRACTICES,
        ("error of u in %",),
    )
    for name, limit, build in (("Convection", 0.1, convection), ("Helmholtz", 10, helmholtz))
)
