"""Stochastic Ghost: its step against scipy's solution of the printed subproblems, the level's law,
and unbiasedness."""

from __future__ import annotations

import math

import numpy as np
import problems
import pytest
import torch
from scipy import stats
from torch import Tensor
from transcription import draws, ghost_direction

from fairbound import BatchSpec, Dataset, Problem, Sampler, Split, run
from fairbound.algorithms import StochasticGhost
from fairbound.algorithms.schedules import Power
from fairbound.constraints._cells import Cell, Cells
from fairbound.constraints._constraint import FunctionConstraint
from fairbound.core import Draw
from fairbound.data._samplers import Batch, SamplerStack


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_steps(seed: int) -> None:
    setting = {"tau": 1.3, "beta": 0.9, "rho": 0.2, "lam": 0.4}
    functions, samples, x = draws(12, seed=seed)
    method = StochasticGhost(alpha=0.3, decay=0.5, **setting)
    point = torch.tensor(x)
    state = method.init(point, 3)
    alpha = 0.3
    for k in range(3):
        quadruple, weight = functions[4 * k : 4 * k + 4], 1 / (0.4 * 0.6**k)
        d, state = method.update(point, state, Draw.of(*samples[4 * k : 4 * k + 4], weight=weight))
        single, full, odd, even = (
            ghost_direction(q.gradient(x), q.c(x), q.jacobian(x), **setting) for q in quadruple
        )
        step = alpha * (single + weight * (full - (odd + even) / 2))
        assert np.allclose(d, step, atol=1e-6)
        point, x = point + d, x + step
        alpha = alpha * (1 - 0.5 * alpha)
        assert float(state.alpha) == pytest.approx(alpha)


def test_a_schedule_takes_the_place_of_the_recursion() -> None:
    _, samples, x = draws(4)
    point = torch.tensor(x)
    steps = []
    for method in (StochasticGhost(alpha=0.3), StochasticGhost(schedule=Power(0.3, 0.6))):
        state = method.init(point, 3)._replace(k=torch.tensor(7.0, dtype=torch.float64))
        steps.append(method.update(point, state, Draw.of(*samples))[0])
    assert torch.allclose(steps[1], steps[0] / 8**0.6)


# The level ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("p0", [0.4, 0.5, 0.6])
@pytest.mark.parametrize("cap", [0, 3, 7])
def test_levels_are_the_truncated_geometric_law(p0: float, cap: int) -> None:
    levels = StochasticGhost(p0=p0, cap=cap).batch_size_probs
    assert math.fsum(levels) == pytest.approx(1, abs=1e-14)
    expected = [p0 * (1 - p0) ** n / (1 - (1 - p0) ** (cap + 1)) for n in range(cap + 1)]
    assert levels == pytest.approx(expected)


def two_cell_sampler(seed: int = 0, batch: int = 3) -> Sampler:
    cells = Cells((Cell("a"), Cell("b")), (torch.arange(0, 500), torch.arange(500, 700)))
    return Sampler(Split.all_train(700), cells, BatchSpec(batch, batch), seed)


def test_drawn_levels_and_weights_follow_the_law() -> None:
    """Chi-square test on 200 runs x 100 steps, level 1e-4; the weight is 1 / probability."""
    method = StochasticGhost(p0=0.4, cap=7)
    stack = SamplerStack(two_cell_sampler().seeded(*range(200)), 4, method.batch_size_probs)
    level, weight = stack.levels(0, 100)
    counts = np.bincount(level.flatten(), minlength=8)
    law = np.array(method.batch_size_probs)
    assert stats.chisquare(counts, law * counts.sum()).pvalue > 1e-4
    assert np.allclose(weight, 1 / law[level])


def test_halves_partition_the_large_batch() -> None:
    stack = SamplerStack(
        two_cell_sampler().seeded(*range(40)), 4, StochasticGhost(cap=4).batch_size_probs
    )
    level, _ = stack.levels(5, 1)
    chunks = stack.chunks(5, level[0])
    assert level.max() > 1
    for run_number in range(40):
        single, whole, odd, even = chunks.batches(run_number)
        rows = 3 * 2 ** int(level[0, run_number])
        assert odd.objective.shape == even.objective.shape == (rows,)
        assert odd.cells.shape == even.cells.shape == (2, rows)
        assert single.objective.shape == (3,)
        for part in ("objective", "cells"):
            halves = torch.cat([getattr(odd, part), getattr(even, part)], -1).sort(-1).values
            assert torch.equal(halves, getattr(whole, part).sort(-1).values)


# Unbiased -----------------------------------------------------------------------------------------

COUNT = 20_000  # rows of noise in the table


def noisy_quadratic() -> tuple[Problem, Tensor]:
    """A quadratic at an infeasible point: n = 10, m = 3; noise a row: g .5, J .2, c .5."""
    n, m = 10, 3
    generator = torch.Generator().manual_seed(7)
    A = torch.nn.functional.normalize(torch.randn(m, n, dtype=problems.F64, generator=generator))
    solution = torch.randn(n, dtype=problems.F64, generator=generator)
    centre = solution + A.T @ torch.tensor([1.0, 0.5, 0.0], dtype=problems.F64)
    b = A @ solution + torch.tensor([0.0, 0.0, 1.0], dtype=problems.F64)
    noise = problems.normal_rows(COUNT, n + m * n + m, seed=8)

    def forward(x: Tensor, inputs: Tensor) -> Tensor:
        gradient, Z, extra = (
            inputs[:, :n],
            inputs[:, n : n + m * n].unflatten(1, (m, n)),
            inputs[:, -m:],
        )
        f = 0.5 * (x - centre) @ (x - centre) + 0.5 * gradient @ x
        return torch.cat([f[:, None], (A @ x - b) + 0.2 * Z @ x + 0.5 * extra], 1)

    cells = Cells((Cell("all"),), (torch.arange(COUNT),))
    constraint = FunctionConstraint(
        lambda batch: batch.outputs.mean(0)[1:], ("1", "2", "3"), cells, mean=True
    )
    data = Dataset(noise, torch.zeros(COUNT, dtype=problems.F64))
    return Problem(forward, lambda out, y: out[:, 0], constraint, data), solution + 0.3 * A.sum(0)


def combined_directions(
    p0: float, replications: int, cap: int = 7, seeds_from: int = 0
) -> tuple[Tensor, Tensor]:
    """Ghost's combined direction at one point in many runs of one step, and the exact direction
    there: (R, n), (n,)."""
    problem, x = noisy_quadratic()
    method = StochasticGhost(
        alpha=1.0, decay=0.0, p0=p0, cap=cap, tau=1.0, beta=2.0, rho=0.5, lam=0.5
    )
    assert problem.constraint is not None
    sampler = Sampler(Split.all_train(COUNT), problem.constraint.cells, BatchSpec(4, 4))
    seeds = range(seeds_from, seeds_from + replications)
    result = run(problem, method, sampler.seeded(*seeds), x, steps=1).result()
    whole = problem.sample(problem.gather(_all_rows(), "fc"))
    exact, _ = method.update(x, method.init(x, 3), Draw.of(whole, whole, whole, whole))
    return result.x - x, exact


def _all_rows() -> Batch:
    rows = torch.arange(COUNT)
    return Batch(rows, rows[None])


def largest_t(directions: Tensor, exact: Tensor) -> float:
    """The largest deviation of the mean from the exact direction over 20 fixed projections, in
    standard errors."""
    projections = torch.randn(
        10, 20, dtype=problems.F64, generator=torch.Generator().manual_seed(9)
    )
    projected = (directions - exact) @ projections
    return float((projected.mean(0).abs() / (projected.std(0) / len(directions) ** 0.5)).max())


@pytest.mark.parametrize("p0", [0.4, 0.6])
def test_direction_is_unbiased(p0: float) -> None:
    """4 standard errors on each of 20 projections: a right code fails with probability below
    .0013."""
    directions, exact = combined_directions(p0, 12_000)
    assert exact.abs().max() > 0.05
    assert largest_t(directions, exact) < 4


def test_the_test_of_bias_has_power() -> None:
    """One mini-batch of the base size, without the correction, fails it."""
    problem, x = noisy_quadratic()
    _, exact = combined_directions(0.6, 10)
    sampler = Sampler(Split.all_train(COUNT), problem.constraint.cells, BatchSpec(4, 4))
    method = StochasticGhost(alpha=1.0, decay=0.0, tau=1.0, beta=2.0, rho=0.5, lam=0.5)
    batch = SamplerStack(sampler.seeded(*range(4000)), 4, None).block(0, 1)[0]

    def single(parts: dict) -> Tensor:
        sample = problem.sample(parts)
        return method.update(x, method.init(x, 3), Draw.of(sample, sample, sample, sample))[0]

    gathered = problem.gather(Batch(batch.objective[0], batch.cells[0]), "fc")
    assert largest_t(torch.func.vmap(single)(gathered), exact) > 6
