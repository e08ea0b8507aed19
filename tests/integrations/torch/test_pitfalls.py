"""What users of a loop trip over: each was wrong, silent or a crash once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loops import BOTH, MULTIPLIERS, WholeVectors, seeded
from methods import bce
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fairbound import (
    SSLALM,
    BalancedBatchSampler,
    Constrained,
    DescentAscent,
    MiniBatch,
    SwitchingSubgradient,
    constraints,
    report_kkt,
)
from fairbound.core import Algorithm

GROUP = torch.arange(16) % 2
PARITY = constraints.pairwise_loss_parity(["A", "B"], bound=0.02)
both = pytest.mark.parametrize("method", BOTH.values(), ids=BOTH)
accumulating = pytest.mark.parametrize("method", MULTIPLIERS.values(), ids=MULTIPLIERS)


def rows_of_people() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(16, 5, generator=generator),
        (torch.rand(16, generator=generator) < 0.5).float(),
    )


def network() -> nn.Module:
    model: nn.Module = seeded(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)))
    return model


def losses_of(model: nn.Module) -> Tensor:
    X, y = rows_of_people()
    return bce(model(X).reshape(-1), y)


@pytest.mark.parametrize(
    "method", [SSLALM(samples=1), SwitchingSubgradient()], ids=["SSLALM", "Switching"]
)
def test_a_model_with_one_parameter_has_a_state_of_its_own(method: Algorithm[Any]) -> None:
    model = nn.Linear(5, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fair = Constrained(model, PARITY, method)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        further = [MiniBatch(losses_of(model).detach(), GROUP)] * (method.draws - 1)
        fair.backward(losses_of(model), GROUP, extra_batches=further)
        optimizer.step()
    saved = fair.state_dict()
    kept = (saved["smoothed"] if isinstance(method, SSLALM) else saved["state"]["kept"])["weight"]
    assert not kept.requires_grad
    assert kept.data_ptr() != model.weight.data_ptr()
    assert model.weight.grad is not None
    assert model.weight.grad.grad_fn is None


@accumulating
def test_an_error_inside_an_accumulated_step_ends_it_and_the_loop_goes_on(
    method: Algorithm[Any],
) -> None:
    model = network()
    fair = Constrained(model, PARITY, method)
    for _ in range(2):
        fair.accumulate(losses_of(model), GROUP)
    fair.backward(losses_of(model), GROUP)
    with pytest.raises(ValueError, match="no graph"):
        fair.backward(losses_of(model).detach(), GROUP)
    seen = fair.backward(losses_of(model), GROUP)
    assert not seen.skipped
    assert fair.steps == 1
    fair.state_dict()


def test_what_is_given_beside_rows_is_not_dropped() -> None:
    model = network()
    fair = Constrained(model, PARITY, DescentAscent())
    with pytest.raises(ValueError, match=r"weight=.*beside MiniBatch"):
        fair.backward(MiniBatch(losses_of(model), GROUP), weight=torch.ones(16))


def test_a_limit_that_no_row_is_about_is_told_of() -> None:
    model = network()
    fair = Constrained(
        model, constraints.minimum_rate(0.8, groups=2, group=1, label=7), DescentAscent()
    )
    X, y = rows_of_people()
    for _ in range(49):
        fair.backward(losses_of(model), GROUP, labels=y, outputs=model(X)[:, 0])
    with pytest.warns(UserWarning, match=r"50 mini-batches .*'rate of 1, y=7 >= 0.8'"):
        seen = fair.backward(losses_of(model), GROUP, labels=y, outputs=model(X)[:, 0])
    assert seen.c.isnan().all()


def test_a_report_does_not_flatter() -> None:
    model = network()

    def report(evaluate: Any, batches: Any = (0,)) -> Any:
        return report_kkt(model, PARITY, batches, evaluate)

    with pytest.raises(ValueError, match="carry no graph"):
        report(lambda _: MiniBatch(losses_of(model).detach(), GROUP))
    data = TensorDataset(torch.arange(100), (torch.arange(100) < 20).long())
    loader = DataLoader(data, batch_sampler=BalancedBatchSampler(data.tensors[1], batch_size=8))
    scale = torch.linspace(0, 3, 100)
    with pytest.raises(ValueError, match="saw other examples"):
        report(lambda batch: MiniBatch(losses_of(model).mean() * scale[batch[0]], batch[1]), loader)
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(ValueError, match="NaN or infinite"):
        report(lambda _: MiniBatch(losses_of(model), GROUP))


@both
def test_a_scaler_takes_a_step_that_was_left_out(method: Algorithm[Any]) -> None:
    model = network()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    fair = Constrained(model, PARITY, method)
    before = [p.clone() for p in model.parameters()]
    with pytest.warns(RuntimeWarning, match="skipped"):
        fair.backward(losses_of(model) * torch.nan, GROUP, scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.zero_grad()
    fair.backward(losses_of(model), GROUP, scaler=scaler)
    scaler.step(optimizer)
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@both
def test_a_scaler_that_is_switched_off_hides_no_gradient_that_is_not_finite(
    method: Algorithm[Any],
) -> None:
    model = nn.Linear(5, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    fair, scaler = Constrained(model, PARITY, method), torch.amp.GradScaler("cpu", enabled=False)
    # finite, with a slope of 0 / 0 at 0
    losses = model(rows_of_people()[0]).reshape(-1).square().sqrt()
    with pytest.warns(RuntimeWarning, match="skipped"):
        seen = fair.backward(losses, GROUP, scaler=scaler)
    assert seen.skipped
    assert model.weight.grad is None


@accumulating
def test_other_rows_than_were_gathered_are_refused(method: Algorithm[Any]) -> None:
    model = network()
    fair = Constrained(model, PARITY, method)
    for _ in range(2):
        fair.accumulate(losses_of(model), GROUP)
    fair.backward(losses_of(model), GROUP)
    with pytest.raises(ValueError, match=r"other examples.*accumulate"):
        fair.backward(losses_of(model), torch.zeros_like(GROUP))
    assert all(p.grad is None for p in model.parameters())
    assert fair.steps == 0


@both
def test_weights_in_another_precision_autocast_and_sparse_gradients(method: Algorithm[Any]) -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(4, 3, sparse=True), nn.Linear(3, 1)

        def forward(self, rows: Tensor) -> Tensor:
            return self.out(self.table(rows)).reshape(-1)

    model, y = Embedded(), rows_of_people()[1]
    fair = Constrained(model, PARITY, method)
    for _ in range(2):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = bce(model(torch.arange(16) % 4).float(), y)
            seen = fair.backward(losses, GROUP, weight=torch.ones(16, dtype=torch.float64))
        assert (seen.skipped, seen.c.dtype) == (False, torch.float64)
    assert model.table.weight.grad is not None


def test_misuses_are_sentences() -> None:
    model = network()
    fair = Constrained(model, PARITY, DescentAscent())
    fair.backward(losses_of(model), GROUP)
    with pytest.raises(ValueError, match=r"start\(\).*discard.*state"):
        fair.start(losses_of(model), GROUP)
    with pytest.raises(ValueError, match="not a state"):
        fair.load_state_dict({})
    with pytest.raises(TypeError, match=r"must be fairbound.MiniBatch"):
        fair.backward_closure(lambda size: (losses_of(model), GROUP))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"int is not.*use"):
        Constrained(model, [PARITY, 3], DescentAscent())  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"twice.*two names"):
        Constrained(model, {"a": PARITY, "b": PARITY}, DescentAscent())
    with pytest.raises(TypeError, match="parameters, got dict"):
        Constrained([{"params": list(model.parameters())}], PARITY, DescentAscent())  # type: ignore[list-item]
    with pytest.raises(ValueError, match="complex"):
        Constrained([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], PARITY, DescentAscent())
    with pytest.raises(ValueError, match="no groups"):
        constraints.loss_parity(0, bound=0.1)


class Decaying(WholeVectors):
    """Adds a multiple of x."""

    def update(self, x: Tensor, state: Any, draw: Any) -> tuple[Tensor, Any]:
        d, new = super().update(x, state, draw)
        return d - 0.01 * x, new


def test_what_a_general_method_adds_to_its_gradient_is_written() -> None:
    plain, decaying = network(), network()
    Constrained(plain, PARITY, DescentAscent(tau=0.1)).backward(losses_of(plain), GROUP)
    Constrained(decaying, PARITY, Decaying(inside=DescentAscent(tau=0.1))).backward(
        losses_of(decaying), GROUP
    )
    for p, q in zip(plain.parameters(), decaying.parameters(), strict=True):
        assert p.grad is not None
        assert torch.allclose(q.grad, p.grad + 0.1 * p)  # type: ignore[arg-type]
