"""A convolutional net with BatchNorm that must find 85 % of the bright squares in the noisy images, too.

Synthetic images: is there a bright square in it? Group B has a worse camera, and unconstrained training finds fewer of
its squares, so B's recall gets a lower bound. A recall counts decisions and has no gradient: the mean probability over
B's squares is its surrogate (soft); the recall itself is printed too (true). The cost is more false positives.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fairbound import SGD, BalancedBatchSampler, Constrained, DescentAscent, constraints
from fairbound.algorithms.schedules import Linear

EPOCHS, BOUND = 14, 0.85
constraint = constraints.minimum_rate(BOUND, groups=["A", "B"], group="B", label=1)
loss = nn.BCEWithLogitsLoss(reduction="none")


def images(examples, seed):
    rng = torch.Generator().manual_seed(seed)
    group, y = (torch.rand(2, examples, generator=rng) < torch.tensor([[0.3], [0.4]])).long()
    X = torch.randn(examples, 1, 12, 12, generator=rng) * (0.7 + 0.8 * group)[:, None, None, None]  # B has more noise
    for image, label, (i, j) in zip(X, y, torch.randint(9, (examples, 2), generator=rng).tolist(), strict=True):
        image[0, i : i + 4, j : j + 4] += label
    return TensorDataset(X, y.float(), group)


def evaluated(model, data):
    X, y, group = data.tensors
    with torch.no_grad():
        outputs = model.eval()(X)  # BatchNorm with the statistics of training
    square, none = outputs[(group == 1) & (y == 1)], outputs[(group == 1) & (y == 0)]
    recall, false_positives = (square > 0).float().mean(), (none > 0).float().mean()
    soft = square.sigmoid().mean()
    return f"recall of B: true {recall:.3f}, soft {soft:.3f}; false positive rate of B {false_positives:.3f}"


train, test = images(3000, seed=0), images(3000, seed=1)
batches = BalancedBatchSampler(train.tensors[2], batch_size=128)  # as many images of each camera
steps = EPOCHS * len(batches)
print(f"bound {BOUND}")
for method in (SGD(), DescentAscent(eta=Linear(0.4, steps))):  # SGD as the method: unconstrained training
    torch.manual_seed(0)
    features = nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    model = nn.Sequential(*features, nn.Linear(8, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    fair = Constrained(model, constraint, method)
    for _ in range(EPOCHS):
        for X, y, group in DataLoader(train, batch_sampler=batches):
            outputs = model(X)
            optimizer.zero_grad()
            fair.backward(loss(outputs, y), group, labels=y, outputs=outputs)
            optimizer.step()
            schedule.step()
    print(f"{type(method).__name__}, multipliers {fair.multipliers}")
    print(f"  training images: {evaluated(model, train)}\n  held-out images: {evaluated(model, test)}")
