"""Several processes (DDP)
==========================

Two processes (gloo, DistributedDataParallel) keep a bound together, and take the path of one
process. Each sees half of every batch. Sums and counts of the groups are added up over the
processes before the multipliers move, so both hold the same ones: those of one process that sees
whole batches, up to the rounding of its sums. `torchrun --nproc-per-node 2 examples/distributed.py`
starts the processes alone, as a cluster does.
"""

import gc
import os
import subprocess
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from fairbound import BalancedBatchSampler, Constrained, constraints

EPOCHS, BATCH, BOUND = 20, 128, 0.02
loss = nn.BCEWithLogitsLoss(reduction="none")
rng = torch.Generator().manual_seed(0)  # every process makes the same examples
X, group = torch.randn(8000, 5, generator=rng), (torch.rand(8000, generator=rng) < 0.3).long()
# group 1 has a rule of its own
y = (X.sum(1) - 2 * group * X[:, 0] + torch.randn(8000, generator=rng) > 0).float()
seen, test = (
    TensorDataset(X[part], y[part], group[part]) for part in (slice(4000), slice(4000, None))
)


def gap(model, data):
    X, y, group = data.tensors
    with torch.no_grad():
        losses = loss(model(X), y)
    return abs(losses[group == 0].mean() - losses[group == 1].mean()).item()


def train(rank, processes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    if processes > 1:
        distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)  # first this, then Constrained
    batches = BalancedBatchSampler(
        seen.tensors[2], BATCH // processes, rank=rank, world_size=processes
    )
    fair = Constrained(model, constraints.pairwise_loss_parity(["A", "B"], bound=BOUND))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, EPOCHS * len(batches))
    for _ in range(EPOCHS):
        for X, y, group in DataLoader(seen, batch_sampler=batches):
            optimizer.zero_grad()
            fair.backward(loss(model(X), y), group, weight=batches.weights[group])
            optimizer.step()
            schedule.step()
    multipliers = ", ".join(f"{name} {value:.6f}" for name, value in fair.multipliers.items())
    gaps = (
        f"gap on training examples {gap(model, seen):.4f}, on held-out examples"
        f" {gap(model, test):.4f}"
    )
    print(f"process {rank} of {processes}: multipliers {multipliers}; {gaps}\n", end="")


if __name__ == "__main__" and "RANK" in os.environ:
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    # what holds the DDP model also holds gloo's threads: alive at exit, they may abort the process
    gc.collect()
    distributed.destroy_process_group()
elif __name__ == "__main__":
    print(f"bound {BOUND}")
    train(0, 1)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        sys.argv[0],
    ]
    print(subprocess.run(torchrun, stdout=subprocess.PIPE, text=True, check=True).stdout)
