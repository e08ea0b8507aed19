"""AdaptivePI: its step against a transcription, its units, known answers at three scales,
contradictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fairbound import AdaptivePI, primal
from fairbound._utils.measuring import MEMORY, Measurements, is_probe, sampled
from fairbound.algorithms._diagnostics import signs_of_infeasibility
from fairbound.core import Draw, Estimate, Sample, Sizes, inner

F64 = torch.float64
SCALES = (0.01, 1.0, 100.0)
PRIMALS = {"SGD": primal.SGD(lr=0.05), "Adam": primal.Adam(lr=0.01, eps=1e-300)}


class Quadratic(NamedTuple):
    """f with gradient H x - a (or its sign), c rows of functions; x* where it is known."""

    m: int
    gradient: Callable[[Tensor], Tensor]
    c: Callable[[Tensor], tuple[Tensor, Tensor]]  # x -> (m,) and (m, n)
    start: Tensor
    x: Tensor
    unit: Tensor | float = 1.0  # (m,) the size of every row


def problems() -> dict[str, Quadratic]:
    """P1 to P5 (a QP, a ball, its outside, a concave direction, l1 and max) and P6, 20 rows of
    sizes 0.1 to 10."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=F64, generator=generator)

    def polytope(n: int, y: Tensor, slack: Tensor, size: Tensor | float) -> Quadratic:
        A, x = torch.nn.functional.normalize(normal(len(y), n), dim=1), normal(n)
        a, b = x + A.T @ y, A @ x + slack
        J = A * torch.as_tensor(size, dtype=F64).reshape(-1, 1)
        return Quadratic(
            len(y),
            lambda p: p - a,
            lambda p: (size * (A @ p - b), J),
            torch.zeros(n, dtype=F64),
            x,
            size,
        )

    n, ones = 10, torch.ones(10, dtype=F64)
    direction = torch.nn.functional.normalize(normal(n), dim=0)
    last, ends = (
        torch.eye(n, dtype=F64)[-1],
        torch.stack([torch.eye(n, dtype=F64)[-1], -torch.eye(n, dtype=F64)[-1]]),
    )
    line = torch.linspace(-1, 1, n, dtype=F64)
    inactive = torch.cat([torch.zeros(10, dtype=F64), torch.full((10,), 0.5, dtype=F64)])
    sizes = 10 ** torch.linspace(-1, 1, 20, dtype=F64)[torch.randperm(20, generator=generator)]

    def largest(p: Tensor) -> tuple[Tensor, Tensor]:
        hot = (torch.arange(n) == p.argmax()).to(F64)
        return (hot @ p - 0.5)[None], hot[None]

    def ball(p: Tensor) -> tuple[Tensor, Tensor]:
        return 0.5 * (p @ p - 1)[None], p[None]

    three = torch.tensor([1.0, 0.5, 0.0], dtype=F64)
    return {
        "P1": polytope(n, three, torch.tensor([0.0, 0.0, 1.0], dtype=F64), 1.0),
        "P2": Quadratic(1, lambda p: 2 * direction, ball, 0 * ones, -direction),
        "P3": Quadratic(
            1,
            lambda p: p - 0.4 * direction,
            lambda p: (-ball(p)[0], -p[None]),
            0.4 * direction + 0.1,
            direction,
        ),
        "P4": Quadratic(
            2,
            lambda p: p - 2 * last * p[-1],
            lambda p: (ends @ p - 1, ends),
            0.5 * ones - 0.2 * last,
            last,
        ),
        "P5": Quadratic(1, lambda p: torch.sign(p - line), largest, 0 * ones, line.clamp(max=0.5)),
        "P6": polytope(
            30, torch.cat([torch.linspace(0.3, 1.2, 10, dtype=F64), 0 * ones]), inactive, sizes
        ),
    }


PROBLEMS = problems()


def path(
    problem: Quadratic,
    by: Any,
    steps: int,
    noise: float,
    c_scales: Any = SCALES,
    f_scales: Any = None,
) -> Any:
    """Points (steps, R, n) and records of runs that differ in the scales of c and f, with the same
    noise."""
    method, n, m = AdaptivePI(), len(problem.start), problem.m
    c_scales = torch.tensor(c_scales, dtype=F64)
    f_scales = torch.ones_like(c_scales) if f_scales is None else torch.tensor(f_scales, dtype=F64)
    generator = torch.Generator().manual_seed(1)

    def sample(scale_f: Tensor, scale_c: Tensor, drawn: Tensor) -> Sample:
        of_g, of_c, of_J = (0.5 * noise * drawn).split([n, m, m * n])  # a mini-batch of 4
        unit = torch.as_tensor(problem.unit, dtype=F64) * torch.ones(m, dtype=F64)
        Z = 0.2 * of_J.reshape(m, n) * unit[:, None]

        def at(x: Tensor) -> Estimate:
            g, (c, J) = problem.gradient(x), problem.c(x)
            g, c, J = g + 0.5 * of_g, c + Z @ x + 0.5 * unit * of_c, J + Z
            return Estimate(
                scale_f, scale_c * c, lambda w: scale_f * w[0] * g + scale_c * (w[1:] @ J)
            )

        return Sample(at)

    def step(
        probe: bool, x: Tensor, state: Any, scale_f: Tensor, scale_c: Tensor, drawn: Tensor
    ) -> Any:
        d, new = method.update(x, state, Draw.of(sample(scale_f, scale_c, drawn)), by, probe)
        return x + d, new

    x = problem.start.expand(len(c_scales), n)
    state = torch.func.vmap(lambda p: method.init(p, m, None, None, by))(x)
    stepped = {
        p: torch.func.vmap(lambda *args, p=p: step(p, *args), (0, 0, 0, 0, None))
        for p in (True, False)
    }
    points, history = [], []
    for k in range(steps):
        drawn = torch.randn(n + m + m * n, dtype=F64, generator=generator)
        x, state = stepped[is_probe(k, m)](x, state, f_scales, c_scales, drawn)
        points.append(x)
        violation = torch.stack([problem.c(point)[0].amax() for point in x])
        history.append({"force": inner(state).force, "violation": c_scales * violation})
    return torch.stack(points), history


def test_a_step_is_the_written_one() -> None:
    rng, m, T = np.random.default_rng(0), 4, 20.0
    equality = np.array([0, 1, 0, 0])
    method = AdaptivePI()
    state = method.start(torch.zeros((), dtype=F64), m, torch.tensor(equality) > 0)
    y = u = v = np.zeros(m)
    for k in range(700):
        c, Y, r = rng.normal(0.3, 1, m), np.exp(rng.normal(size=m)), np.exp(rng.normal(size=m) - 2)
        tensors = (torch.tensor(part) for part in (Y, r))
        w, state = method.step(state, torch.tensor(c), sizes=Sizes(*tensors))
        e = np.clip(u / (T * r + 2 * np.sqrt(v / 3)), -1, 1)
        e = e / max(1, np.linalg.norm(e[(e > 0) | (y > 0) | (equality > 0)]))
        least = np.where(equality, -np.inf, 0)
        np.testing.assert_allclose(w, np.maximum(y + 2 * Y * e, least), rtol=1e-12, atol=1e-12)
        y = np.maximum(y + Y * e / np.clip(k / 10, T, 3 * T), least)
        violated = np.where(equality, np.abs(u), u) > 2 * np.sqrt(v / 3)
        force = np.max(np.where(violated, np.abs(y) / Y, 0))
        v = v if k == 0 else v + ((c - u) ** 2 - v) / min(k, 50)
        u = c if k == 0 else (u + c) / 2
        np.testing.assert_allclose(state.y, y, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(state.u, u, rtol=1e-12)
        np.testing.assert_allclose(state.v, v, rtol=1e-12)
        np.testing.assert_allclose(state.force, force, rtol=1e-12)


def test_measurements_are_the_written_ones() -> None:
    rng, n, m = np.random.default_rng(0), 7, 2
    measured = Measurements.begin(torch.zeros((), dtype=F64), m, n)
    means, length, counts = np.zeros((3, m)), 0.0, np.zeros(m)
    for step in range(3 * MEMORY):
        x, dx, of_f, of_c = (rng.normal(size=n) for _ in range(4))
        row = measured.next_row(m)
        i = int(row.argmax())
        assert counts[i] == counts.min()
        measured = measured.probe(row, *(torch.tensor(part) for part in (x, of_f, of_c)))
        measured = measured.complete(torch.tensor(x + dx), 1.0)
        overlap, square = np.abs(of_f) @ np.abs(of_c), of_c @ of_c
        slope = np.abs(of_c) @ np.abs(dx) / np.linalg.norm(dx)
        counts[i] += 1
        means[:, i] += ([overlap, square, slope] - means[:, i]) / min(counts[i], MEMORY)
        length += (dx @ dx - length) / min(step + 1, MEMORY)
        known = counts > 0
        unit, reach = measured.sizes(m)
        filled = np.where(known, means, means[:, known].mean(1, keepdims=True))
        np.testing.assert_allclose(unit, filled[0] / filled[1], rtol=1e-12)
        np.testing.assert_allclose(reach, filled[2] * np.sqrt(length), rtol=1e-12)
        same = measured.complete(torch.tensor(x), 1.0)  # nothing was probed since: nothing changes
        assert all(torch.equal(a, b) for a, b in zip(same, measured, strict=True))


def test_what_says_nothing_changes_nothing() -> None:
    measured = Measurements.begin(torch.zeros((), dtype=F64), 2, 3)
    x, g = torch.ones(3, dtype=F64), torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    row = torch.tensor([1.0, 0.0], dtype=F64)
    still = measured.probe(row, x, g, g).complete(x, 1.0)
    absent = measured.probe(row, x, g, 0 * g).complete(x + 1, 1.0)
    infinite = measured.probe(row, x, g / 0, g).complete(x + 1, 1.0)
    for after in (still, absent, infinite):
        assert (after.probes == 0).all()
        assert all(leaf.isfinite().all() for leaf in after[:6])
        assert (after.sizes(2).unit == 0).all()
    at, weight = sampled(10 * 4096)
    assert len(at) == 4096
    assert weight == 10
    assert [k for k in range(310) if is_probe(k, 3)] == [
        *range(10),
        *range(10, 200, 10),
        200,
        250,
        300,
    ]


@pytest.mark.parametrize("name", ["P1", "P4", "P6"])
@pytest.mark.parametrize("by", PRIMALS)
def test_the_units_of_c_do_not_matter(name: str, by: str) -> None:
    points, _ = path(PROBLEMS[name], PRIMALS[by], 300, noise=0.0)
    for scaled in (0, 2):
        torch.testing.assert_close(points[:, scaled], points[:, 1], rtol=1e-6, atol=1e-6)
    noisy, _ = path(PROBLEMS[name], PRIMALS[by], 300, noise=1.0)
    torch.testing.assert_close(noisy[-1, 0], noisy[-1, 2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["P1", "P4"])
def test_the_units_of_f_do_not_matter_under_adam(name: str) -> None:
    points, _ = path(
        PROBLEMS[name], PRIMALS["Adam"], 300, 0.0, c_scales=(1.0,) * 3, f_scales=SCALES
    )
    for scaled in (0, 2):
        torch.testing.assert_close(points[:, scaled], points[:, 1], rtol=1e-6, atol=1e-6)


def test_a_constraint_whose_gradient_begins_at_zero() -> None:
    """c = 50 |x - x_0|^2 - 0.01 from x_0: as a KL divergence from the starting point. Under SGD
    units of the first gradient would overflow."""
    n, start = 10, torch.zeros(10, dtype=F64)
    goal = torch.ones(n, dtype=F64)
    near = Quadratic(
        1, lambda p: p - goal, lambda p: ((50 * p @ p - 0.01)[None], 100 * p[None]), start, goal
    )
    points, _ = path(near, primal.SGD(lr=0.0005), 1000, noise=0.0)
    c = torch.stack([near.c(x)[0][0] for x in points[:, 1]])
    assert c.max() < 0.02
    assert c[-1].abs() < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("by", PRIMALS)
def test_known_answers_at_every_scale(by: str) -> None:
    """The mean of the last half ends within 0.1 of |x_0 - x*|, violating by less than 0.05 of a
    row's size."""
    solved = 0
    for problem in PROBLEMS.values():
        points, _ = path(problem, PRIMALS[by], 4000, noise=1.0)
        mean = points[2000:].mean(0)
        error = (mean - problem.x).norm(dim=1) / (problem.start - problem.x).norm()
        violation = torch.stack([(problem.c(x)[0] / problem.unit).amax() for x in mean])
        solved += int(((error < 0.1) & (violation < 0.05)).sum())
    assert solved >= 16, f"{solved} of 18"


def infeasible(history: list[dict[str, Tensor]]) -> list[str | None]:
    """What `run` says of these records of R runs."""
    every = len(history) // 100
    shown = {
        name: torch.stack([entry[name] for entry in history[every - 1 :: every]])
        for name in history[0]
    }
    return signs_of_infeasibility(shown, [every * (k + 1) for k in range(len(shown["force"]))])


@pytest.mark.parametrize("by", PRIMALS)
def test_bounds_that_contradict_each_other_are_named_at_every_scale(by: str) -> None:
    first = torch.eye(5, dtype=F64)[0]
    rows = torch.stack([-first, first])
    goal = 3 * first
    contradictory = Quadratic(
        2, lambda p: p - goal, lambda p: (1 + rows @ p, rows), 0.1 * torch.ones(5, dtype=F64), goal
    )
    points, history = path(contradictory, PRIMALS[by], 2000, noise=1.0)
    said = infeasible(history)
    assert all(
        sentence is not None and "as hard as the objective" in sentence for sentence in said
    ), history[-1]
    assert points[-1].abs().max() < 2  # x stays between the bounds
    _, history = path(PROBLEMS["P1"], PRIMALS[by], 2000, noise=1.0)
    assert infeasible(history) == [None] * 3
