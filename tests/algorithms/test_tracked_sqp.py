"""Tracked SQP: averages and steps against numpy and a general solver, its right-hand sides, its
accuracy with noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transcription import Quadratic, draws, ghost_direction, path

from fairbound import BatchSpec, Dataset, Problem, Sampler, Split, constraints, make_functional, run
from fairbound.algorithms import TrackedSQP
from fairbound.algorithms._tracking import Averages
from fairbound.algorithms.schedules import Power
from fairbound.core import Sample

F64 = torch.float64
BOX = {"tau": 1.3, "beta": 2.0, "rho": 0.5}


class NumpyAverages:
    """The three recursions, for constraints whose Jacobian is averaged row by row."""

    def __init__(self, n: int, m: int) -> None:
        self.g, self.c, self.J, self.x = np.zeros(n), np.zeros(m), np.zeros((m, n)), np.zeros(n)

    def add(self, q: Quadratic, x: np.ndarray, a: float) -> None:
        self.c = (1 - a) * (self.c + self.J @ (x - self.x)) + a * q.c(x)
        self.J = (1 - a) * self.J + a * q.jacobian(x)
        self.g = (1 - a) * self.g + a * q.gradient(x)
        self.x = x.copy()


def right_hand_side(rhs: str, c: np.ndarray, J: np.ndarray) -> tuple[np.ndarray, float]:
    """c - r and lam, from the definitions."""
    if rhs == "ghost":
        return c, 0.4
    if rhs == "decay":
        return 0.7 * c, 1.0
    over = np.maximum(c, 0)
    v = -J.T @ over
    steps = np.linspace(0, 0.6, 60_001)  # sigma = .6; along v, of the violated rows
    left = 0.5 * ((c[:, None] + np.outer(J @ v, steps)) * (over > 0)[:, None]) ** 2
    t = steps[left.sum(0).argmin()]
    return c - np.maximum(c + t * J @ v, 0), 1.0


@pytest.mark.parametrize("two", [False, True], ids=["one step size", "two"])
@pytest.mark.parametrize("rhs", ["ghost", "crz", "decay"])
def test_steps(rhs: str, two: bool) -> None:
    functions, samples, x = draws(5)
    method = TrackedSQP(
        alpha=Power(0.3, 0.6),
        average=Power(1.0, 0.5),
        least=0.55,
        rhs=rhs,
        lam=0.4,
        gamma=0.7,
        sigma=0.6,
        alpha_c=0.8 if two else None,
        **BOX,
    )
    known = NumpyAverages(6, 3)
    for k, (point, state) in enumerate(path(method, samples, x)):
        known.add(functions[k], x, max((k + 1) ** -0.5, 0.55))
        c, lam = right_hand_side(rhs, known.c, known.J)
        d = ghost_direction(known.g, c, known.J, lam=lam, **BOX)
        v = ghost_direction(0 * known.g, c, known.J, lam=lam, **BOX)
        alpha = 0.3 * (k + 1) ** -0.6
        assert np.allclose(state.averages.c, known.c, atol=1e-10)
        expected = 0.8 * v + alpha * (d - v) if two else alpha * d
        # t on a grid
        assert np.allclose(point.numpy() - x, expected, atol=2e-5 if rhs == "crz" else 1e-6)
        x = point.numpy()


@pytest.mark.parametrize("least", [0.0, 0.3])
def test_without_noise_the_average_of_linear_constraints_is_their_value_on_any_path(
    least: float,
) -> None:
    """The test that sees a wrong correction: the accuracy on known problems hardly does."""
    generator = torch.Generator().manual_seed(0)
    A, b = (torch.randn(*shape, dtype=F64, generator=generator) for shape in ((3, 6), (3,)))
    sample = Sample.of(lambda x: (x.square().sum(), A @ x - b))
    x, averages = torch.zeros(6, dtype=F64), Averages.start(torch.zeros(6, dtype=F64), 3, None)
    for k in range(50):
        averages, _ = averages.updated(x, sample(x), max((k + 1) ** -0.67, least))
        assert torch.allclose(
            averages.c, A @ x - b, rtol=0, atol=1e-13 * float(x.abs().max() + 1) * (k + 1)
        )
        x = x + torch.randn(6, dtype=F64, generator=generator)


def groups_problem(
    notion: constraints.Constraint, groups: Tensor
) -> tuple[Problem, Sampler, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(200, 3, dtype=F64, generator=generator) + 0.3 * groups[:, None]
    y = torch.randn(200, dtype=F64, generator=generator)
    bound = notion.bind(groups)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        forward, x = make_functional(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double())
    problem = Problem(
        forward,
        lambda out, labels: (out - labels).square(),
        bound,
        Dataset(X, y, {"group": groups}),
    )
    return problem, Sampler(Split.all_train(200), bound.cells, BatchSpec(8, 6)), x


def test_gradients_of_groups_are_averaged_not_of_constraints() -> None:
    """All pairs of 5 groups are 20 constraints and 5 rows; the averaged Jacobian is that of the
    constraints."""
    groups = torch.arange(200) % 5
    problem, sampler, x = groups_problem(constraints.pairwise_loss_parity(5, bound=0.05), groups)
    method, source = TrackedSQP(), problem.source(sampler)
    state = method.init(x, problem.m, source.first(("fc",))(x))
    assert state.averages.rows.shape == (5, 4)
    assert problem.m == 20
    whole = Averages.start(x, problem.m, None)  # the same, constraint by constraint
    for k in range(4):
        draw = source.next(method.evaluates, None)
        e = draw.samples[0](x)
        averages, J = state.averages.updated(x, e, (k + 1) ** -0.67)
        whole, rows = whole.updated(x, e._replace(cells=None), (k + 1) ** -0.67)
        assert torch.allclose(J, rows, atol=1e-12)
        assert torch.allclose(averages.c, whole.c, atol=1e-12)
        d, state = method.update(x, state, draw)
        x = x + d
    assert run(problem, method, sampler, x, 5).result().x.isfinite().all()
