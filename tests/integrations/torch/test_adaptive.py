"""`Constrained` without a method: AdaptivePI, whose sizes the loop measures, in every way of making
a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loops import flat, network, people, rows_of
from torch import Tensor, nn

from fairbound import AdaptivePI, Constrained, DescentAscent, MiniBatch, constraints
from fairbound.integrations.torch._multiplier_steps import MultiplierSteps
from fairbound.integrations.torch._probes import Probes

F64 = torch.float64
WHO = people()


LIMIT = constraints.pairwise_loss_parity(3, bound=0.05, by="race")


class Loop:
    """Mini-batches of 30 people under Adam."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = network() if model is None else model
        self.fair = Constrained(self.model, LIMIT)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def batch(self, numbers: Tensor) -> MiniBatch:
        return rows_of(self.model, WHO, numbers)

    @property
    def probes(self) -> Probes:
        return probes_of(self.fair)


def probes_of(fair: Constrained) -> Probes:
    assert isinstance(fair._steps, MultiplierSteps)
    assert fair._steps.probes is not None
    return fair._steps.probes


def numbers(k: int) -> Tensor:
    return torch.randint(120, (30,), generator=torch.Generator().manual_seed(k))


def whole(loop: Loop, k: int) -> None:
    loop.fair.backward(loop.batch(numbers(k)))


def as_a_loss(loop: Loop, k: int) -> None:
    loop.fair.loss(loop.batch(numbers(k))).backward()


def accumulated(loop: Loop, k: int) -> None:
    parts = numbers(k).split([20, 10])
    for part in parts:
        with torch.no_grad():
            loop.fair.accumulate(loop.batch(part))
    for part in parts:
        loop.fair.backward(loop.batch(part))


def run(loop: Loop, step: Any, first: int, last: int) -> Loop:
    for k in range(first, last):
        loop.optimizer.zero_grad()
        step(loop, k)
        loop.optimizer.step()
    return loop


def test_the_default_needs_no_method() -> None:
    loop = run(Loop(), whole, 0, 60)
    assert loop.fair.method == AdaptivePI()
    assert loop.fair.forces.keys() == loop.fair.multipliers.keys()
    assert any(force > 0 for force in loop.fair.forces.values())
    unit = loop.probes.measured.sizes(6).unit
    expected = torch.tensor([*loop.fair.multipliers.values()], dtype=F64) / unit
    torch.testing.assert_close(torch.tensor([*loop.fair.forces.values()], dtype=F64), expected)
    assert "force/0 - 1" in loop.fair.log_values()
    assert Constrained(network(), LIMIT, DescentAscent()).forces == {}


@pytest.mark.parametrize(("step", "near"), [(as_a_loss, 1e-3), (accumulated, 1e-10)])
def test_every_way_of_a_step_measures_the_same(step: Any, near: float) -> None:
    """A trainer's optimizer has moved before the state does, so that there sizes are known one step
    earlier."""
    one, other = run(Loop(), whole, 0, 60), run(Loop(), step, 0, 60)
    torch.testing.assert_close(flat(one.model), flat(other.model), rtol=0, atol=near)
    assert (one.probes.measured.probes > 0).all()
    assert torch.equal(one.probes.measured.probes, other.probes.measured.probes)


def test_shares_of_a_step_are_measured_when_the_optimizer_moves() -> None:
    def shares(loop: Loop, k: int) -> None:
        for part in numbers(k).split(15):
            loop.fair.backward(loop.batch(part), scale=0.5)

    measured = run(Loop(), shares, 0, 40).probes.measured
    assert (measured.probes > 0).all()
    assert measured.length > 0


def test_a_saved_loop_goes_on_bit_for_bit() -> None:
    for halfway in (11, 25):  # after a probe, and between two
        uninterrupted, resumed = run(Loop(), whole, 0, 40), run(Loop(), whole, 0, halfway)
        fair = Constrained(resumed.model, LIMIT)
        fair.load_state_dict(resumed.fair.state_dict())
        resumed.fair = fair
        assert torch.equal(flat(run(resumed, whole, halfway, 40).model), flat(uninterrupted.model))


def test_measurements_of_another_model_are_refused() -> None:
    saved = run(Loop(), whole, 0, 3).fair.state_dict()
    other = Constrained(nn.Linear(4, 1).double(), LIMIT)
    with pytest.raises(ValueError, match=r"measurements.*another model"):
        other.load_state_dict(saved)


def test_a_group_that_is_absent_is_not_measured() -> None:
    present = (WHO.race != 2).nonzero().flatten()

    def without(loop: Loop, k: int) -> None:
        loop.fair.backward(loop.batch(present[numbers(k) % len(present)]))

    loop = run(Loop(), without, 0, 30)
    probes = dict(zip(loop.fair.names, loop.probes.measured.probes.tolist(), strict=True))
    assert probes["0 - 1"] > 0
    assert probes["1 - 0"] > 0
    assert all(count == 0 for name, count in probes.items() if "2" in name)
    assert all(value == 0 for name, value in loop.fair.multipliers.items() if "2" in name)


def test_losses_in_half_precision() -> None:
    model = network(dtype=torch.float32)
    loop = Loop(model)

    def step(loop: Loop, k: int) -> None:
        batch = rows_of(loop.model, people(dtype=torch.float32), numbers(k))
        loop.fair.backward(batch.losses.bfloat16(), batch.groups)

    run(loop, step, 0, 40)
    assert loop.fair.skipped == 0
    assert loop.probes.measured.square.dtype == torch.float32
    assert (loop.probes.measured.probes > 0).all()


def test_rows_of_very_many_groups_share_their_sizes() -> None:
    model = nn.Linear(3, 1).double()
    fair = Constrained(model, constraints.bounded_group_loss(20_000, bound=0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        X = torch.randn(64, 3, dtype=F64, generator=generator)
        group = torch.randint(50, (64,), generator=generator) * 397
        optimizer.zero_grad()
        fair.backward((model(X)[:, 0] - X.sum(1) - 1).square(), group)
        optimizer.step()
    measured = probes_of(fair).measured
    assert measured.probes.tolist() == [measured.steps.item()]
    forces = torch.tensor([*fair.forces.values()])
    assert (forces[::397][:50] > 0).sum() > 40
    assert (forces > 0).sum() <= 50


def test_noise_beyond_reach_is_a_sentence() -> None:
    model = nn.Linear(2, 1).double()
    fair = Constrained(model, constraints.given("cost"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(120):
        X = torch.randn(16, 2, dtype=F64, generator=generator)
        optimizer.zero_grad()
        noise = 5 * torch.randn((), dtype=F64, generator=generator)
        fair.backward((model(X)[:, 0] - 1).square(), values={"cost": model.weight.sum() + noise})
        optimizer.step()
    assert fair.too_noisy is not None
    assert "mini-batches show 'cost' with a standard deviation of" in fair.too_noisy
    assert "times as many examples" in fair.too_noisy
    assert run(Loop(), whole, 0, 5).fair.too_noisy is None


def test_a_constraint_on_a_small_tensor_of_a_large_model_is_seen() -> None:
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 1)).double()
    fair = Constrained(model, constraints.given("bias"))
    losses = model(torch.randn(8, 200, dtype=F64))[:, 0].square()
    fair.backward(losses, values={"bias": model[1].bias.square().sum() - 1})
    steps = fair._steps
    assert isinstance(steps, MultiplierSteps)
    assert steps.probes is not None
    of_c, weights = steps.probes.measured.of_c, steps.probes.weights
    exact = (2 * model[1].bias).square().sum()
    torch.testing.assert_close((weights * of_c.square()).sum(), exact.detach())
    assert len(weights) < 40_000
