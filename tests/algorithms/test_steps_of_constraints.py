"""A dual step for each constraint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from methods import classification, network
from transcription import draws, path

from fairbound import Constrained, constraints, run
from fairbound.algorithms import SSLALM, DescentAscent
from fairbound.algorithms.schedules import InverseSqrt
from fairbound.core import Algorithm, Sample

F64 = torch.float64


def loop(method: Algorithm[Any], steps: int) -> tuple[torch.Tensor, dict[str, float]]:
    """`Constrained` on two groups."""
    problem, _, _ = classification()
    data, generator = problem.data, torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fair = Constrained(model, constraints.pairwise_loss_parity(2, bound=0.01), method)
    for _ in range(steps):
        i = torch.randint(data.rows, (32,), generator=generator)
        optimizer.zero_grad()
        fair.backward(problem.loss(model(data.X[i])[:, 0], data.y[i]), data.groups["group"][i])
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), fair.multipliers


@pytest.mark.parametrize("build", [DescentAscent, SSLALM])
def test_equal_steps_are_one_step_bit_for_bit(build: type[Algorithm[Any]]) -> None:
    for one in (0.3, InverseSqrt(0.3)):
        problem, sampler, x0 = classification()
        ends = [
            run(problem, build(eta=eta), sampler, x0[0], 30, compile=False).result()
            for eta in (one, (one, one))
        ]
        assert torch.equal(ends[0].x, ends[1].x)
        assert torch.equal(ends[0].multipliers, ends[1].multipliers)
    extra = {"samples": 1} if build is SSLALM else {}
    single, double = (loop(build(eta=eta, **extra), 20) for eta in (0.3, (0.3, 0.3)))
    assert torch.equal(single[0], double[0])
    assert single[1] == double[1]


def test_each_constraint_has_its_step() -> None:
    functions, samples, x = draws(5)
    method = DescentAscent(tau=0.1, eta=(0.3, InverseSqrt(0.5), 0.0))
    y = np.zeros(3)
    for k, (point, state) in enumerate(path(method, samples, x)):
        c = functions[k].c(x)
        x = x - 0.1 * (functions[k].gradient(x) + functions[k].jacobian(x).T @ y)
        y = np.maximum(y + np.array([0.3, 0.5 / np.sqrt(k + 1), 0.0]) * c, 0)
        assert np.allclose(point, x, atol=1e-12)
        assert np.allclose(state.y, y, atol=1e-12)
    assert y[:2].max() > 0
    assert y[2] == 0


def test_runs_with_different_steps_equal_single_ones() -> None:
    problem, sampler, x0 = classification()
    methods = [
        DescentAscent(eta=(0.1, 0.4)),
        DescentAscent(eta=(0.1, 0.4), tau=0.1),
        DescentAscent(eta=0.2),
    ]
    together = run(problem, methods, sampler.seeded(0, 1, 2), x0[:3], 20, compile=False).result()
    for i, method in enumerate(methods):
        alone = run(problem, method, sampler.seeded(i)[0], x0[i], 20, compile=False).result()
        assert torch.allclose(together.x[i], alone.x[0], atol=1e-12)


def test_what_is_no_step_is_named() -> None:
    with pytest.raises(ValueError, match=r"DescentAscent: eta\[1\].*>= 0, got -1"):
        DescentAscent(eta=(0.1, -1))
    with pytest.raises(TypeError, match=r"SSLALM: eta\[0\].*>= 0.*schedule, got None"):
        SSLALM(eta=(None, 0.1))
    with pytest.raises(
        TypeError,
        match=r"eta .*schedule.*tuple",
    ):
        DescentAscent(eta=[0.1])
    sample = Sample.of(lambda x: (x.sum(), x))
    x = torch.zeros(2, dtype=F64)
    with pytest.raises(ValueError, match=r"3 step.*2 constraints.*tuple"):
        next(path(DescentAscent(eta=(0.1, 0.2, 0.3)), [sample], x, 2))
