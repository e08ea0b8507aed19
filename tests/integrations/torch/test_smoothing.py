"""Smoothed parameters in a loop: `.grad` is grad f + J'w + mu (x - z), then z += beta (x - z), both
with the old x."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loops import WholeVectors, flat, seeded
from torch import Tensor, nn

from fairbound import SSLALM, Constrained, constraints
from fairbound.core import Algorithm
from fairbound.integrations.torch import _parameters as parameters

GROUP = torch.arange(12) % 2
BOUND = 0.1
LIMIT = constraints.bounded_group_loss(["A", "B"], bound=BOUND)
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}
any_precision = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


class Texts(nn.Module):
    """An embedding, a layer, and a parameter that the model does not use."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 3, sparse=sparse)
        self.unused = nn.Parameter(torch.ones(2))
        self.out = nn.Linear(3, 1)

    def forward(self, words: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.words(words)).reshape(-1)
        return outputs


def losses_of(model: nn.Module, k: int = 0) -> Tensor:
    """In at least single precision, as losses are; step k shows other words."""
    outputs: Tensor = model((torch.arange(12) * (k + 1)) % 7)
    return nn.functional.softplus(outputs.float() if outputs.dtype == torch.bfloat16 else outputs)


class ByHand:
    """SSL-ALM's state and z, moved by the equations; x is the model's."""

    def __init__(self, method: SSLALM, model: Texts) -> None:
        self.method, self.used = method, [model.words.weight, *model.out.parameters()]
        self.z = [self.wide(p) for p in self.used]
        self.state: Any = None

    @staticmethod
    def wide(p: Tensor) -> Tensor:
        return p.detach().to(
            torch.float64 if p.dtype == torch.float64 else torch.float32, copy=True
        )

    def direction(self, losses: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """grad f + J'w + mu (x - z), and its last term."""
        c = torch.stack([losses[group == GROUP].mean() for group in (0, 1)]) - BOUND
        if self.state is None:
            self.state = self.method.start(c.detach().new_zeros(()), 2, None, c.detach())
        w, self.state = self.method.step(self.state, c.detach())
        gradients = torch.autograd.grad(losses.mean() + w @ c, self.used, retain_graph=True)
        x = [self.wide(p) for p in self.used]
        pulls = [self.method.mu * (own - z) for own, z in zip(x, self.z, strict=True)]
        self.z = [z + self.method.beta * (own - z) for own, z in zip(x, self.z, strict=True)]
        return [
            self.wide(g.to_dense()) + pull for g, pull in zip(gradients, pulls, strict=True)
        ], pulls


@any_precision
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("scale", "init_scale"), [(1.0, None), (0.25, None), (1.0, 2.0**10), (0.5, 2.0**10)]
)
def test_smoothing_is_what_a_hand_writes(
    dtype: torch.dtype, sparse: bool, scale: float, init_scale: float | None
) -> None:
    method = SSLALM(samples=1, mu=0.8, beta=0.3, eta=0.5)
    model: Texts = seeded(lambda: Texts(sparse)).to(dtype)
    fair, hand = Constrained(model, LIMIT, method), ByHand(method, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3 / scale)
    scaler = None if init_scale is None else torch.amp.GradScaler("cpu", init_scale=init_scale)
    factor, tolerance = scale * (init_scale or 1.0), TOLERANCE[dtype]
    for k in range(5):
        optimizer.zero_grad()
        losses = losses_of(model, k)
        directions, pulls = hand.direction(losses)
        assert not fair.backward(losses, GROUP, scaler=scaler, scale=scale).skipped
        for p, direction in zip(hand.used, directions, strict=True):
            assert p.grad is not None
            assert p.grad.dtype == dtype
            size = float(direction.abs().max())
            assert torch.allclose(
                hand.wide(p.grad) / factor, direction, rtol=0, atol=tolerance * size
            )
        assert model.unused.grad is None
        if scaler is not None:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    largest = max(float(direction.abs().max()) for direction in directions)
    assert max(float(pull.abs().max()) for pull in pulls) > 5 * tolerance * largest
    smoothed = fair.state_dict()["smoothed"]
    names = ["words.weight", *(f"out.{name}" for name, _ in model.out.named_parameters())]
    for name, z in zip(names, hand.z, strict=True):
        assert smoothed[name].dtype == z.dtype  # in bfloat16 the small steps of z would be lost
        assert torch.allclose(smoothed[name], z, rtol=1e-6, atol=tolerance * 1e-3)
    assert torch.equal(smoothed["unused"], model.unused.detach().to(smoothed["unused"].dtype))


def test_a_large_parameter_close_to_its_smoothed_copy_loses_no_digits() -> None:
    """mu x - mu z in single precision would be noise."""
    p = nn.Parameter(torch.full((3,), 1e4))
    fair = Constrained([p], constraints.weight_norm(1e9), SSLALM(samples=1, mu=0.5, beta=0.0))
    for _ in range(2):
        fair.backward((1e-9 * p.sum()).expand(4))
        with torch.no_grad():
            p += 2.0**-9  # a digit of 1e4
        p.grad = None
    fair.backward((1e-9 * p.sum()).expand(4))
    assert p.grad is not None
    assert torch.allclose(p.grad, torch.full((3,), 0.5 * 2 * 2.0**-9), rtol=1e-3)


class Several(Texts):
    """In two precisions."""

    def __init__(self, sparse: bool) -> None:
        super().__init__(sparse)
        self.narrow = nn.Parameter(torch.randn(3).to(torch.bfloat16))

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words) + self.narrow.float().sum()


def trained(method: Algorithm[Any], sparse: bool, together: bool) -> tuple[Several, Constrained]:
    """Four steps and a gradient; two mini-batches for every optimizer step, or one."""
    model = seeded(lambda: Several(sparse))
    fair = Constrained(model, LIMIT, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for k in range(4):
        fair.backward(losses_of(model, k), GROUP, scale=0.5)
        if k % 2 or not together:
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(k % 4))
    fair.backward(losses_of(model), GROUP)
    return model, fair


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_both_kinds_give_the_same(
    sparse: bool, together: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL-ALM on the parameters, some at once, and on flat vectors."""
    monkeypatch.setattr(parameters, "_AT_ONCE", at_once)
    inside = SSLALM(samples=1, tau=0.01, mu=0.5)
    (model, fair), (other, whole) = (
        trained(m, sparse, together) for m in (inside, WholeVectors(inside=inside))
    )
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None) == (p is model.unused)
        if p.grad is not None:
            assert q.grad is not None
            rtol = 1e-2 if p is model.narrow else 1e-4
            assert torch.allclose(
                p.grad.to_dense().float(), q.grad.to_dense().float(), rtol=rtol, atol=1e-6
            )
    assert fair.multipliers == pytest.approx(whole.multipliers, rel=1e-5)
    z, flat_z = fair.state_dict()["smoothed"], whole.state_dict()["state"]["leaf 7"]
    assert all(torch.allclose(z[name], flat_z[name], rtol=1e-5, atol=1e-6) for name in z)


@pytest.mark.parametrize("method", [SSLALM(samples=1), WholeVectors()], ids=["multipliers", "flat"])
def test_sparse_gradients_that_were_there_are_added_to(method: Algorithm[Any]) -> None:
    model, other = seeded(lambda: Texts(True)), seeded(lambda: Texts(True))
    losses_of(model, 2).mean().backward()
    held = [p.grad.to_dense().clone() for p in model.parameters() if p.grad is not None]
    for own in (model, other):
        Constrained(own, LIMIT, method).backward(losses_of(own), GROUP)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    found = [
        p.grad.to_dense() - q.grad.to_dense()
        for p, q in pairs
        if p.grad is not None and q.grad is not None
    ]
    assert len(found) == len(held) == 3
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, held, strict=True))


def test_smoothing_is_not_lost_with_a_state_that_has_none() -> None:
    model = seeded(lambda: Texts(False))
    plain, smooth = (Constrained(model, LIMIT, SSLALM(samples=1, mu=mu)) for mu in (0.0, 2.0))
    smooth.load_state_dict(plain.state_dict())  # neither has begun
    plain.backward(losses_of(model), GROUP)
    with pytest.raises(ValueError, match=r"SSLALM smooths.*saved state"):
        smooth.load_state_dict(plain.state_dict())
    assert smooth.steps == 0
    smooth.backward(losses_of(model), GROUP)
    plain.load_state_dict(smooth.state_dict())
    assert plain.state_dict()["smoothed"] is None
    assert flat(model).isfinite().all()
