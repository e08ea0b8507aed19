"""Thousands of subgroups of the census, each with its loss bounded: `Constrained` beside ERM and
group DRO.

    python benchmarks/census_subgroups.py [--steps 2000] [--device cuda] [--seeds 3]
    python benchmarks/census_subgroups.py --prepare FILE.npz        # the columns in one file of 6
    MB, and nothing else python benchmarks/census_subgroups.py --prepared FILE.npz       # on a
    machine without the data and their readers

ACSIncome 2018 of 42 states, 960,360 examples, split into 60 % for training, 20 % for validation and
20 % held out. The groups are all populated intersections of race, sex, age band and state. The
network has one embedding for each level of every feature (the first layer over one-hot features)
and two more layers, 332,033 parameters; AdamW with a cosine schedule, batches of 4,096, shuffled.
Contestants have the same model, steps and batches:
- ERM: the mean loss;
- `Constrained`: the mean loss, every group's loss <= bound, descent-ascent;
- group DRO (Sagawa et al. 2020): exponentiated gradient on a weight for every group.

The number of steps is that with the smallest validation loss of ERM; bound and dual step of
`Constrained` and the step of group DRO are those with the smallest validation loss of the worst
group, on seed 0. Held-out data are evaluated after that, on other seeds. "Worst" is among groups
with at least 300 examples there. Without a GPU few steps are made, which shows that it runs and no
more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from fairbound import Constrained, DescentAscent, constraints
from fairbound.columns import Coded, Intersection
from fairbound.columns._specs import parse_attributes
from fairbound.metrics import Losses, group_loss_intervals

FEATURES = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P", "ST")
LABEL, GROUPS = "PINCP_GT_50K", "RAC1P,SEX,AGEP:25:35:45:55:65,ST"
BATCH, WIDTH, LR, DECAY, FEWEST = 4096, 256, 1e-3, 0.01, 300
BOUNDS, DUAL_STEPS, DRO_STEPS = (
    (0.40, 0.44, 0.48, 0.52),
    (1e-5, 3e-5, 1e-4, 3e-4),
    (0.001, 0.01, 0.1),
)
STEPS, STEPS_WITHOUT_GPU = (1000, 2000, 4000), 20

Backward = Callable[[Tensor, Tensor], None]  # losses, groups
Made = Callable[[nn.Module, int], Backward]  # model, number of groups
Columns = dict[str, np.ndarray]


# Data ---------------------------------------------------------------------------------------------


def columns_of(prepared: str | None) -> Columns:
    if prepared is not None:
        return dict(np.load(prepared))
    from fairbound.data._sources import load

    found = load("acs:42states").columns
    return {name: found[name].astype(np.uint16) for name in (*FEATURES, LABEL)}


class Census(NamedTuple):
    X: Tensor  # (N, features) which level, numbered over all features
    y: Tensor
    groups: Tensor
    parts: tuple[Tensor, Tensor, Tensor]  # examples for training, for validation, held out
    names: tuple[str, ...]  # of the groups
    levels: int

    @staticmethod
    def of(columns: Columns, device: torch.device) -> Census:
        levels, first = [], 0
        for name in FEATURES:
            own = Coded.of(name, columns[name])
            levels.append(torch.from_numpy(own.levels(columns[name]) + first))
            first += own.size
        grouping = Intersection(tuple(parse_attributes(GROUPS, columns, census=True))).group(
            columns
        )
        order = torch.randperm(len(grouping.ids), generator=torch.Generator().manual_seed(0)).to(
            device
        )
        parts = order.split([len(order) - 2 * (len(order) // 5), len(order) // 5, len(order) // 5])
        y = torch.from_numpy(columns[LABEL].astype(np.float32))
        tensors = (torch.stack(levels, 1).to(device), y.to(device), grouping.ids.to(device))
        return Census(*tensors, tuple(parts), grouping.names, first)


# Contestants --------------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self, levels: int) -> None:
        super().__init__()
        self.first = nn.EmbeddingBag(levels, WIDTH, mode="sum")
        nn.init.normal_(self.first.weight, std=len(FEATURES) ** -0.5)
        self.rest = nn.Sequential(
            nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1), nn.Flatten(0)
        )

    def forward(self, X: Tensor) -> Tensor:
        return self.rest(self.first(X))  # type: ignore[no-any-return]


def erm(model: nn.Module, groups: int) -> Backward:
    return lambda losses, _: losses.mean().backward()


def constrained(bound: float, eta: float) -> Made:
    def made(model: nn.Module, groups: int) -> Backward:
        fair = Constrained(
            model, constraints.bounded_group_loss(groups, bound=bound), DescentAscent(eta=eta)
        )
        return lambda losses, own: fair.backward(losses, own) and None

    return made


def group_dro(step: float) -> Made:
    """Weights q of the groups: q_k *= exp(step * loss of k), normalized; the gradient of sum_k q_k
    * loss of k."""

    def made(model: nn.Module, groups: int) -> Backward:
        device = next(model.parameters()).device
        q = torch.full((groups,), 1 / groups, device=device)

        def backward(losses: Tensor, own: Tensor) -> None:
            nonlocal q
            counts = torch.bincount(own, minlength=groups)
            # 0: absent
            means = torch.zeros(groups, device=device).index_add(0, own, losses) / counts.clamp(
                min=1
            )
            q = q * torch.exp(step * means.detach())
            q = q / q.sum()
            (q * means).sum().backward()

        return backward

    return made


def trained(data: Census, made: Made, steps: int, seed: int) -> tuple[nn.Module, float]:
    """The model, and seconds."""
    device = data.X.device
    torch.manual_seed(seed)
    model = Network(data.levels).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    backward, train = made(model, len(data.names)), data.parts[0]
    _wait(device)
    began, step = time.perf_counter(), 0
    while step < steps:
        for chosen in train[torch.randperm(len(train), device=device)].split(BATCH)[: steps - step]:
            optimizer.zero_grad()
            backward(
                bce(model(data.X[chosen]), data.y[chosen], reduction="none"), data.groups[chosen]
            )
            optimizer.step()
            schedule.step()
            step += 1
    _wait(device)
    return model, time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# Evaluation ---------------------------------------------------------------------------------------


class Evaluation(NamedTuple):
    loss: float
    accuracy: float
    losses: Losses  # of the groups with at least FEWEST examples

    @staticmethod
    def of(model: nn.Module, data: Census, examples: Tensor) -> Evaluation:
        with torch.no_grad():
            outputs = torch.cat([model(data.X[some]) for some in examples.split(50_000)])
        y, losses = data.y[examples], bce(outputs, data.y[examples], reduction="none")
        groups = data.groups[examples].cpu()
        large = (torch.bincount(groups, minlength=len(data.names)) >= FEWEST).nonzero().flatten()
        place = torch.full((len(data.names),), -1)
        place[large] = torch.arange(len(large))
        own = Losses.of(losses.cpu(), place[groups], names=[data.names[k] for k in large.tolist()])
        return Evaluation(
            float(losses.mean()), float(((outputs > 0) == (y > 0)).float().mean()), own
        )

    @property
    def worst(self) -> float:
        return float(self.losses.mean.max())

    def band(self) -> tuple[float, float]:
        """95 % for the largest loss of all these groups, whichever it is: intervals that hold for
        all at once."""
        z = NormalDist().inv_cdf(1 - 0.025 / len(self.losses.names))
        error = z * self.losses.errors()[0]
        return float((self.losses.mean - error).max()), float((self.losses.mean + error).max())

    def describe(self, bound: float) -> str:
        found, at = group_loss_intervals(self.losses), int(self.losses.mean.argmax())
        over = sum(one.value > bound for one in found if one.value is not None)
        clearly = sum(one.low > bound for one in found if one.low is not None)
        low, high = self.band()
        return (
            f"loss {self.loss:.4f}, accuracy {self.accuracy:.2%}, worst group {self.worst:.4f}"
            f" [{found[at].low:.4f}, {found[at].high:.4f}] ({self.losses.names[at]}; all groups at"
            f" once [{low:.4f}, {high:.4f}]), over {bound:g}: {over} of {len(found)} groups,"
            f" {clearly} with their interval"
        )


Settings = dict[str, tuple[Made, int]]  # name -> contestant, steps


def chosen(data: Census, what: str, settings: Settings, by: Callable[[Evaluation], float]) -> str:
    """The settings that are best on validation data, on seed 0."""
    found = {}
    for name, (made, steps) in settings.items():
        model, seconds = trained(data, made, steps, 0)
        evaluation = Evaluation.of(model, data, data.parts[1])
        found[name] = by(evaluation)
        shown = f"loss {evaluation.loss:.4f}, worst {evaluation.worst:.4f} ({seconds:.1f} s)"
        print(f"  validation, {what}, {name}: {shown}", flush=True)
    return min(found, key=found.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--steps", type=int, help="otherwise chosen on validation data; without a GPU 20"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prepare", metavar="FILE.npz")
    parser.add_argument("--prepared", metavar="FILE.npz")
    options = parser.parse_args()
    if options.prepare:
        np.savez_compressed(options.prepare, **columns_of(None))  # type: ignore[arg-type]
        print(f"{options.prepare}: {Path(options.prepare).stat().st_size / 1e6:.1f} MB")
        return
    device = torch.device(options.device)
    data = Census.of(columns_of(options.prepared), device)
    size = sum(p.numel() for p in Network(data.levels).parameters())
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(
        f"{len(data.y):,} examples, {len(data.names):,} groups, {size:,} parameters, {where}",
        flush=True,
    )
    trained(data, erm, 20, 0)  # warm up

    steps = options.steps or (None if device.type == "cuda" else STEPS_WITHOUT_GPU)
    if steps is None:
        steps = int(
            chosen(data, "ERM, steps", {str(n): (erm, n) for n in STEPS}, lambda found: found.loss)
        )
    grid = {(bound, eta): constrained(bound, eta) for bound in BOUNDS for eta in DUAL_STEPS}
    tried = {f"bound {bound:g}, eta {eta:g}": (made, steps) for (bound, eta), made in grid.items()}
    ours = chosen(data, "Constrained", tried, lambda found: found.worst)
    bound = dict(zip(tried, grid, strict=True))[ours][0]
    weighted = {f"step {step:g}": (group_dro(step), steps) for step in DRO_STEPS}
    dro = chosen(data, "group DRO", weighted, lambda found: found.worst)

    contestants = {
        "ERM": erm,
        f"Constrained, {ours}": tried[ours][0],
        f"group DRO, {dro}": weighted[dro][0],
    }
    print(f"{steps} steps of {BATCH}; held-out data:")
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in contestants}
    for seed in range(1, 1 + options.seeds):
        for name, made in contestants.items():
            model, seconds = trained(data, made, steps, seed)
            evaluation = Evaluation.of(model, data, data.parts[2])
            found[name].append((evaluation.loss, evaluation.worst, seconds))
            print(
                f"seed {seed}, {name}: {evaluation.describe(bound)}; {seconds / 60:.2f} minutes",
                flush=True,
            )
    plain = np.mean(found["ERM"], 0)[2]
    for name, rows in found.items():
        loss, worst, seconds = np.mean(rows, 0)
        took = f"{seconds / steps * 1e3:.2f} ms a step, {seconds / plain:.2f} of ERM"
        print(
            f"mean of {options.seeds} seeds, {name}: loss {loss:.4f}, worst group {worst:.4f},"
            f" {took}"
        )


if __name__ == "__main__":
    main()
