"""The subproblem of moving balls against Clarabel, by its optimality conditions, and on degenerate
instances."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from transcription import MovingBalls

from fairbound.algorithms._subproblems.level import _SOFT, LevelDirection, level_direction

F64 = torch.float64


def instance(seed: int) -> MovingBalls:
    """0 is strictly within the levels; the gradient is long enough to make several of them
    active."""
    rng = np.random.default_rng(seed)
    m, n = (1, 2, 3, 6, 12)[seed % 5], 8
    gamma = float(10 ** rng.uniform(-1, 1))
    return MovingBalls(
        3 * rng.normal(size=n), -rng.random(m), rng.normal(size=(m, n)), 2 * rng.random(m), gamma
    )


def scaled_rows(one: MovingBalls, seed: int) -> MovingBalls:
    k = 10 ** np.random.default_rng(seed).uniform(-4, 4, len(one.h))
    return one._replace(h=one.h * k, J=one.J * k[:, None], L=one.L * k)


KINDS: dict[str, Callable[[MovingBalls, int], MovingBalls]] = {
    "plain": lambda one, seed: one,
    "pairs": lambda one, seed: one._replace(
        h=np.r_[one.h, 2 * one.h], J=np.r_[one.J, -one.J], L=np.r_[one.L, one.L]
    ),
    "duplicates": lambda one, seed: one._replace(
        h=np.r_[one.h, one.h], J=np.r_[one.J, one.J], L=np.r_[one.L, one.L]
    ),
    "rank 1": lambda one, seed: one._replace(J=np.outer(one.J[:, 0], one.g / 3)),
    "scaled rows": scaled_rows,
    "long gradient": lambda one, seed: one._replace(g=1e5 * one.g),
    "linear": lambda one, seed: one._replace(L=0 * one.L),
    "some linear": lambda one, seed: one._replace(L=one.L * (np.arange(len(one.L)) % 2)),
    "on the boundary": lambda one, seed: one._replace(h=one.h * (np.arange(len(one.h)) % 2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_solution_and_within_the_levels(kind: str) -> None:
    for seed in range(20):
        one = KINDS[kind](instance(seed), seed)
        out, oracle = one.solved(), one.by_clarabel()
        d = out.d.numpy()
        scale = np.abs(one.g) @ np.abs(oracle) + one.gamma / 2 * oracle @ oracle
        # Clarabel's accuracy; what follows is sharper
        assert abs(one.value(d) - one.value(oracle)) <= 1e-7 * scale
        assert (one.q(d) <= 3e-13 * one.size(d)).all()
        assert abs(float(out.gap)) <= 1e-10 * scale
        # w d = -(g + J'y), y >= 0, and y_i = 0 where q_i < 0
        y = out.multipliers.numpy()
        w = one.gamma + one.L @ y
        assert (y >= 0).all()
        assert np.allclose(w * d, -(one.g + one.J.T @ y), rtol=0, atol=1e-8 * np.abs(one.g).max())
        assert (y * np.abs(one.q(d))).sum() <= 1e-8 * scale + 1e-8 * y @ one.size(d)


def test_one_constraint_is_a_quadratic_equation() -> None:
    """min -d + d^2/2 s.t. -1/2 + d + 3/2 d^2 <= 0 in one dimension: d = 1/3; and its multiplier 1 -
    d = y (1 + 3 d)."""
    out = MovingBalls(
        np.array([-1.0]), np.array([-0.5]), np.array([[1.0]]), np.array([3.0]), 1.0
    ).solved()
    assert out.d.tolist() == pytest.approx([1 / 3], abs=1e-14)
    assert out.multipliers.tolist() == pytest.approx([1 / 3], abs=1e-12)


def test_inside_the_levels_it_is_the_gradient_step() -> None:
    one = instance(4)._replace(h=np.full(12, -1e4))
    out = one.solved()
    assert np.allclose(out.d.numpy(), -one.g / one.gamma, rtol=1e-15)
    assert not out.multipliers.any()


@pytest.mark.parametrize("kind", ["plain", "pairs", "rank 1", "linear"])
def test_outside_the_levels_it_minimizes_the_softened_problem(kind: str) -> None:
    """That is strongly convex, so that its stationary point is the minimizer: y_i = [q_i]_+ /
    s_i."""
    for seed in range(20):
        one = KINDS[kind](instance(seed), seed)
        one = one._replace(h=one.h + 0.8)
        if not (one.h > 1e-9).any():
            continue
        out = one.solved()
        d, y = out.d.numpy(), out.multipliers.numpy()
        square = (one.J**2).sum(1)
        share = min(
            1.0, (np.maximum(one.h, 0) / np.sqrt(square)).max() * one.gamma / np.linalg.norm(one.g)
        )
        s = _SOFT * share * np.maximum(square, 1e-6 * square.max()) / one.gamma
        assert np.allclose(
            (one.gamma + one.L @ y) * d, -(one.g + one.J.T @ y), rtol=0, atol=1e-7 * (1 + y.max())
        )
        assert np.allclose(s * y, np.maximum(one.q(d), 0), rtol=0, atol=1e-9 * one.size(d).max())


def test_a_violated_constraint_that_can_be_met_nearly_is() -> None:
    one = MovingBalls(
        np.array([1.0, 1.0]), np.array([0.5]), np.array([[1.0, 0.0]]), np.array([0.5]), 1.0
    )
    d = one.solved().d.numpy()
    assert 0 <= one.q(d)[0] < 0.01


def test_paired_levels_that_contradict_each_other_leave_the_least_violation() -> None:
    """d <= -1 and -d <= -1, without an objective: d = 0, and both are violated by 1."""
    one = MovingBalls(
        np.zeros(2), np.ones(2), np.array([[1.0, 0.0], [-1.0, 0.0]]), np.zeros(2), 1.0
    )
    out = one.solved()
    assert out.d.abs().max() < 1e-9
    assert float(out.violation) == pytest.approx(1.0)


def stack(size: int = 6, m: int = 3, n: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    g, c, J = (
        torch.randn(size, *shape, dtype=F64, generator=draw) for shape in ((n,), (m,), (m, n))
    )
    return 3 * g, c - 0.5, J, torch.rand(size, m, dtype=F64, generator=draw)


def test_a_batch_vmap_compile_and_make_fx_are_the_instances_alone() -> None:
    """Instances within their levels and outside of them share a batch, one has a NaN."""
    g, c, J, L = stack()
    g[2, 0] = torch.nan

    def solve(g: Tensor, c: Tensor, J: Tensor, L: Tensor, gamma: Tensor) -> LevelDirection:
        return level_direction(g, c, J, gamma=gamma, L=L, level=-0.1)

    gamma = torch.linspace(0.5, 2, 6, dtype=F64)
    together = solve(g, c, J, L, gamma)
    compiled = torch.compile(vmap(solve), fullgraph=True, backend="eager")(g, c, J, L, gamma)
    traced = make_fx(vmap(solve))(g, c, J, L, gamma)(g, c, J, L, gamma)
    for i in range(6):
        alone = solve(g[i], c[i], J[i], L[i], gamma[i])
        for found in (together, vmap(solve)(g, c, J, L, gamma), compiled, traced):
            for part, own in zip(found, alone, strict=True):
                assert torch.allclose(part[i], own, rtol=1e-9, atol=1e-12, equal_nan=True)
        assert bool(alone.d.isfinite().all()) == (i != 2)


def test_float32_is_solved_in_float64_and_rounded() -> None:
    parts = [part.float() for part in stack()]
    low = level_direction(*parts[:3], gamma=1.0, L=parts[3], level=0.0)
    g, c, J, L = (part.double() for part in parts)
    high = level_direction(g, c, J, gamma=1.0, L=L, level=0.0)
    assert {part.dtype for part in low} == {torch.float32}
    assert torch.equal(low.d, high.d.float())


def test_bad_arguments_are_sentences() -> None:
    g, c, J, _ = stack()
    with pytest.raises(ValueError, match=r"g.*\(\.\.\., n\).*got \(6, 5\), \(6, 2\)"):
        level_direction(g, c[:, :2], J, gamma=1.0, L=1.0, level=0.0)
    with pytest.raises(ValueError, match=r"gamma.*positive, got 0\.0"):
        level_direction(g, c, J, gamma=0.0, L=1.0, level=0.0)
    with pytest.raises(ValueError, match=r"L .*negative, got -1\.0"):
        level_direction(g, c, J, gamma=1.0, L=-1.0, level=0.0)
