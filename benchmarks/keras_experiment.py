"""Experiment 1 (income in Oklahoma, bound .005) through a Keras model, beside the same in torch.

    python benchmarks/keras_experiment.py [--seeds 2] [--data FOLDER]       in the environment of
    `make test-keras`

The methods of the paper's Table 4, each as long as in `fairbound reproduce`; some six minutes of
one core. The Keras network starts from the weights of the torch one and sees the same rows, so a
run follows its twin of the same seed until rounding drives them apart: where it flips a branch of
SSw, the run is another draw of the same kind. The torch table has ten runs a row. Exits 1 where the
mean over the Keras runs is further than one standard deviation of the torch table both from the
twins and from the table.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import torch
from torch import Tensor

from fairbound.benchmark import _task as tasks
from fairbound.benchmark._engine import Engine
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._results import Results
from fairbound.benchmark._store import Store
from fairbound.benchmark._study import load_study
from fairbound.benchmark.problems._catalog import Instance
from fairbound.integrations.keras import make_functional

# of the paper's Table 4
ENTRIES = ("SGD", "SGD-Fairret", "SSL-ALM", "ALM", "SSw", "Ghost, rho 0.1")
PARTS, QUANTITIES = ("train", "test"), ("loss", "gap")
ROUNDING = 5e-4  # half of the last digit that tables show: a spread below it is no measure


class InTorchOrder:
    """A Keras network as a function of the torch network's flat weights: torch keeps a layer's
    matrix transposed."""

    stacks = False

    def __init__(self, model: Any) -> None:
        self.forward, x = make_functional(model)
        self.n, place, start = self.forward.n, torch.arange(x.numel()), 0
        for variable in model.trainable_variables:
            shape = tuple(variable.shape)
            size = torch.Size(shape).numel()
            if len(shape) == 2:
                place[start : start + size] = (
                    start + torch.arange(size).view(shape[1], shape[0]).t().flatten()
                )
            start += size
        self.place = place

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        return self.forward(x[self.place], inputs)


def on_keras(instance: Instance, hidden: tuple[int, ...]) -> Instance:
    """The same table with a Keras network."""
    dense, inputs, plain = keras.layers.Dense, instance.problem.data.X.shape[1], instance.variant
    assert plain is not None
    layers = [dense(width, "relu") for width in hidden]
    forward = InTorchOrder(keras.Sequential([keras.Input((inputs,)), *layers, dense(1)]))
    x, few = instance.starts([0])[0], instance.problem.data.X[:100]
    assert torch.allclose(forward(x, few), instance.problem.forward(x, few), atol=1e-5), (
        "not the same network"
    )
    return replace(
        instance,
        problem=replace(instance.problem, forward=forward),
        variant=cache(lambda *which: replace(plain(*which), forward=forward)),
    )


def summaries(plan: Plan, store: Store, seeds: int) -> dict[str, Any]:
    """By part, over the first seeds: `Results.summary`."""
    found = Results.read(plan.stored(store), store)
    some = {
        entry: [one for one in runs if one.run.seed < seeds] for entry, runs in found.runs.items()
    }
    return {part: replace(found, runs=some).summary(part) for part in PARTS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="Keras runs of each row")
    parser.add_argument("--data", type=Path, default=None, help="the folder with census data")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    whole = load_study("paper-ok-race").with_entries((), only=ENTRIES).on(folder=asked.data)
    plan, short = Plan(whole), Plan(replace(whole, seeds=asked.seeds))
    assert whole.problem is not None
    print(
        f"{plan._built.source}; Keras on {keras.backend.backend()}, {asked.seeds} runs an entry;"
        " torch 10"
    )
    with tempfile.TemporaryDirectory() as folder:
        stores = Store(Path(folder) / "torch"), Store(Path(folder) / "keras")
        seconds, start = [], perf_counter()
        plan.compute(stores[0], Engine())
        seconds.append(perf_counter() - start)
        table, twins = summaries(plan, stores[0], 10), summaries(plan, stores[0], asked.seeds)
        instance, start = on_keras(plan._built, whole.problem.hidden), perf_counter()
        tasks.built_instance = lambda *which: instance  # type: ignore[assignment]
        short.compute(stores[1], Engine())
        seconds.append(perf_counter() - start)
        found = summaries(short, stores[1], asked.seeds)
    print(f"{seconds[0]:.0f} s in torch, {seconds[1]:.0f} s in Keras")
    print(
        f"{'':16} {'part':5} {'':4} {'torch, 10 runs':>17} {'same seeds':>11} {'Keras':>8}"
        f" {'deviations apart':>17}"
    )
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
