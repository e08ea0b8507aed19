"""Lightning
============

`training_step` returns `fair.loss(losses, groups)`; a callback saves and logs the multipliers.
Data and bound as in pytorch_loop.py: the mean losses of white people and of all others must differ
by at most 0.02.
"""

import logging

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fairbound import SGD, AdaptivePI, BalancedBatchSampler, Constrained, constraints
from fairbound.data import load, random_split, scaled
from fairbound.integrations.lightning import ConstrainedCallback

EPOCHS, BOUND = 30, 0.02
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

data = load("synthetic:OK").dataset("RAC1P=1")  # two groups, and RAC1P is no input of the model
split = random_split(data.groups["RAC1P"], {"train": 0.7, "test": 0.3}, seed=0)
data = scaled(data, split)
train, test = (
    TensorDataset(data.X[p], data.y[p], data.groups["RAC1P"][p]) for p in (split.train, split.test)
)
loss = nn.BCEWithLogitsLoss(reduction="none")  # per-example losses
parity = constraints.pairwise_loss_parity(["white", "other"], bound=BOUND)
batches = BalancedBatchSampler(train.tensors[2], batch_size=128)  # 64 examples of each group
steps = EPOCHS * len(batches)


class Income(L.LightningModule):
    def __init__(self, method):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(data.X.shape[1], 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0)
        )
        self.fair = Constrained(self, parity, method)

    def training_step(self, batch, batch_idx):
        X, y, group = batch  # the weights make each group count as in the population
        return self.fair.loss(loss(self.net(X), y), group, weight=batches.weights[group])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def configure_callbacks(self):
        return [ConstrainedCallback(self.fair)]


print(f"bound {BOUND}")
for method in (SGD(), AdaptivePI()):
    torch.manual_seed(0)
    module, quiet = (
        Income(method),
        {"logger": False, "enable_progress_bar": False, "enable_model_summary": False},
    )
    trainer = L.Trainer(max_epochs=EPOCHS, accelerator="cpu", enable_checkpointing=False, **quiet)
    trainer.fit(module, DataLoader(train, batch_sampler=batches))
    with torch.no_grad():
        means = [
            [loss(module.net(X[g == k]), y[g == k]).mean() for k in (0, 1)]
            for X, y, g in (train[:], test[:])
        ]
    here, new = (float(white - other) for white, other in means)
    print(
        f"{type(method).__name__}: gap on training examples {here:+.4f}, on held-out examples"
        f" {new:+.4f}"
    )
