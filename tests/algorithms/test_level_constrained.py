"""LevelConstrained: its equations, the feasible path, what breaks it, and known answers with
noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from methods import bce, classification, network
from problems import KNOWN, ONE, defaults
from torch import Tensor
from transcription import MovingBalls, Quadratic, draws, path

from fairbound import Constrained, constraints, initial_points, run
from fairbound.algorithms import LevelConstrained
from fairbound.algorithms.schedules import Power
from fairbound.constraints._batch import MiniBatch
from fairbound.core import Draw, Sample
from fairbound.training._functional import zero_last_layer

F64 = torch.float64


# The equations ------------------------------------------------------------------------------------


def transcribed(
    functions: list[Quadratic], x: np.ndarray, first: Quadratic, L: Any, z: float
) -> Iterator[np.ndarray]:
    """Points after every step, a_k = (k+1)^-.6, tau_k = .3 (k+1)^-.5, level .5 / (k+1).

    The subproblem has tests of its own.
    """
    m = len(first.b)
    G, C, J, x_old = np.zeros_like(x), np.zeros(m), np.zeros((m, len(x))), x
    var, var_mean, c0 = np.zeros(m), np.zeros(m), first.c(x)
    for k, one in enumerate(functions):
        a = (k + 1) ** -0.6
        expected = C + J @ (x - x_old)
        deviation = (one.c(x) - c0) / 2**0.5 if k == 0 else one.c(x) - expected
        C = (1 - a) * expected + a * one.c(x)
        G, J = (1 - a) * G + a * one.gradient(x), (1 - a) * J + a * one.jacobian(x)
        c0 = C if k == 0 else c0
        var = (1 - a) * var + a * deviation**2
        var_mean = (1 - a) ** 2 * var_mean + a**2 * var
        eta = 0.5 / (k + 1) * np.minimum(c0, 0) - z * np.sqrt(var_mean)
        subproblem = MovingBalls(G, C - eta, J, np.broadcast_to(L, m).copy(), (k + 1) ** 0.5 / 0.3)
        x_old, x = x, x + subproblem.solved().d.numpy()
        yield x


@pytest.mark.parametrize("L", [2.0, (1.0, 2.0, 0.5)])
def test_steps_are_the_equations(L: Any) -> None:
    functions, _, x = draws(6, n=8, seed=3)
    # feasible at x, with room
    functions = [one._replace(p=10 * one.p, b=one.b + 20.0) for one in functions]
    method = LevelConstrained(
        tau=Power(0.3, 0.5), L=L, z=0.7, average=Power(1.0, 0.6), level=Power(0.5, 1.0)
    )
    samples, active = [one.sample() for one in functions], 0
    for (point, state), expected in zip(
        path(method, samples[1:], x, first=samples[0](torch.tensor(x))),
        transcribed(functions[1:], x, functions[0], L, 0.7),
        strict=True,
    ):
        active += int((state.y > 1e-6).any())
        assert torch.allclose(point, torch.tensor(expected), rtol=1e-8, atol=1e-8)
    assert active >= 3


def test_curvature_is_measured_with_exact_estimates() -> None:
    """The first step uses L, then twice the largest secant: c has the curvature q. The third step
    does not move."""
    (one,), (sample,), x = draws(1)
    method, point = LevelConstrained(exact=True, tau=0.1), torch.tensor(x)
    state = method.init(point, 3, sample(point))
    d, state = method.update(point, state, Draw.of(sample))
    assert not state.L.any()
    for _ in range(2):
        _, state = method.update(point + d, state, Draw.of(sample))
        assert state.L.numpy() == pytest.approx(2 * np.abs(one.q))


def test_what_it_declares_and_refuses() -> None:
    method = LevelConstrained()
    assert (method.needs_feasible_start, method.draws, method.solves) == (True, 1, "kkt")
    x = torch.zeros(2)
    with pytest.raises(ValueError, match=r"LevelConstrained.*c <= 0.*1 of 2"):
        method.init(x, 2, equality=torch.tensor([True, False]))
    with pytest.raises(TypeError, match=r"exact .*True.*False.* 1"):
        LevelConstrained(exact=1)  # type: ignore[arg-type]


# The feasible path --------------------------------------------------------------------------------


def start(name: str) -> Tensor:
    """A strictly feasible one."""
    problem = KNOWN[name]
    if name == "P1":
        at = problem.at(problem.start)
        return torch.linalg.pinv(at.J) @ (-at.c - 0.5)
    return 1.5 * problem.x + 0.2 if name == "P3" else problem.start


def feasible_path(name: str, method: LevelConstrained, steps: int) -> tuple[Tensor, Tensor, Any]:
    """Largest c after every step (steps,), the last point and the last state, with exact
    estimates."""
    problem, x = KNOWN[name], start(name)
    sample = defaults.sample(
        problem, ONE, ONE, torch.zeros(problem.m * (defaults.N + 1) + defaults.N, dtype=F64)
    )
    assert problem.at(x).c.max() < 0
    points, states = zip(
        *path(method, [sample] * steps, x, problem.m, first=sample(x)), strict=True
    )
    return torch.stack([problem.at(x).c.max() for x in points]), points[-1], states[-1]


@pytest.mark.parametrize("name", ["P1", "P2", "P3", "P4"])
@pytest.mark.parametrize("level", [Power(0.5, 1.0), 0.0])
def test_every_iterate_is_feasible_and_the_last_is_the_solution(
    name: str, level: float | Power
) -> None:
    """With levels that fall as 1/k the distance to the solution does; with 0 it does not wait for
    them."""
    largest, x, state = feasible_path(name, LevelConstrained(exact=True, tau=0.5, level=level), 150)
    problem = KNOWN[name]
    assert largest.max() <= (1e-13 if level == 0.0 else 0)
    assert (x - problem.x).norm() < (1e-6 if level == 0.0 else 0.01)
    assert torch.allclose(state.y, problem.y, atol=1e-4 if level == 0.0 else 0.02)


def test_a_shorter_step_is_feasible_too() -> None:
    """As with a learning rate below primal_step: the set of the subproblem is convex."""
    problem, x = KNOWN["P2"], start("P2")
    sample = defaults.sample(problem, ONE, ONE, torch.zeros(2 * defaults.N + 1, dtype=F64))
    method = LevelConstrained(exact=True, tau=0.5)
    state = method.init(x, 1, sample(x))
    for k in range(60):
        d, state = method.update(x, state, Draw.of(sample))
        x = x + (0.3 + 0.7 * (k % 2)) * d
        assert problem.at(x).c.max() <= 0


def test_a_curvature_that_is_too_small_leaves_the_feasible_set() -> None:
    """The first step of exact=True; every step with mini-batches, which measure no curvature. And
    both come back."""
    small = feasible_path("P2", LevelConstrained(exact=True, tau=1.0, L=0.01), 60)[0]
    assert small[0] > 0.05
    assert small[5:].max() <= 0
    given = {"average": 1.0, "z": 0.0, "level": 0.0, "tau": 1.0}
    assert feasible_path("P2", LevelConstrained(L=0.01, **given), 60)[0].max() > 0.05
    assert feasible_path("P2", LevelConstrained(L=1.0, **given), 60)[0].max() <= 1e-13


def test_a_curvature_that_is_too_large_hardly_moves() -> None:
    given = {"average": 1.0, "z": 0.0, "level": 0.0, "tau": 1.0}
    away = {
        L: float(
            (feasible_path("P2", LevelConstrained(L=L, **given), 60)[1] - KNOWN["P2"].x).norm()
        )
        for L in (1.0, 1e5)
    }
    assert away[1.0] < 1e-6
    assert away[1e5] > 0.5


def test_constraints_with_kinks_are_not_kept() -> None:
    """P5, c = max_i x_i - b: across a kink the Jacobian jumps, and no measured curvature bounds
    c."""
    largest, x, _ = feasible_path("P5", LevelConstrained(exact=True, tau=0.5), 150)
    assert largest.max() > 0.01
    assert (x - KNOWN["P5"].x).norm() > 0.05


@pytest.mark.parametrize("bound", [0.01, 0.001])
def test_a_net_keeps_its_bound_on_all_examples_from_a_last_layer_of_0(bound: float) -> None:
    problem, _, _ = classification(bound=bound)
    X, labels, groups = problem.data.X, problem.data.y, problem.data.groups["group"]

    def values(x: Tensor) -> tuple[Tensor, Tensor]:
        losses = bce(problem.forward(x, X), labels)
        gap = losses[groups == 0].mean() - losses[groups == 1].mean()
        return losses.mean(), torch.stack([gap, -gap]) - bound

    sample, method = Sample.of(values), LevelConstrained(exact=True, tau=0.5)
    (x,) = initial_points(network, [1], feasible="zero-last-layer").to(F64)
    steps = list(path(method, [sample] * 150, x, 2, first=sample(x)))
    assert all(values(point)[1].max() < 0 for point, _ in steps)
    point, state = steps[-1]
    assert state.y.max() > 0.1  # it binds
    assert values(point)[0] < 0.56  # log 2 at the start


# Starts -------------------------------------------------------------------------------------------


def test_an_infeasible_start_is_a_sentence_and_led_back(caplog: pytest.LogCaptureFixture) -> None:
    problem, sampler, x0 = classification(bound=0.005)
    result = run(
        problem, LevelConstrained(), sampler.seeded(0), 3 * x0[:1], 200, compile=False
    ).result()
    assert (
        "LevelConstrained keeps a feasible path from a start with c < 0, and the first mini-batch"
        " of run 0" in (caplog.text)
    )
    assert 'initial_points(..., feasible="zero-last-layer")' in caplog.text
    examples = torch.arange(problem.data.rows)
    assert problem.evaluate(3 * x0[0], examples).c.max() > 0.2
    assert problem.evaluate(result.x[0], examples).c.max() < 0.1


def test_a_feasible_start_is_no_sentence(caplog: pytest.LogCaptureFixture) -> None:
    problem, sampler, _ = classification()
    x0 = initial_points(network, [0], feasible="zero-last-layer").to(F64)
    run(problem, LevelConstrained(), sampler.seeded(0), x0, 3, compile=False).result()
    assert "feasible path" not in caplog.text


def test_a_loop_warns_of_an_infeasible_start(recwarn: pytest.WarningsRecorder) -> None:
    problem, _, _ = classification()
    data, said = problem.data, []
    for prepared in (zero_last_layer, lambda model: model):
        torch.manual_seed(0)
        model = prepared(network().double())
        fair = Constrained(
            model, constraints.pairwise_loss_parity(2, bound=1e-4), LevelConstrained()
        )
        fair.backward_closure(
            lambda size, model=model: MiniBatch(
                bce(model(data.X).squeeze(-1), data.y), data.groups["group"]
            )
        )
        said.append([str(w.message) for w in recwarn.list if "feasible path" in str(w.message)])
    assert said[0] == []
    assert "the first mini-batch of the loop has a c of" in said[1][0]
