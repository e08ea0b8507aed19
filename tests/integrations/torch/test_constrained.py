"""`Constrained` is the method: its trajectory is the runner's, it follows one gradient, its errors
are sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from loops import (
    F64,
    FIXED,
    GHOSTS,
    LR,
    ONE_GRADIENT,
    flat,
    network,
    numbers_for,
    people,
    rows_of,
    step,
)
from methods import bce, classification
from methods import network as unseeded_network
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transcription import draws

from fairbound import Constrained, MiniBatch, Problem, Sampler, constraints, load_flat, run
from fairbound.algorithms import SGD, DescentAscent, StochasticGhost, SwitchingSubgradient
from fairbound.algorithms.schedules import InverseSqrt
from fairbound.core import Algorithm, Draw, Estimate, MultiplierMethod, Sample
from fairbound.data._samplers import START, Batch, SamplerStack

# The runner's trajectory --------------------------------------------------------------------------


class Fed(NamedTuple):
    """The runner's mini-batches, as a loop of one's own sees them: in one forward pass."""

    problem: Problem
    model: nn.Module
    stack: SamplerStack

    def batches(self, first: int, steps: int) -> list[list[Batch]]:
        """The mini-batches of every step, one for each draw."""
        block = self.stack.block(first, steps)
        return [[Batch(b.objective[k, 0], b.cells[k, 0]) for b in block] for k in range(steps)]

    def rows(self, batch: Batch) -> MiniBatch:
        """The objective's rows, of no group, then those of every cell, which the objective does not
        read."""
        cells, each = batch.cells.shape
        numbers = torch.cat([batch.objective, batch.cells.flatten()])
        groups = torch.cat(
            [torch.full_like(batch.objective, -1), torch.arange(cells).repeat_interleave(each)]
        )
        losses = bce(self.model(self.problem.data.X[numbers])[:, 0], self.problem.data.y[numbers])
        return MiniBatch(losses, groups, objective=groups < 0)


def fed(method: Algorithm[Any]) -> tuple[Fed, Sampler, Tensor]:
    problem, unseeded, x0 = classification()
    (sampler,) = unseeded.seeded(3)
    model = load_flat(unseeded_network().double(), x0[0])
    return Fed(problem, model, SamplerStack([sampler], method.draws, None)), sampler, x0[0]


@pytest.mark.parametrize("method", FIXED.values(), ids=FIXED)
def test_the_trajectory_is_the_runner_s(method: Algorithm[Any]) -> None:
    """200 steps, float64, 1e-9: an ordinary module under `torch.optim.SGD` whose rate is the
    method's own step."""
    feed, sampler, x0 = fed(method)
    result = run(feed.problem, method, sampler, x0, 200, compile=False).result()
    fair = Constrained(
        feed.model, constraints.pairwise_loss_parity(2, bound=0.01), method, seed=sampler.seed
    )
    optimizer = torch.optim.SGD(feed.model.parameters(), lr=1.0)
    main = next(i for i, evaluates in enumerate(method.evaluates) if "f" in evaluates)
    start = feed.rows(feed.batches(START, 1)[0][0])
    fair.start(start)
    for batches in feed.batches(0, 200):
        optimizer.param_groups[0]["lr"] = fair.primal_step
        optimizer.zero_grad()
        with torch.no_grad():
            further = [feed.rows(batch) for i, batch in enumerate(batches) if i != main]
        fair.backward(feed.rows(batches[main]), extra_batches=further)
        optimizer.step()
    assert (flat(feed.model) - x0).norm() > 1e-4
    assert (flat(feed.model) - result.x[0]).abs().max() < 1e-9
    fair.load_output()
    assert (flat(feed.model) - result.output[0]).abs().max() < 1e-9
    if isinstance(method, SwitchingSubgradient):  # its coins chose an earlier iterate
        assert (result.output - result.x).abs().max() > 1e-6
    if fair.multipliers:
        assert torch.allclose(
            torch.tensor([*fair.multipliers.values()]).double(), result.multipliers[0], atol=1e-9
        )
    else:
        assert result.multipliers.isnan().all()


def test_a_schedule_may_be_the_optimizer_s_own() -> None:
    """A falling step as a `LambdaLR`, which is how a loop has it."""
    method = DescentAscent(tau=InverseSqrt(0.2), eta=0.05)
    feed, sampler, x0 = fed(method)
    result = run(feed.problem, method, sampler, x0, 50, compile=False).result()
    fair = Constrained(feed.model, constraints.pairwise_loss_parity(2, bound=0.01), method)
    optimizer = torch.optim.SGD(feed.model.parameters(), lr=0.2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (k + 1) ** -0.5)
    for (batch,) in feed.batches(0, 50):
        optimizer.zero_grad()
        fair.backward(feed.rows(batch))
        optimizer.step()
        schedule.step()
    assert (flat(feed.model) - result.x[0]).abs().max() < 1e-9


@pytest.mark.parametrize("method", FIXED.values(), ids=FIXED)
def test_a_closure_gives_the_same_step(method: Algorithm[Any]) -> None:
    """`backward_closure` draws for itself, and then is `backward`."""
    who, models = people(), [network(), network()]
    limit = constraints.bounded_group_loss(3, bound=0.4, by="race")
    fairs = [Constrained(model, limit, method, seed=3) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=LR) for model in models]
    main = next(i for i, evaluates in enumerate(method.evaluates) if "f" in evaluates)
    for numbers in numbers_for(method, 5, who):
        step(fairs[0], optimizers[0], models[0], who, numbers)
        in_order = [numbers[0] if i == main else None for i in range(method.draws)]
        rest = iter(numbers[1:])
        waiting = iter([next(rest) if chosen is None else chosen for chosen in in_order])
        optimizers[1].zero_grad()
        fairs[1].backward_closure(
            lambda size, waiting=waiting: rows_of(models[1], who, next(waiting))
        )  # type: ignore[misc]
        optimizers[1].step()
    assert torch.allclose(flat(models[0]), flat(models[1]), atol=1e-12)
    assert fairs[0].multipliers == pytest.approx(fairs[1].multipliers, abs=1e-12)


# Ghost --------------------------------------------------------------------------------------------


class Drawn:
    """Fresh rows with equally many of both groups; what was drawn is written down."""

    def __init__(self, problem: Problem, model: nn.Module) -> None:
        self.problem, self.model = problem, model
        self.members = [
            (problem.data.groups["group"] == group).nonzero().flatten() for group in (0, 1)
        ]
        self.generator = torch.Generator().manual_seed(1)
        self.sizes: list[int] = []
        self.numbers: list[Tensor] = []

    def __call__(self, size: int) -> MiniBatch:
        own = [
            m[torch.randint(m.numel(), (6 * size,), generator=self.generator)] for m in self.members
        ]
        numbers = torch.cat(own)
        self.sizes.append(size)
        self.numbers.append(numbers)
        losses = bce(self.model(self.problem.data.X[numbers])[:, 0], self.problem.data.y[numbers])
        return MiniBatch(losses, self.problem.data.groups["group"][numbers])

    def sample(self, objective: Tensor, cells: list[Tensor]) -> Sample:
        """The same rows as a function of flat parameters."""
        data, forward = self.problem.data, self.problem.forward

        def fun(x: Tensor) -> tuple[Tensor, Tensor]:
            f, a, b = (
                bce(forward(x, data.X[rows]), data.y[rows]).mean() for rows in (objective, *cells)
            )
            return f, torch.stack([a - b, b - a]) - 0.01

        return Sample.of(fun)

    def samples(self) -> list[Sample]:
        """X1, X, and its halves: the rows of the objective and of every cell, dealt in turn."""
        single, large = self.numbers[-2:]
        group = self.problem.data.groups["group"]

        def of(rows: Tensor, first: int, every: int) -> Sample:
            return self.sample(
                rows[first::every], [rows[group[rows] == g][first::every] for g in (0, 1)]
            )

        return [of(single, 0, 1), of(large, 0, 1), of(large, 0, 2), of(large, 1, 2)]


@pytest.mark.parametrize("method", GHOSTS.values(), ids=GHOSTS)
def test_ghost_through_a_closure_is_its_update(method: StochasticGhost) -> None:
    problem, _, x0 = classification()
    model = load_flat(unseeded_network().double(), x0[0])
    drawn = Drawn(problem, model)
    fair = Constrained(model, constraints.pairwise_loss_parity(2, bound=0.01), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x, state = x0[0], method.init(x0[0], 2)
    for _ in range(8):
        optimizer.param_groups[0]["lr"] = float(method.primal_step(state))
        optimizer.zero_grad()
        fair.backward_closure(drawn)
        optimizer.step()
        one, large = drawn.sizes[-2:]
        assert one == 1
        draw = Draw.of(*drawn.samples(), weight=1 / method.batch_size_probs[large.bit_length() - 2])
        d, state = method.update(x, state, draw)
        x = x + d
        assert (flat(model) - x).abs().max() < 1e-9
        assert torch.allclose(
            torch.tensor([*fair.multipliers.values()]).double(), state.y, atol=1e-9
        )
    assert len(set(drawn.sizes)) > 2  # several levels were drawn


def test_ghost_lowers_loss_and_violation() -> None:
    problem, _, x0 = classification()
    model = load_flat(unseeded_network().double(), 2 * x0[3])
    rows, before = (
        torch.arange(problem.data.rows),
        problem.evaluate(flat(model), torch.arange(problem.data.rows)),
    )
    fair = Constrained(
        model, constraints.pairwise_loss_parity(2, bound=0.01), StochasticGhost(cap=2, alpha=0.1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = Drawn(problem, model)
    for _ in range(300):
        optimizer.zero_grad()
        fair.backward_closure(drawn)
        optimizer.step()
    after = problem.evaluate(flat(model), rows)
    assert before.c.max() > 0.05
    assert after.c.max() < before.c.max() / 2
    assert after.loss < before.loss - 0.05


# Multiplier methods follow one gradient -----------------------------------------------------------


def noted(sample: Sample, at: Tensor, into: list[tuple[Sample, Tensor]]) -> Sample:
    """The sample's numbers at a point, with a gradient of one number; the weights asked for are
    written down."""
    e = sample(at)

    def pull(w: Tensor) -> Tensor:
        into.append((sample, w))
        return torch.ones(1, dtype=F64)

    return Sample(lambda _: Estimate(e.f, e.c, pull))


ONE_GRADIENT_ALONE = {
    name: method for name, method in ONE_GRADIENT.items() if method.smoothing is None
}


@pytest.mark.parametrize("method", ONE_GRADIENT_ALONE.values(), ids=ONE_GRADIENT_ALONE)
def test_a_multiplier_method_follows_one_gradient(method: MultiplierMethod[Any]) -> None:
    """Asked at a stand-in of one number, it wants the one gradient that it follows at x, by its own
    step."""
    samples, x = draws(method.draws)[1:]
    point, stand_in = torch.tensor(x), torch.zeros(1, dtype=F64)
    state, short = method.init(point, 3), method.init(stand_in, 3)
    for k in range(5):
        asked: list[tuple[Sample, Tensor]] = []
        stand_ins = [noted(sample, point, asked) for sample in samples]
        tau = method.primal_step(state)
        _, short = method.update(stand_in, short, Draw.of(*stand_ins, uniform=0.3))
        d, state = method.update(point, state, Draw.of(*samples, uniform=0.3))
        assert len(asked) == 1, f"{len(asked)} gradients at step {k}"
        sample, weights = asked[0]
        assert torch.allclose(d, -tau * sample(point).vjp(weights), atol=1e-12)
        assert all(
            torch.allclose(a, b)
            for a, b in zip(tree_leaves(state), tree_leaves(short), strict=True)
        )
        point = point + d


@dataclass(frozen=True, kw_only=True)
class WeightDecay(SGD):
    """Also pulls x towards 0, which no loop would see."""

    def update(self, x: Tensor, state: Any, draw: Draw) -> tuple[Tensor, Any]:  # type: ignore[misc, override]
        d, new = SGD.update(self, x, state, draw)
        return d - 0.01 * x, new


def test_a_multiplier_method_that_does_more_than_follow_it_is_refused() -> None:
    with pytest.raises(TypeError, match=r"WeightDecay.update.*not used.*Algorithm"):
        Constrained(network(), constraints.weight_norm(1.0), WeightDecay())
