"""What the tests of trainers share: data in a fixed order, a network, and the plain loop that a
trainer must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from fairbound import Constrained, DescentAscent, constraints
from fairbound.core import Algorithm

BATCH, LR = 32, 0.1
PARITY = constraints.loss_parity(["A", "B"], bound=0.02)
METHOD = DescentAscent(eta=0.5)


class End(NamedTuple):
    """What is compared bit for bit."""

    weights: Tensor
    multipliers: dict[str, float]
    steps: int

    def equals(self, other: End) -> bool:
        return torch.equal(self.weights, other.weights) and self[1:] == other[1:]


def end(model: nn.Module, fair: Constrained) -> End:
    return End(
        nn.utils.parameters_to_vector(model.parameters()).detach().clone(),
        fair.multipliers,
        fair.steps,
    )


def examples(size: int = 256) -> TensorDataset:
    """Inputs, labels and groups; B follows another rule than A."""
    rng = torch.Generator().manual_seed(0)
    group = (torch.rand(size, generator=rng) < 0.4).long()
    X = torch.randn(size, 5, generator=rng)
    y = X.sum(1) - 2 * group * X[:, 0] + torch.randn(size, generator=rng) > 0
    return TensorDataset(X, y.float(), group)


def loader(data: TensorDataset | None = None) -> DataLoader[Any]:
    """Always in the same order."""
    return DataLoader(data or examples(), batch_size=BATCH)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LR)


def bce(outputs: Tensor, labels: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs, labels, reduction="none")


def plain_loop(
    epochs: int,
    accumulate: int = 1,
    method: Algorithm[Any] = METHOD,
    without: tuple[int, ...] = (),  # the mini-batches of the first epoch that are skipped
) -> End:
    """The loop that a user writes, without a trainer; of single mini-batches, with
    `fair.backward`."""
    model = network()
    fair, optimizer = Constrained(model, PARITY, method), optimizer_of(model)
    for epoch in range(epochs):
        for i, (X, y, group) in enumerate(loader()):
            if epoch == 0 and i in without:
                continue
            if accumulate == 1:
                fair.backward(bce(model(X), y), group)
            else:
                (fair.loss(bce(model(X), y), group) / accumulate).backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return end(model, fair)


def scalars(folder: Path) -> dict[str, list[float]]:
    """Every curve that TensorBoard finds in the one file of events below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(path)).Reload()
    return {
        name: [event.value for event in events.Scalars(name)] for name in events.Tags()["scalars"]
    }
