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
    ONE_GRADIENT,
    flat,
    network,
)
from methods import bce, classification
from methods import network as unseeded_network
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transcription import draws

from fairbound import Constrained, MiniBatch, Problem, Sampler, constraints, load_flat, run
from fairbound.algorithms import SGD, DescentAscent
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
