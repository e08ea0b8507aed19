"""A PyTorch loop
=================

An ordinary loop keeps a bound: two of its lines are new.

A synthetic census of Oklahoma: who earns more than 50,000 dollars a year? The mean loss over white
people and the mean loss over all others must differ by at most 0.02. Plain training is the same
loop with `SGD()` as the method.
"""

import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fairbound import SGD, AdaptivePI, BalancedBatchSampler, Constrained, MiniBatch, constraints
from fairbound.data import load, random_split, scaled

EPOCHS, BOUND = 30, 0.02

data = load("synthetic:OK").dataset("RAC1P=1")  # two groups, and RAC1P is no input of the model
group = data.groups["RAC1P"]
split = random_split(group, {"train": 0.7, "test": 0.3}, seed=0)
data = scaled(data, split)
train, test = (
    TensorDataset(data.X[part], data.y[part], group[part]) for part in (split.train, split.test)
)

loss = nn.BCEWithLogitsLoss(reduction="none")  # per-example losses
parity = constraints.pairwise_loss_parity(["white", "other"], bound=BOUND)
batches = BalancedBatchSampler(train.tensors[2], batch_size=128)  # 64 examples of each group
steps = EPOCHS * len(batches)


def gap(model, examples):
    """Difference of the groups' mean losses, and its standard error over samples like these."""
    X, y, group = examples.tensors
    with torch.no_grad():
        white, other = (loss(model(X[group == g]), y[group == g]) for g in (0, 1))
    return white.mean() - other.mean(), (white.var() / len(white) + other.var() / len(other)).sqrt()


def trained(method):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(data.X.shape[1], 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    fair = Constrained(model, parity, method)  # NEW
    gaps = [gap(model, train)[0]]
    for _ in range(EPOCHS):
        for X, y, group in DataLoader(train, batch_sampler=batches):
            optimizer.zero_grad()
            # NEW: was loss(model(X), y).mean().backward(). The weights make each group count as in
            # the population.
            fair.backward(loss(model(X), y), group, weight=batches.weights[group])
            optimizer.step()
            schedule.step()
        gaps.append(gap(model, train)[0])
    plt.plot(gaps, "o-", label=type(method).__name__)
    (here, _), (new, error) = gap(model, train), gap(model, test)
    print(
        f"{type(method).__name__}: gap on training examples {here:+.4f}, on held-out examples"
        f" {new:+.4f} +- {error:.4f}"
    )
    return model, fair


print(f"bound {BOUND}")
trained(SGD())
model, fair = trained(AdaptivePI())
print(
    fair.report([train.tensors], lambda batch: MiniBatch(loss(model(batch[0]), batch[1]), batch[2]))
)

plt.axhspan(-BOUND, BOUND, color="gray", alpha=0.3, label="bound")
plt.gca().set(
    title="Training examples: loss of white - loss of other", xlabel="epoch", ylabel="gap"
)
plt.legend()
plt.show()
