"""Learning problems of the collection: their cards, their exact parts, and that stacked runs take
them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fairbound.algorithms import DescentAscent, primal
from fairbound.benchmark.problems import Instance, load, reference, table
from fairbound.benchmark.problems._certificate import kkt_residual
from fairbound.benchmark.problems._collection import (
    characters,
    helmholtz,
    neyman_pearson,
    weight_norms,
)
from fairbound.benchmark.problems._scaled import scaled_instance
from fairbound.core import Algorithm, Primal
from fairbound.training._runner import run

SIZES = {  # n, m, training examples
    "neyman-pearson": (65, 1, 891),
    "digits-parity": (2410, 90, 5391),
    "weight-norms": (2753, 6, 14334),
    "helmholtz": (673, 1, 512),
    "characters": (5380, 1, 800),
    "two-moons": (641, 100, 2000),
    "many-classes": (3844, 9900, 5000),
}


@pytest.fixture(autouse=True)
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no real data are found."""
    monkeypatch.setattr(table, "best", lambda state, folder: f"synthetic:{state}")


def trained(
    instance: Instance,
    method: Algorithm,
    steps: int,
    seeds: tuple[int, ...] = (0, 1),
    primal: Primal | None = None,
) -> torch.Tensor:
    samplers, starts = (
        [instance.sampler(i, seed) for i, seed in enumerate(seeds)],
        instance.starts(seeds),
    )
    return (
        run(instance.problem, method, samplers, starts, steps, primal=primal, compile=False)
        .result()
        .x
    )


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_budget(name: str) -> None:
    problem = load(name)
    instance = problem.build()
    starts = instance.starts([0, 1])
    assert (starts.shape[1], instance.problem.m, instance.examples) == SIZES[name]
    assert problem.steps >= 2000
    again = problem.build()
    train = instance.splits[0].train
    for mine, theirs in zip(
        instance.problem.evaluate(starts, train), again.problem.evaluate(starts, train), strict=True
    ):
        assert torch.equal(mine, theirs)  # generated with a seed of its own
        assert torch.isfinite(mine).all()


@pytest.mark.parametrize("name", SIZES)
def test_stacked_runs_equal_single_ones(name: str) -> None:
    """The per-example functions of each problem are vmapped over runs."""
    instance = load(name).build()
    both = trained(instance, DescentAscent(tau=0.01, eta=0.01), 5)
    alone = trained(instance, DescentAscent(tau=0.01, eta=0.01), 5, seeds=(0,))
    assert not torch.equal(both[0], instance.starts([0])[0])
    torch.testing.assert_close(both[0], alone[0], atol=1e-5, rtol=1e-4)


def test_references_are_below_the_start() -> None:
    for name in SIZES:
        sources = ("acs:OK", "synthetic:OK") if name == "weight-norms" else ("generated",)
        for source in sources:
            found = reference(name, source)
            assert found is not None, f"{name} has no reference for {source}"
            assert found.loss < found.start
            assert found.scale == pytest.approx(load(name).scale)


# Neyman-Pearson -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 0.01, 100.0])
def test_neyman_pearson_is_solved_exactly_in_every_unit(factor: float) -> None:
    made = scaled_instance(neyman_pearson.build(), factor)
    assert made.solution is not None
    assert made.solution.y is not None
    assert kkt_residual(made, made.solution.x, made.solution.y) < 1e-6
    assert float(made.solution.y) > 0  # the constraint binds
    found = made.problem.evaluate(made.solution.x, made.splits[0].train)
    frozen = reference("neyman-pearson", "generated")
    assert frozen is not None
    assert frozen.exact
    assert float(found.loss) == pytest.approx(frozen.loss, abs=1e-9)
    assert float(found.c.abs().max()) < 1e-9


# Weights ------------------------------------------------------------------------------------------


def test_weight_norms_are_those_of_the_tensors() -> None:
    instance = weight_norms.build()
    x = instance.starts([0])
    shapes = [(64, 9), (64,), (32, 64), (32,), (1, 32), (1,)]
    parts = x[0].split([math.prod(shape) for shape in shapes])
    expected = torch.stack([part.norm() - weight_norms._BOUND for part in parts])
    few = torch.arange(10)
    torch.testing.assert_close(instance.problem.evaluate(x, few).c[0], expected)
    scaled = scaled_instance(instance, 0.01)
    torch.testing.assert_close(scaled.problem.evaluate(x, few).c[0], 0.01 * expected)


# Helmholtz ----------------------------------------------------------------------------------------


def test_derivatives_of_the_network_are_autograds() -> None:
    x = load("helmholtz").build().starts([0])[0].double()
    z = torch.linspace(-4, 4, 9, dtype=torch.float64)

    def u(point: torch.Tensor) -> torch.Tensor:
        return helmholtz._FORWARD(x, point.reshape(1, 1))[0]

    slope = torch.func.grad(u)
    expected = torch.stack([torch.func.vmap(f)(z) for f in (u, slope, torch.func.grad(slope))])
    torch.testing.assert_close(helmholtz._derivatives(x, z), expected)


def test_the_analytic_solution_has_no_residual() -> None:
    z = torch.linspace(-4, 4, 9, dtype=torch.float64)
    second = torch.func.vmap(torch.func.grad(torch.func.grad(helmholtz._solution)))(z)
    torch.testing.assert_close(second + helmholtz._solution(z), torch.zeros_like(z))


@pytest.mark.slow
def test_the_residual_continues_the_solution_into_the_half_without_measurements() -> None:
    """Root mean squared error against the analytic solution on [0, 4], where nothing is
    measured."""
    instance = load("helmholtz").build()
    z = torch.linspace(0, 4, 101)
    errors = {}
    for eta in (0.0, 0.1):  # without and with the constraint
        x = trained(
            instance, DescentAscent(eta=eta), 1500, seeds=(0, 1, 2), primal=primal.Adam(lr=0.01)
        )
        u = torch.func.vmap(lambda point: helmholtz._derivatives(point, z)[0])(x)
        errors[eta] = float((u - helmholtz._solution(z)).square().mean(1).sqrt().median())
    assert errors[0.1] < 0.5 * errors[0.0], errors


# Characters ---------------------------------------------------------------------------------------


def entropy(chain: Tensor) -> float:
    """Of the next character given the last one, in nats, at the stationary distribution."""
    stationary = torch.linalg.matrix_power(chain, 1000)[0]
    return float(-(stationary[:, None] * chain * chain.log()).sum())


def test_entropies_of_the_chains() -> None:
    fair = torch.full((4, 4), 0.25, dtype=torch.float64)
    assert entropy(fair) == pytest.approx(math.log(4))
    first, second = map(entropy, characters.transitions())
    assert first == pytest.approx(1.0741, abs=1e-4)
    assert second < characters._BOUND  # else no model could satisfy it on new text


def test_the_chains_themselves_have_a_loss_of_their_entropy() -> None:
    """The texts are draws of the chains: the logarithm of the true probabilities is near the
    entropy."""
    for k, chain in enumerate(characters.transitions()):
        text = characters.texts()[:, k]
        loss = float(-chain[text[:, :-1], text[:, 1:]].log().mean())
        assert loss == pytest.approx(entropy(chain), abs=0.03)


def test_the_model_does_not_see_what_it_predicts() -> None:
    """A later character changes no earlier logits."""
    x = load("characters").build().starts([0])[0]
    text = torch.nn.functional.one_hot(
        characters.texts()[:1, 0, : characters.CONTEXT], characters.CHARACTERS
    ).float()
    changed = text.clone()
    changed[:, 6] = changed[:, 6].roll(1, -1)
    before, after = characters._FORWARD(x, text)[0], characters._FORWARD(x, changed)[0]
    torch.testing.assert_close(before[:6], after[:6])
    assert not torch.allclose(before[6:], after[6:])
