"""A sharded model (FSDP2)
==========================

A problem of the benchmark on a model that is sharded over processes by `fully_shard`. For several
machines::

    torchrun --nproc-per-node 2 examples/sharded_benchmark.py  # with --nnodes, --rdzv-endpoint

Each process holds half of every parameter and of every vector of the method, and sees half of every
batch.
"""

import gc
import os
import subprocess
import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from fairbound import BalancedBatchSampler, Constrained, DescentAscent, constraints
from fairbound.benchmark.problems import load
from fairbound.benchmark.problems.table import fully_connected

STEPS, BATCH = 400, 256
loss = nn.BCEWithLogitsLoss(reduction="none")


def main():
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (processes,), mesh_dim_names=("data",))

    instance = load("income-ok-race").build()  # the examples, groups and split of the board
    data, train = instance.problem.data, instance.splits[0].train
    ((column, names),) = data.levels.items()
    groups = data.groups[column]

    torch.manual_seed(0)  # the same model in every process, before it is sharded
    model = fully_connected(data.X.shape[1], 64, 32).to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])  # first this, then Constrained
    parity = constraints.pairwise_loss_parity(names, bound=0.02)
    fair = Constrained(model, parity, DescentAscent(eta=0.4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    batches = BalancedBatchSampler(
        groups[train], BATCH // processes, rank=rank, world_size=processes
    )
    examples = TensorDataset(data.X[train], data.y[train], groups[train])
    step = 0
    while step < STEPS:
        for X, y, group in DataLoader(examples, batch_sampler=batches):
            optimizer.zero_grad()
            fair.backward(
                loss(model(X.to(device)), y.to(device)),
                group.to(device),
                weight=batches.weights[group],
            )
            optimizer.step()
            step += 1
    with torch.no_grad():
        losses = loss(model(data.X[train].to(device)), data.y[train].to(device)).cpu()
    gap = abs(losses[groups[train] == 0].mean() - losses[groups[train] == 1].mean()).item()
    multipliers = ", ".join(f"{value:.6f}" for value in fair.multipliers.values())
    print(
        f"process {rank} of {processes}: loss {losses.mean():.4f}, gap {gap:.4f}, multipliers"
        f" {multipliers}\n",
        end="",
    )


if __name__ == "__main__" and "RANK" in os.environ:
    main()
    # what holds the model also holds gloo's threads: alive at exit, they may abort the process
    gc.collect()
    distributed.destroy_process_group()
elif __name__ == "__main__":
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
