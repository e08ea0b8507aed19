"""One method first, another afterwards: the two, one after the other, in every driver."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from methods import classification, network
from transcription import draws

from fairbound import Constrained, check_algorithm, constraints, run
from fairbound._utils.pytree import tree_leaves
from fairbound.algorithms import (
    SGD,
    SSLALM,
    AveragedDual,
    DescentAscent,
    Extragradient,
    Penalty,
    StochasticGhost,
    SwitchingSubgradient,
    Warmup,
)
from fairbound.core import Algorithm, Draw

F64 = torch.float64
EQUALITY = torch.tensor([False, True, False])
PAIRS: dict[str, tuple[Algorithm[Any], Algorithm[Any]]] = {
    "SGD, DescentAscent": (SGD(), DescentAscent()),
    "Penalty, SSLALM": (Penalty(), SSLALM()),
    "DescentAscent with two draws, Penalty": (DescentAscent(second=True), Penalty()),
    "SGD, Extragradient": (SGD(), Extragradient()),
    "Extragradient, its other form": (Extragradient(), Extragradient(second=True)),
    "SGD, dual steps on means": (SGD(), AveragedDual(DescentAscent(), every=4)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_it_is_certified(pair: tuple[Algorithm[Any], Algorithm[Any]]) -> None:
    assert check_algorithm(Warmup(pair[0], 10, pair[1])).startswith("Warmup passes 11 checks: ")


@pytest.mark.slow
def test_random_batch_sizes_are_certified() -> None:
    check_algorithm(Warmup(SGD(), 10, StochasticGhost()))


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("steps", [0, 3, 8])
def test_it_is_the_two_methods_one_after_the_other(pair: tuple[Algorithm[Any], Algorithm[Any]], steps: int) -> None:
    """The second begins at the point where the first ends, from the mini-batch of its first step."""
    first, then = pair
    method = Warmup(first, steps, then)
    _, samples, x = draws(2 * 8)
    a = b = torch.tensor(x)
    state = method.init(a, 3, samples[0](a), EQUALITY)
    own, other = first.init(b, 3, samples[0](b), EQUALITY), None
    for k in range(8):
        used = samples[2 * k : 2 * k + method.draws]
        if k == steps:
            best = max(range(method.draws), key=lambda i: len(method.evaluates[i]))
            other = then.init(b, 3, used[best](b), EQUALITY)
        now, inside = (first, own) if k < steps else (then, other)
        assert float(method.primal_step(state)) == pytest.approx(float(now.primal_step(inside)))
        d, inside = now.update(b, inside, Draw.of(*used[: now.draws]))
        own, other = (inside, other) if k < steps else (own, inside)
        e, state = method.update(a, state, Draw.of(*used))
        a, b = a + e, b + d
        assert torch.allclose(a, b, atol=1e-14)
        assert torch.allclose(method.output(a, state), now.output(b, inside), atol=1e-14)
        y, expected = method.multipliers(state), now.multipliers(inside)
        assert y is None or torch.allclose(y, torch.zeros(3, dtype=F64) if expected is None else expected, atol=1e-14)
    kept = state.then if steps < 8 else state.first
    for left, right in zip(tree_leaves(kept), tree_leaves(other if steps < 8 else own), strict=True):
        assert torch.allclose(left, right, atol=1e-14)


def test_what_it_declares() -> None:
    method = Warmup(SGD(), 5, SSLALM())
    assert (method.draws, method.evaluates, method.passes, method.points) == (2, ("fc", "c"), (1, 1), 1)
    assert method.needs_initial_estimate
    assert not method.row_wise
    assert Warmup(Extragradient(), 5, Extragradient()).passes == (3,)
    assert Warmup(SwitchingSubgradient(), 5, Penalty()).evaluates == ("fc", "fc")
    assert Warmup(SGD(), 5, StochasticGhost()).batch_size_probs == StochasticGhost().batch_size_probs
    assert Warmup(SGD(), 5, SGD()).multipliers(Warmup(SGD(), 5, SGD()).init(torch.zeros(2), 1)) is None


def test_what_cannot_be_put_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r"draw mini-batches of random size by different laws; give both the same p0"):
        Warmup(StochasticGhost(p0=0.5), 5, StochasticGhost(p0=0.6))
    with pytest.raises(ValueError, match=r"the other needs 2; use a method with one draw, such as SGD"):
        Warmup(SSLALM(), 5, StochasticGhost())
    with pytest.raises(ValueError, match=r"Warmup: steps must be a whole number >= 0, got -1"):
        Warmup(SGD(), -1, SSLALM())
    with pytest.raises(TypeError, match=r"Warmup takes methods that are built"):
        Warmup(SGD, 5, SSLALM())  # type: ignore[arg-type]


def test_stacked_runs_with_other_numbers_equal_single_ones() -> None:
    problem, sampler, x0 = classification()
    methods = [Warmup(SGD(tau=tau), 7, SSLALM(rho=rho)) for tau, rho in ((0.05, 0.3), (0.2, 1.0))]
    together = run(problem, methods, sampler.seeded(0, 1), x0[:2], 20, compile=False).result()
    for i, method in enumerate(methods):
        alone = run(problem, method, sampler.seeded(i)[0], x0[i], 20, compile=False).result()
        assert torch.allclose(together.x[i], alone.x[0], atol=1e-12)
    assert (together.multipliers != 0).any()


def test_a_loop_switches() -> None:
    problem, _, _ = classification()
    data = problem.data
    torch.manual_seed(0)
    model = network().double()
    fair = Constrained(model, constraints.pairwise_loss_parity(2, bound=0.0), Warmup(SGD(), 5, DescentAscent()))
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(10):
        optimizer.zero_grad()
        fair.backward(problem.loss(model(data.X)[:, 0], data.y), data.groups["group"])
        optimizer.step()
        seen.append(max(fair.multipliers.values()))
    assert seen[:5] == [0.0] * 5
    assert min(seen[5:]) > 0
