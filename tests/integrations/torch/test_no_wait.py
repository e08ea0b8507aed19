"""A multiplier method's step need not wait for a GPU; what it decides there is what it decides by
looking, on a CPU."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from loops import network, people, rows_of, three_constraints
from methods import METHODS
from torch import Tensor

from fairbound import Constrained, MultiplierMethod

MULTIPLIERS = {
    name: method for name, method in METHODS.items() if isinstance(method, MultiplierMethod)
}
ONE_LOSS = {name: m for name, m in MULTIPLIERS.items() if m.smoothing is None and m.draws == 1}
WHO = people(240)
STEPS, NAN = 24, 9


def trained(
    method: MultiplierMethod[Any],
    *,
    loss: bool = False,
    device: str = "cpu",
    look: bool | None = None,
) -> tuple[Tensor, Constrained]:
    """After some steps; mini-batches lack a race at times, and one is NaN."""
    model, who = network().to(device), type(WHO)(*(part.to(device) for part in WHO))
    fair = Constrained(model, three_constraints(), method)
    fair._steps.look = fair._steps.look if look is None else look
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(240, (STEPS, method.draws, 24), generator=generator)
    for k, (main, *further) in enumerate(draws.to(device)):
        if k in (3, 4, 12):
            main = main[who.race[main] != 2]
        optimizer.zero_grad()
        with torch.no_grad():
            extra = [rows_of(model, who, numbers) for numbers in further]
        batch = rows_of(model, who, main)
        if k == NAN:
            batch = batch._replace(losses=batch.losses * torch.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            if loss:
                fair.loss(batch).backward()
            else:
                fair.backward(batch, extra_batches=extra)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), fair


@pytest.mark.parametrize("loss", [False, True], ids=["backward", "loss"])
@pytest.mark.parametrize("name", ["DescentAscent", "SSLALM", "SSLALM, one draw", "AdaptivePI"])
def test_without_looking_the_steps_are_the_same(name: str, loss: bool) -> None:
    """Absent groups, a NaN: decided by `where` on the device, as on a GPU, and by branches."""
    method = MULTIPLIERS[name]
    if loss and name not in ONE_LOSS:
        return
    x, fair = trained(method, loss=loss)
    unseen_x, unseen = trained(method, loss=loss, look=False)
    assert torch.allclose(unseen_x, x, rtol=1e-9, atol=1e-12)
    assert (unseen.steps, unseen.skipped) == (fair.steps, fair.skipped) == (STEPS - 1, 1)
    assert unseen.multipliers == pytest.approx(fair.multipliers, rel=1e-7, abs=1e-10)
    assert unseen.constraints == pytest.approx(fair.constraints, rel=1e-7, abs=1e-10)
    assert unseen.observed == fair.observed
    again = Constrained(network(), three_constraints(), method)
    again.load_state_dict(unseen.state_dict())
    assert (again.steps, again.skipped, again.multipliers) == (
        unseen.steps,
        unseen.skipped,
        unseen.multipliers,
    )


@pytest.mark.parametrize("loss", [False, True], ids=["backward", "loss"])
@pytest.mark.parametrize("name", MULTIPLIERS)
def test_a_step_does_not_wait_for_the_gpu(name: str, loss: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    method = MULTIPLIERS[name]
    if loss and name not in ONE_LOSS:
        return
    model, who = network().cuda(), type(WHO)(*(part.cuda() for part in WHO))
    fair = Constrained(model, three_constraints(), method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    numbers = torch.arange(24, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        batch, extra = (
            rows_of(model, who, numbers),
            [rows_of(model, who, numbers)] * (method.draws - 1),
        )
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            if loss:
                fair.loss(batch).backward()
            else:
                fair.backward(batch, extra_batches=extra)
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    mode = "default"
    step()  # the first one checks the mini-batch
    mode = "error"
    for _ in range(5):
        step()
    assert fair.steps == 6


def test_on_a_gpu_as_on_a_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for name, method in MULTIPLIERS.items():
        x, fair = trained(method)
        gpu_x, gpu = trained(method, device="cuda")
        assert torch.allclose(gpu_x.cpu(), x, rtol=1e-7, atol=1e-9), name
        assert (gpu.steps, gpu.skipped) == (fair.steps, fair.skipped)
