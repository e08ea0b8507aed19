"""accelerate
=============

`accelerator.backward(fair.loss(losses, groups))`, with accumulation over two mini-batches.
B follows another labeling rule than A, and is the smaller group. The groups' mean losses must
differ by at most 0.02.
"""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fairbound import SGD, AdaptivePI, Constrained, constraints

EPOCHS, STEPS, BOUND = 30, 30 * 31, 0.02  # an epoch: 62 mini-batches, 31 steps
loss = nn.BCEWithLogitsLoss(reduction="none")  # per-example losses


def examples(seed):
    rng = torch.Generator().manual_seed(seed)
    group = (torch.rand(4000, generator=rng) < 0.3).long()  # 0 is A, 1 is B
    X = torch.randn(4000, 5, generator=rng)
    y = (X.sum(1) - 2 * group * X[:, 0] + torch.randn(4000, generator=rng) > 0).float()
    return TensorDataset(X, y, group)


def gap(model, data):
    X, y, group = data.tensors
    with torch.no_grad():
        losses = loss(model(X), y)
    return float(losses[group == 1].mean() - losses[group == 0].mean())


train, test = examples(0), examples(1)
print(f"bound {BOUND}")
for method in (SGD(), AdaptivePI()):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, STEPS)
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    # the prepared model
    fair = Constrained(model, constraints.pairwise_loss_parity(["A", "B"], bound=BOUND), method)
    accelerator.register_for_checkpointing(fair)
    for _ in range(EPOCHS):
        for X, y, group in loader:
            with accelerator.accumulate(model):
                # was loss(model(X), y).mean()
                accelerator.backward(fair.loss(loss(model(X), y), group))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    accelerator.save_state(tempfile.mkdtemp())  # with the multipliers
    accelerator.free_memory()
    here, new = gap(model, train), gap(model, test)
    print(
        f"{type(method).__name__}: gap on training examples {here:+.4f}, on held-out examples"
        f" {new:+.4f}"
    )
