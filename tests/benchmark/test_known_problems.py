"""Problems with exact answers: their certificates, their equivalent forms, and formulas against
numpy."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
import pytest
import torch

from fairbound.algorithms import SSLALM, DescentAscent
from fairbound.benchmark.problems import load, reference
from fairbound.benchmark.problems._certificate import derivatives, kkt_residual
from fairbound.benchmark.problems._collection import (
    grid_world,
    hock_schittkowski,
    least_squares,
    orthogonal,
    qcqp,
    small_problems,
)
from fairbound.benchmark.problems._collection._convex import minimizer
from fairbound.benchmark.problems._scaled import scaled_instance
from fairbound.training._runner import run

MODULES = (least_squares, qcqp, hock_schittkowski, small_problems, grid_world, orthogonal)
ALL = [problem.name for module in MODULES for problem in module.PROBLEMS]
BY_POINT = [name for name in ALL if load(name).optimum is None]
SLOW = "least-squares-500-groups"  # its smaller one, least-squares-groups, takes the same code
POINTS = [pytest.param(name, marks=pytest.mark.slow) if name == SLOW else name for name in BY_POINT]
BY_VALUE = [name for name in ALL if load(name).optimum is not None]
# a tie of three coordinates makes its gradient; rounding breaks it where x is rotated
NONSMOOTH = "p5"


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_which_are_known_by_value_alone() -> None:
    assert sorted(BY_VALUE) == ["grid-world", "hs26", "orthogonal"]


# References ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POINTS)
def test_the_stored_solution_solves_the_problem(name: str) -> None:
    found, instance = reference(name, "generated"), load(name).build()
    assert found is not None
    assert found.exact
    x, y = numbers(*found.x), numbers(*found.y)
    assert kkt_residual(instance, x, y) <= 1e-6
    assert found.residual <= 1e-6
    train = instance.splits[0].train
    assert float(instance.problem.evaluate(x, train).loss) == pytest.approx(
        found.loss, rel=1e-9, abs=1e-9
    )
    start = instance.problem.evaluate(instance.starts(range(5)), train).loss
    assert float(start.median()) == pytest.approx(found.start, rel=1e-9)
    assert kkt_residual(instance, x + 0.1, y) > 1e-3, "the certificate must tell a wrong point"


@pytest.mark.parametrize("name", BY_VALUE)
def test_the_stored_value_is_that_of_the_problem(name: str) -> None:
    found, optimum = reference(name, "generated"), load(name).optimum()
    assert found.exact
    assert found.residual <= 1e-6
    assert found.loss == pytest.approx(optimum.loss, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", POINTS)
def test_with_scaled_constraints_the_solution_has_other_multipliers(name: str) -> None:
    plain, moved = load(name).build(), scaled_instance(load(name).build(), 0.01)
    assert moved.scale == 0.01
    if name != NONSMOOTH:
        assert kkt_residual(moved, moved.solution.x, moved.solution.y) <= 1e-6
    train = plain.splits[0].train
    before = plain.problem.evaluate(plain.solution.x, train)
    after = moved.problem.evaluate(moved.solution.x, train)
    assert float(after.loss) == pytest.approx(float(before.loss), rel=1e-9, abs=1e-9)
    assert torch.allclose(after.c.sort().values, moved.scale * before.c.sort().values, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_methods_take_steps(name: str) -> None:
    for factor in (1.0, 100.0):
        instance = scaled_instance(load(name).build(), factor)
        start = instance.starts((0, 1))
        for method in (DescentAscent(), SSLALM()):
            samplers = [instance.sampler(i, seed) for i, seed in enumerate((0, 1))]
            result = run(instance.problem, method, samplers, start, 2, compile=False).result()
            assert result.x.isfinite().all()
            assert not torch.equal(result.x, start)
            assert not result.skipped.any()


# Hock and Schittkowski: formulas once more, with the divisors of the titles -----------------------

ROOT2 = 2.0**0.5
HS: dict[int, tuple[Callable[[np.ndarray], list[float]], list[float], float]] = {
    # number: ([f, c...] divided, at, the published f*)
    6: (lambda x: [(1 - x[0]) ** 2 / 2, x[1] - x[0] ** 2], [1, 1], 0),
    7: (
        lambda x: [log(1 + x[0] ** 2) - x[1], ((1 + x[0] ** 2) ** 2 + x[1] ** 2 - 4) / 4],
        [0, 3**0.5],
        -(3**0.5),
    ),
    10: (
        lambda x: [x[0] - x[1], (3 * x[0] ** 2 - 2 * x[0] * x[1] + x[1] ** 2 - 1) / 4],
        [0, 1],
        -1,
    ),
    22: (
        lambda x: [(x[0] - 2) ** 2 + (x[1] - 1) ** 2, x[0] + x[1] - 2, x[0] ** 2 - x[1]],
        [1, 1],
        1,
    ),
    26: (
        lambda x: [
            ((x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4) / 10,
            ((1 + x[1] ** 2) * x[0] + x[2] ** 4 - 3) / 10,
        ],
        [1, 1, 1],
        0,
    ),
    27: (
        lambda x: [
            (0.01 * (x[0] - 1) ** 2 + (x[1] - x[0] ** 2) ** 2) / 4,
            (x[0] + x[2] ** 2 + 1) / 4,
        ],
        [-1, 1, 0],
        0.04 / 4,
    ),
    28: (
        lambda x: [((x[0] + x[1]) ** 2 + (x[1] + x[2]) ** 2) / 2, (x @ [1, 2, 3] - 1) / 4],
        [0.5, -0.5, 0.5],
        0,
    ),
    35: (
        lambda x: [
            (9 - x @ [8, 6, 4] + x @ np.array([[2, 1, 1], [1, 2, 0], [1, 0, 1]]) @ x) / 2,
            (x @ [1, 1, 2] - 3) / 2,
            *-x,
        ],
        [4 / 3, 7 / 9, 4 / 9],
        1 / 18,
    ),
    39: (
        lambda x: [-x[0], (x[1] - x[0] ** 3 - x[2] ** 2) / 2, (x[0] ** 2 - x[1] - x[3] ** 2) / 2],
        [1, 1, 0, 0],
        -1,
    ),
    40: (
        lambda x: [
            -np.prod(x),
            x[0] ** 3 + x[1] ** 2 - 1,
            x[0] ** 2 * x[3] - x[2],
            x[3] ** 2 - x[1],
        ],
        [2 ** (-1 / 3), 1 / ROOT2, 2 ** (-11 / 12), 2 ** (-1 / 4)],
        -0.25,
    ),
    48: (
        lambda x: [
            ((x[0] - 1) ** 2 + (x[1] - x[2]) ** 2 + (x[3] - x[4]) ** 2) / 4,
            (x.sum() - 5) / 2,
            (x[2] - 2 * (x[3] + x[4]) + 3) / 2,
        ],
        [1] * 5,
        0,
    ),
    71: (
        lambda x: [
            (x[0] * x[3] * x[:3].sum() + x[2]) / 10,
            1 - np.prod(x) / 25,
            *(1 - x),
            *(x - 5),
            (x @ x - 40) / 10,
        ],
        [1, 4.742999644, 3.821149979, 1.379408293],
        1.70140173,
    ),
}


@pytest.mark.parametrize("number", HS)
def test_formulas_against_numpy(number: int) -> None:
    function, at, value = HS[number]
    instance = load(f"hs{number}").build()
    everything = instance.splits[0].train
    start = instance.starts([0])[0]
    for x in (numbers(*at), start, start + torch.arange(len(start)) / 7):
        found = instance.problem.evaluate(x, everything)
        expected = function(x.numpy())
        assert np.allclose([*found.loss.tolist(), *found.c[0].tolist()], expected, atol=1e-11)
    assert function(np.array(at, dtype=float))[0] == pytest.approx(value, abs=1e-8)
    if instance.solution is not None:
        assert instance.solution.x.tolist() == pytest.approx(at, abs=1e-7)


# The others ---------------------------------------------------------------------------------------


def test_noise_is_centered() -> None:
    for name in ("hs6", "hs71", "p1", "p5"):
        assert load(name).build().problem.data.X.mean(0).abs().max() < 1e-15


def test_gaps_of_whitened_groups_are_linear_and_some_constraints_bind() -> None:
    examples = least_squares._generated(100)
    X = examples[:, 7, :-1]
    assert torch.allclose(
        X.T @ X / len(X), torch.eye(least_squares._FEATURES, dtype=torch.float64), atol=1e-12
    )
    instance = load("least-squares-groups").build()
    a, b = instance.starts([0])[0], torch.ones(least_squares._FEATURES, dtype=torch.float64)
    J = [derivatives(instance, x).J for x in (a, b)]
    assert torch.allclose(*J, atol=1e-10)
    active = int((instance.solution.y > 0).sum())
    assert 3 <= active <= least_squares._FEATURES
    assert instance.problem.m == 200
    many = load("least-squares-500-groups").build()
    assert many.problem.m == 1000
    assert 3 <= int((many.solution.y > 0).sum()) <= least_squares._FEATURES


def test_qcqp_has_active_and_inactive_constraints_and_agrees_with_another_solver() -> None:
    from scipy.optimize import minimize

    instance = load("qcqp").build()
    x, y = instance.solution
    assert (len(x), len(y)) == (200, 8)
    assert 0 < int((y > 0).sum()) < 8

    def at(z: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        found = derivatives(instance, torch.from_numpy(z))
        return float(found.f), found.g.numpy(), -found.c.numpy(), -found.J.numpy()

    found = minimize(
        lambda z: at(z)[:2],
        np.zeros(200),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda z: at(z)[2], "jac": lambda z: at(z)[3]},
        options={"ftol": 1e-10, "maxiter": 300},
    )
    assert found.success
    assert np.abs(found.x - x.numpy()).max() < 1e-3


def test_the_interior_point_method_says_where_there_is_no_solution() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    A, b = torch.cat([one, -one]), numbers(-1, -1)  # x <= -1 and x >= 1
    with pytest.raises(ValueError, match="feasible"):
        minimizer(one, numbers(0), torch.zeros(2, 1, 1, dtype=torch.float64), A, b)


def test_the_linear_program_of_the_grid_world_agrees_with_policy_evaluation() -> None:
    found = grid_world.program()
    start = grid_world.starts().mean(0)
    loss, *costs = (start @ grid_world.policy_values(torch.from_numpy(found.policy))).tolist()
    assert loss == pytest.approx(found.loss, abs=1e-9)
    assert costs == pytest.approx(grid_world._BOUNDS, abs=1e-9)  # both multipliers are positive
    assert (found.y > 0.01).all()
    assert found.gap < 1e-9


def test_value_iteration_on_the_lagrangian_gives_the_dual_value_of_the_grid_world() -> None:
    """min over policies of paid_0 + y'(paid - b), by dynamic programming, is F* at the exact
    multipliers."""
    found, (P, paid) = grid_world.program(), grid_world.model()
    cost = paid @ numbers(1, *found.y)
    V = torch.zeros(grid_world._STATES, dtype=torch.float64)
    for _ in range(400):
        V = cost + grid_world.DISCOUNT * (P @ V).amin(1)
    dual = float(grid_world.starts().mean(0) @ V - numbers(*found.y) @ numbers(*grid_world._BOUNDS))
    assert dual == pytest.approx(found.loss, abs=1e-9)


def test_the_policy_of_the_linear_program_is_approached_by_logits() -> None:
    found, instance = grid_world.program(), load("grid-world").build()
    logits = torch.from_numpy(np.log(np.maximum(found.policy, 1e-12))).flatten() / grid_world._UNIT
    value = instance.problem.evaluate(logits, instance.splits[0].train)
    assert float(value.loss) == pytest.approx(found.loss, abs=1e-8)
    assert value.c.max() < 1e-8


def test_no_orthonormal_matrix_beats_the_eigenvectors() -> None:
    instance, optimum = load("orthogonal").build(), load("orthogonal").optimum()
    generator = torch.Generator().manual_seed(0)
    covariance = orthogonal._examples().T @ orthogonal._examples() / orthogonal._EXAMPLES
    best = torch.linalg.eigh(covariance)[1][:, -orthogonal.RANK :]
    nearby = best + 0.05 * torch.randn(50, *best.shape, dtype=torch.float64, generator=generator)
    points = torch.cat([best[None], torch.linalg.qr(nearby)[0]]).flatten(1)
    found = instance.problem.evaluate(points, instance.splits[0].train)
    assert found.c.abs().max() < 1e-12
    assert float(found.loss[0]) == pytest.approx(optimum.loss)
    assert (found.loss[1:] > optimum.loss).all()
