"""Experiment 1 (income in Oklahoma, bound .005) through a Keras model, beside the same in torch.

    python benchmarks/keras_experiment.py [--seeds 2] [--data FOLDER]       in the environment of `make test-keras`

The methods of the paper's Table 4, each as long as in `fairbound reproduce`; some six minutes of one core. The Keras
network starts from the weights of the torch one and sees the same rows, so a run follows its twin of the same seed
until rounding drives them apart: where it flips a branch of SSw, the run is another draw of the same kind. The torch
table has ten runs a row. Exits 1 where the mean over the Keras runs is further than one standard deviation of the torch
table both from the twins and from the table.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import torch
from torch import Tensor

from fairbound.benchmark import config
from fairbound.benchmark.executor import RunBatch, execute, run_batches
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.results import Results
from fairbound.benchmark.store import Store
from fairbound.data.sources import best, load
from fairbound.integrations.keras import make_functional

ROWS = ("SGD", "SGD-Fairret", "SSL-ALM", "ALM", "SSw", "Ghost, rho 0.1")  # of the paper's Table 4
PARTS, QUANTITIES = ("train", "test"), ("loss", "gap")
ROUNDING = 5e-4  # half of the last digit that tables show: a spread below it is no measure


class InTorchOrder:
    """A Keras network as a function of the torch network's flat weights: torch keeps a layer's matrix transposed."""

    stacks = False

    def __init__(self, model: Any) -> None:
        self.forward, x = make_functional(model)
        self.n, place, start = self.forward.n, torch.arange(x.numel()), 0
        for variable in model.trainable_variables:
            shape = tuple(variable.shape)
            size = torch.Size(shape).numel()
            if len(shape) == 2:
                place[start : start + size] = start + torch.arange(size).view(shape[1], shape[0]).t().flatten()
            start += size
        self.place = place

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        return self.forward(x[self.place], inputs)


class OnKeras(PreparedExperiment):
    """The same experiment with a Keras network."""

    @cached_property
    def forward(self) -> Any:  # type: ignore[override]
        dense = keras.layers.Dense
        hidden = [dense(width, "relu") for width in self.experiment.hidden]
        return InTorchOrder(keras.Sequential([keras.Input((self.data.X.shape[1],)), *hidden, dense(1)]))


def settings(asked: argparse.Namespace) -> tuple[PreparedExperiment, OnKeras]:
    experiment = config.load("income-ok-race")
    experiment = replace(experiment, rows=tuple(row for row in experiment.rows if row.name in ROWS))
    table = load(best(experiment.state, asked.data), folder=asked.data)
    torch_side = PreparedExperiment.of(experiment, table)
    on_keras = OnKeras(experiment, torch_side.source, torch_side.unscaled, torch_side.splits)
    x = torch.cat([p.detach().flatten() for p in torch_side.network().parameters()])
    few = torch_side.data.X[:100]
    assert torch.allclose(on_keras.forward(x, few), torch_side.forward(x, few), atol=1e-5), "not the same network"
    return torch_side, on_keras


def summaries(prepared: PreparedExperiment, store: Store, planned: list[RunBatch], seeds: int) -> dict[str, Any]:
    """By part, over the first seeds: `Results.summary`."""
    found = Results.read(prepared, store, planned)
    kept = {row: [run for run in runs if run.plan.seed < seeds] for row, runs in found.runs.items()}
    return {part: replace(found, runs=kept).summary(part) for part in PARTS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="Keras runs of each row")
    parser.add_argument("--data", type=Path, default=None, help="the folder with census data")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch_side, on_keras = settings(asked)
    planned, short = run_batches(torch_side), run_batches(on_keras, seeds=asked.seeds)
    print(f"{torch_side.source}; Keras on {keras.backend.backend()}, {asked.seeds} runs a row; torch 10")
    with tempfile.TemporaryDirectory() as folder:
        stores = Store(Path(folder) / "torch"), Store(Path(folder) / "keras")
        seconds = []
        for prepared, store, own in ((torch_side, stores[0], planned), (on_keras, stores[1], short)):
            start = perf_counter()
            execute(prepared, store, own)
            seconds.append(perf_counter() - start)
        table = summaries(torch_side, stores[0], planned, 10)
        twins = summaries(torch_side, stores[0], planned, asked.seeds)
        found = summaries(on_keras, stores[1], short, asked.seeds)
    print(f"{seconds[0]:.0f} s in torch, {seconds[1]:.0f} s in Keras")
    print(f"{'':16} {'part':5} {'':4} {'torch, 10 runs':>17} {'same seeds':>11} {'Keras':>8} {'deviations apart':>17}")
    missed = 0
    for row, part in [(row, part) for row in found[PARTS[0]].index for part in PARTS]:
        for quantity in QUANTITIES:
            mean, std = table[part].loc[row, quantity]
            twin, mine = (one[part].loc[row, (quantity, "mean")] for one in (twins, found))
            apart = min(abs(mine - twin), abs(mine - mean)) / max(std, ROUNDING)
            missed += not apart <= 1
            word = "" if apart <= 1 else "  MISSED"
            numbers = f"{mean:+.4f} ± {std:.4f} {twin:>+12.4f} {mine:>+8.4f} {apart:>17.2f}"
            print(f"{row:16} {part:5} {quantity:4} {numbers}{word}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
