"""A table with 200 subgroups
============================

The mean loss of each of 200 groups must be at most 0.5, the smallest of 20 people; mini-batches are
shuffled.

The groups are crossings of 20 regions and 10 ages. Those below 60 people follow labeling rules of
their own. The intervals (two standard errors) say what so few people can tell of a group's mean
loss.
"""

import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader, TensorDataset

from fairbound import SGD, Constrained, constraints

GROUPS, BOUND, EPOCHS, rng = 200, 0.5, 40, torch.Generator().manual_seed(0)
sizes = (20 * 30 ** torch.rand(GROUPS, generator=rng)).long()  # 20 to 600 people
rules = torch.randn(8, generator=rng) + (sizes[:, None] < 60) * torch.randn(
    GROUPS, 8, generator=rng
)
loss = nn.BCEWithLogitsLoss(reduction="none")


def people(counts):
    group = torch.arange(GROUPS).repeat_interleave(counts)
    X = torch.randn(len(group), 8, generator=rng)
    y = (
        torch.rand(len(group), generator=rng) < torch.sigmoid(3 * (X * rules[group]).sum(1))
    ).float()
    return TensorDataset(
        torch.cat([X, one_hot(group // 10, 20), one_hot(group % 10, 10)], 1).float(), y, group
    )


def group_losses(model, data):  # the mean of every group, and its standard error
    X, y, group = data.tensors
    parts = loss(model(X), y).detach().split(torch.bincount(group).tolist())
    return torch.stack([p.mean() for p in parts]), torch.stack(
        [p.std() / len(p) ** 0.5 for p in parts]
    )


train, test = people(sizes), people(torch.full((GROUPS,), 100))
print(f"bound {BOUND}")
# None: the default method
for name, method in (("without the bound", SGD()), ("with the bound", None)):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(38, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, EPOCHS)
    fair = Constrained(model, constraints.bounded_group_loss(GROUPS, bound=BOUND), method)
    for _ in range(EPOCHS):
        for X, y, group in DataLoader(train, batch_size=1024, shuffle=True):
            optimizer.zero_grad()
            fair.backward(loss(model(X), y), group)  # was loss(model(X), y).mean().backward()
            optimizer.step()
        schedule.step()
    (mean, error), (new, _) = group_losses(model, train), group_losses(model, test)
    print(f"{name}: {(mean > BOUND).sum()} groups above it, on new people {(new > BOUND).sum()}")
    for g in mean.topk(3).indices.tolist():
        print(f"  group {g}, {sizes[g]} people: loss {mean[g]:.3f} +- {2 * error[g]:.3f}")
    plt.errorbar(
        range(GROUPS), *(v[mean.argsort()] for v in (mean, 2 * error)), fmt=".", label=name
    )
plt.axhline(BOUND, color="gray", linestyle="--", label="bound")
plt.gca().set(xlabel="groups, sorted by their loss", ylabel="mean loss, two standard errors")
plt.legend(loc="upper left")
plt.show()
