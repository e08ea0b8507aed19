"""A floor on recall
====================

A convolutional net with BatchNorm that must find 85 % of the bright squares in the noisy images,
too. Made-up images: is there a bright square in it? Group B has the worse camera, and plain
training finds fewer of its squares, so B's recall gets a floor. A recall counts decisions and has
no gradient: the mean probability over B's squares is trained in its place (soft); the exact recall
is printed beside it. The price is false alarms.
"""

import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fairbound import SGD, AdaptivePI, BalancedBatchSampler, Constrained, constraints

EPOCHS, FLOOR = 30, 0.85
floor = constraints.minimum_rate(FLOOR, groups=["A", "B"], group="B", label=1)
loss = nn.BCEWithLogitsLoss(reduction="none")


def images(rows, seed):
    rng = torch.Generator().manual_seed(seed)
    group, y = (torch.rand(2, rows, generator=rng) < torch.tensor([[0.3], [0.4]])).long()
    # B has more noise
    X = torch.randn(rows, 1, 12, 12, generator=rng) * (0.7 + 0.8 * group)[:, None, None, None]
    for image, label, (i, j) in zip(
        X, y, torch.randint(9, (rows, 2), generator=rng).tolist(), strict=True
    ):
        image[0, i : i + 4, j : j + 4] += label
    return TensorDataset(X, y.float(), group)


def judged(model, data):
    X, y, group = data.tensors
    with torch.no_grad():
        outputs = model.eval()(X)  # BatchNorm with the statistics of training
    square, none = outputs[(group == 1) & (y == 1)], outputs[(group == 1) & (y == 0)]
    recall, alarms = (square > 0).float().mean(), (none > 0).float().mean()
    words = (
        f"recall of B: exact {recall:.3f}, soft {square.sigmoid().mean():.3f}; false alarms in B"
        f" {alarms:.3f}"
    )
    return words, recall, alarms


train, test = images(3000, seed=0), images(3000, seed=1)
batches = BalancedBatchSampler(train.tensors[2], batch_size=64)  # both cameras count alike
steps = EPOCHS * len(batches)
print(f"floor {FLOOR}")
figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
for method in (SGD(), AdaptivePI()):  # plain training, and the default
    torch.manual_seed(0)
    features = (
        nn.Conv2d(1, 8, 5),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )
    model = nn.Sequential(*features, nn.Linear(8, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    fair = Constrained(model, floor, method)
    for _ in range(EPOCHS):
        for X, y, group in DataLoader(train, batch_sampler=batches):
            outputs = model(X)
            optimizer.zero_grad()
            fair.backward(loss(outputs, y), group, labels=y, outputs=outputs)
            optimizer.step()
            schedule.step()
    print(f"{type(method).__name__}, multipliers {fair.multipliers}")
    (here, *_), (new, *rates) = judged(model, train), judged(model, test)
    print(f"  training images: {here}\n  held-out images: {new}")
    axis.plot(["recall of B", "false alarms in B"], rates, "o--", label=type(method).__name__)

axis.axhline(FLOOR, color="gray", label="floor")
axis.set(title="Held-out images: the floor and its price", ylim=(0, 1), xlim=(-0.5, 1.5))
axis.legend()
plt.show()
