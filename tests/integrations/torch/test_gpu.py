"""A loop on a GPU takes the path that it takes on a CPU: absent groups, NaN, several limits,
reports, float16."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from loops import BOTH, seeded
from methods import bce
from torch import Tensor, nn

from fairbound import (
    KKT,
    SGD,
    SSLALM,
    Constrained,
    DescentAscent,
    MiniBatch,
    Penalty,
    SwitchingSubgradient,
    constraints,
)
from fairbound.core import Algorithm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

METHODS = [
    SGD(),
    Penalty(),
    DescentAscent(),
    SSLALM(samples=1),
    SSLALM(),
    SSLALM(samples=3),
    SwitchingSubgradient(),
]
PARITY = constraints.loss_parity(["A", "B"], bound=0.02)
SEVERAL = {
    "loss": PARITY,
    "rate": constraints.minimum_rate(0.6, groups=["A", "B"], group="B", label=1),
    "norm": constraints.weight_norm(5.0),
}


def batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Forty mini-batches; one lacks a group, one is NaN."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(40):
        X = torch.randn(64, 9, generator=generator, dtype=torch.float64)
        y = (torch.rand(64, generator=generator) < 0.4).double()
        group = torch.randint(-1, 2, (64,), generator=generator)
        made.append((X * torch.nan if i == 9 else X, y, group.clamp(max=0) if i == 7 else group))
    return made


def network() -> nn.Module:
    model: nn.Module = seeded(
        lambda: nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    )
    return model.double()


def trained(device: str, method: Algorithm[Any], limit: Any) -> tuple[Tensor, Constrained, KKT]:
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fair = Constrained(model, limit, method, seed=3)
    data = batches()

    def evaluate(batch: tuple[Tensor, Tensor, Tensor]) -> MiniBatch:
        X, y, group = (part.to(device) for part in batch)
        outputs = model(X)
        return MiniBatch(bce(outputs, y), group, y, outputs)

    for i, batch in enumerate(data):
        with torch.no_grad():
            further = [evaluate(data[(i + j) % 40]) for j in range(1, method.draws)]
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            fair.backward(evaluate(batch), extra_batches=further)
        optimizer.step()
    report = fair.report([batch for i, batch in enumerate(data) if i != 9], evaluate)
    return torch.cat([p.detach().cpu().reshape(-1) for p in model.parameters()]), fair, report


@pytest.mark.parametrize("limit", [PARITY, SEVERAL], ids=["one limit", "several"])
@pytest.mark.parametrize(
    "method", METHODS, ids=lambda method: f"{type(method).__name__}-{method.draws}"
)
def test_a_gpu_takes_the_same_path(method: Algorithm[Any], limit: Any) -> None:
    here, fair, report = trained("cpu", method, limit)
    there, other, seen = trained("cuda", method, limit)
    torch.testing.assert_close(there, here, rtol=0, atol=1e-12)
    assert other.skipped == fair.skipped == method.draws
    assert other.multipliers == pytest.approx(fair.multipliers, abs=1e-12)
    assert seen.stationarity == pytest.approx(report.stationarity, abs=1e-12)


@pytest.mark.parametrize("method", BOTH.values(), ids=BOTH)
def test_half_precision_with_a_scaler_trains(method: Algorithm[Any]) -> None:
    model = network().float().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fair, scaler = Constrained(model, PARITY, method), torch.amp.GradScaler("cuda")
    for i, batch in enumerate(batches()):
        if i == 9:
            continue
        X, y, group = (part.cuda() for part in batch)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            outputs = model(X.float())
        fair.backward(bce(outputs.float(), y.float()), group, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert (fair.steps, fair.skipped) == (39, 0)
