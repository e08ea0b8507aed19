"""A multiplier method of a user's own (own_method.py) in every driver; Keras and processes have tests of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loops import F64, LR, flat, knowledge, network, people, rows_of, same, three_constraints
from methods import classification
from own_method import Optimistic
from transcription import draws

from fairbound import SSLALM, Constrained, check_algorithm, constraints, run
from fairbound.constraints import cells
from fairbound.core import Draw

METHOD = Optimistic(tau=LR, eta=0.2)
STEPS = 12


def test_it_is_certified() -> None:
    assert check_algorithm(METHOD).startswith("Optimistic passes 11 checks: ")


def test_its_steps_against_numpy() -> None:
    functions, samples, x = draws(8, seed=1)
    equality = np.array([False, True, False])
    point = torch.tensor(x)
    state = METHOD.init(point, 3, samples[0](point), torch.tensor(equality))
    y, last, signs = np.zeros(3), functions[0].c(x), set()
    for k in range(8):
        d, state = METHOD.update(point, state, Draw.of(samples[k]))
        point = point + d
        c = functions[k].c(x)
        y = y + 0.2 * (2 * c - last)
        y, last = np.where(equality, y, np.maximum(y, 0)), c
        x = x - LR * (functions[k].gradient(x) + functions[k].jacobian(x).T @ y)
        assert np.allclose(point, x, atol=1e-12)
        assert np.allclose(METHOD.multipliers(state), y, atol=1e-12)
        signs |= {(bool(equal), float(np.sign(one))) for equal, one in zip(equality, y, strict=True)}
    assert signs >= {(True, -1.0), (False, 0.0), (False, 1.0)}


def test_runs_of_a_stack_are_the_runs_alone() -> None:
    problem, sampler, x0 = classification()
    methods = [Optimistic(eta=eta, tau=tau) for eta, tau in ((0.1, 0.05), (0.4, 0.1), (0.2, 0.02))]
    together = run(problem, methods, sampler.seeded(0, 1, 2), x0[:3], 25, compile=False).result()
    for i, method in enumerate(methods):
        alone = run(problem, method, sampler.seeded(i)[0], x0[i], 25, compile=False).result()
        assert (together.x[i] - alone.x[0]).abs().max() <= 1e-12
        assert (together.multipliers[i] - alone.multipliers[0]).abs().max() <= 1e-12
        assert together.monitors[i] == pytest.approx(alone.monitors[0])
        assert set(alone.monitors[0]) == {"largest"}


class Loop:
    """Twelve steps on the same examples, however they are passed."""

    def __init__(self, method: Any = METHOD, limits: Any = None) -> None:
        self.who, self.model = people(), network()
        self.fair = Constrained(self.model, limits or three_constraints(), method)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self.numbers = torch.randint(120, (STEPS, 40), generator=torch.Generator().manual_seed(0))

    def backward(self, numbers: torch.Tensor) -> None:
        self.fair.backward(rows_of(self.model, self.who, numbers))

    def loss(self, numbers: torch.Tensor) -> None:
        batch = rows_of(self.model, self.who, numbers)
        loss = self.fair.loss(batch)
        assert torch.equal(loss.detach(), batch.losses.mean().detach())
        loss.backward()

    def accumulate(self, numbers: torch.Tensor) -> None:
        parts = numbers.split([10, 25, 5])
        with torch.no_grad():
            for part in parts:
                self.fair.accumulate(rows_of(self.model, self.who, part))
        for part in parts:
            self.fair.backward(rows_of(self.model, self.who, part))

    def closure(self, numbers: torch.Tensor) -> None:
        self.fair.backward_closure(lambda size: rows_of(self.model, self.who, numbers))

    def run(self, way: str = "backward", steps: slice = slice(None)) -> Loop:
        for numbers in self.numbers[steps]:
            self.optimizer.zero_grad()
            getattr(self, way)(numbers)
            self.optimizer.step()
        return self


@pytest.mark.parametrize("way", ["loss", "accumulate", "closure"])
def test_every_way_of_a_loop_is_the_same_step(way: str) -> None:
    plain, other = Loop().run(), Loop().run(way)
    assert (flat(other.model) - flat(plain.model)).abs().max() <= 1e-12
    assert other.fair.multipliers == pytest.approx(plain.fair.multipliers, abs=1e-12)
    assert other.fair.steps == plain.fair.steps == STEPS
    assert max(plain.fair.multipliers.values()) > 0.01


def test_a_loop_is_the_method_s_step() -> None:
    """Beside it `start` and `step` on the values by hand, and the gradient of f + w'c by autograd."""
    limits = {"race": constraints.loss_parity(3, bound=0.02, by="race"), "norm": constraints.weight_norm(1.0)}
    loop, state = Loop(limits=limits), None
    for numbers in loop.numbers:
        batch, parameters = rows_of(loop.model, loop.who, numbers), list(loop.model.parameters())
        races = torch.stack([batch.losses[loop.who.race[numbers] == race].mean() for race in range(3)])
        gaps = races - races.mean()
        norm = torch.cat([p.flatten() for p in parameters]).norm() - 1.0
        c = torch.cat([torch.stack([gaps, -gaps], 1).flatten() - 0.02, norm[None]])
        if state is None:
            state = METHOD.start(c.new_zeros(()), 7, None, c.detach())
        w, state = METHOD.step(state, c.detach())
        expected = torch.autograd.grad(batch.losses.mean() + w @ c, parameters)
        loop.run(steps=slice(loop.fair.steps, loop.fair.steps + 1))
        assert all(torch.allclose(p.grad, g, atol=1e-12) for p, g in zip(parameters, expected, strict=True))  # type: ignore[arg-type]
        assert torch.allclose(torch.tensor([*loop.fair.multipliers.values()], dtype=F64), state.y, atol=1e-12)
    assert (state.y > 0).sum() > 2  # type: ignore[union-attr]


def test_a_resumed_loop_is_the_whole_one_to_the_bit() -> None:
    whole, half = Loop().run(), Loop().run(steps=slice(0, 5))
    resumed = Loop()
    resumed.model.load_state_dict(half.model.state_dict())
    resumed.fair.load_state_dict(half.fair.state_dict())
    resumed.run(steps=slice(5, None))
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert same(knowledge(resumed.fair), knowledge(whole.fair))


class FromNothing(Optimistic):
    """A mini-batch shows few of very many rows, so that none of them starts from its first value."""

    def start(self, like: Any, m: int, equality: Any = None, first: Any = None) -> Any:
        return super().start(like, m, equality)


def test_a_table_of_many_rows_is_the_dense_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """`row_wise`: a step touches the rows that its mini-batch shows."""
    found = []
    for most in (cells.MANY, 2):
        monkeypatch.setattr(cells, "MANY", most)
        loop = Loop(FromNothing(eta=0.2), constraints.bounded_group_loss(3, bound=0.3, by="race")).run()
        assert loop.fair._steps.gathered == (most == 2)
        found.append((flat(loop.model), torch.tensor([*loop.fair.multipliers.values()])))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-9)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-9)
    assert found[0][1].max() > 0.01


def test_it_may_be_smoothed() -> None:
    """`smoothing` is SSL-ALM's pull of x: with weights of 0 the steps of both are the same."""

    class Smoothed(Optimistic):
        smoothing = (2.0, 0.5)

    _, samples, x = draws(6)
    ours, theirs = Smoothed(eta=0.0), SSLALM(tau=0.05, eta=0.0, rho=0.0, mu=2.0, beta=0.5, samples=1)
    points = [torch.tensor(x), torch.tensor(x)]
    states: list[Any] = [method.init(point, 3) for method, point in zip((ours, theirs), points, strict=True)]
    for sample in samples:
        for i, method in enumerate((ours, theirs)):
            d, states[i] = method.update(points[i], states[i], Draw.of(sample))
            points[i] = points[i] + d
        assert torch.equal(points[0], points[1])
        assert torch.equal(states[0].z, states[1].z)
    assert (states[0].z - points[0]).abs().max() > 1e-3
