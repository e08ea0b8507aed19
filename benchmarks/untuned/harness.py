"""Scores methods on the six report loops: solved of 18 runs, at every unit of c and at three
learning rates.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/untuned/harness.py [--jobs 2] [--out DIR]
    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/untuned/harness.py --entries DescentAscent
    AdaptivePI --jobs 16

An entry is a name of `ENTRIES`, or of any method in `fairbound.algorithms`, which then runs at its
default settings. Every run is the loop of docs/guides/loop.md, `Constrained(model, given(...),
method)` and `backward(f, values=c)`, with the optimizer of the loop; nothing else is passed to the
method. The final parameters are judged (see references.py).

`tuned` is descent-ascent with eta chosen per loop over 1e-5 .. 10 by the verdicts themselves, on
the report seeds: most runs solved, then the smallest sum of excesses. It is an oracle, not a
method. Its eta is chosen at c x1 and kept in the other settings; chosen again at c x s it would
have the same verdicts at eta / s^2, as far as the grid reaches.

Results are rows of DIR/results.csv, read again and not computed twice. results.csv beside this file
holds those of the entries `fixed` and of the grid, run once, after the last change of AdaptivePI's
steps. To score a new method against them, run it alone with --out to this folder.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from references import REFERENCES, judge, solved
from report_loops import LOOPS

from fairbound import Constrained, algorithms, constraints
from fairbound.algorithms import (
    PHRALM,
    SPBM,
    SSLALM,
    AdaptivePI,
    DescentAscent,
    ExactPenalty,
    NuPI,
    Penalty,
)
from fairbound.core import Algorithm

SEEDS = (100, 101, 102)
SETTINGS = {  # name: (scale of c, factor of the learning rate)
    "c x1": (1.0, 1.0),
    "c x100": (100.0, 1.0),
    "c x0.01": (0.01, 1.0),
    "lr x3": (1.0, 3.0),
    "lr /3": (1.0, 1 / 3),
}
GRID = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
ENTRIES: dict[str, Algorithm] = {
    "AdaptivePI": AdaptivePI(),
    "DescentAscent": DescentAscent(),
    "PHRALM": PHRALM(),
    "NuPI": NuPI(),
    "SSLALM": SSLALM(samples=1, lag=True),  # the form for one mini-batch a step
    "SPBM": SPBM(),  # refuses equalities
    "ExactPenalty": ExactPenalty(),
    "Penalty": Penalty(),
}
TUNED = {f"eta {eta:g}": DescentAscent(eta=eta) for eta in GRID}


class Job(NamedTuple):
    entry: str
    loop: str
    setting: str
    seed: int


class Result(NamedTuple):
    objective: float
    violation: float  # the largest, in the loop's unit
    seconds: float  # CPU


def method_of(entry: str) -> Algorithm:
    known = {**ENTRIES, **TUNED}
    if entry in known:
        return known[entry]
    if not hasattr(algorithms, entry):
        raise SystemExit(f"no entry or method is called {entry!r}; entries: {', '.join(known)}")
    return getattr(algorithms, entry)()


def compute(job: Job) -> tuple[Job, Result]:
    """One run. A method that refuses the loop, or diverges, has NaN."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    loop = next(loop for loop in LOOPS if loop.name == job.loop)
    run = loop.build(job.seed, *SETTINGS[job.setting])
    rows = len(run.evaluate()[1])
    names = [f"c{i}" for i in range(rows)]
    kinds = [False] * rows if run.equality is None else run.equality.tolist()
    listed = {
        kind: [name for name, equal in zip(names, kinds, strict=True) if equal == kind]
        for kind in (False, True)
    }
    given = [constraints.given(*some, equality=kind) for kind, some in listed.items() if some]
    begin = time.process_time()
    try:
        fair = Constrained(run.model, given, method_of(job.entry))
        for k in range(loop.steps):
            run.optimizer.zero_grad()
            f, c = run.batch(k)
            if not bool(f.isfinite()):
                break
            fair.backward(f.reshape(1), values=dict(zip(names, c, strict=True)))
            run.optimizer.step()
        objective, worst = judge(run, REFERENCES[loop.name].unit)
    except (ValueError, NotImplementedError) as refusal:
        if "equalit" not in str(refusal):
            raise
        objective = worst = float("nan")
    return job, Result(objective, worst, time.process_time() - begin)


class Store:
    """Rows of a CSV file, appended as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[Job, Result] = {}
        if path.exists():
            with path.open() as file:
                for entry, loop, setting, seed, *numbers in list(csv.reader(file))[1:]:
                    self.results[Job(entry, loop, setting, int(seed))] = Result(
                        *map(float, numbers)
                    )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(",".join(Job._fields + Result._fields) + "\n")

    def compute(self, jobs: Iterable[Job], processes: int) -> None:
        missing = [job for job in jobs if job not in self.results]
        with (
            ProcessPoolExecutor(processes, get_context("spawn")) as pool,
            self.path.open("a") as file,
        ):
            for future in as_completed([pool.submit(compute, job) for job in missing]):
                job, result = future.result()
                self.results[job] = result
                file.write(",".join(map(str, job)) + ",{:.5g},{:.4g},{:.2f}\n".format(*result))
                file.flush()

    def solved(self, entry: str, loop: str, setting: str, seeds: Iterable[int]) -> int:
        runs = [self.results[Job(entry, loop, setting, seed)] for seed in seeds]
        return sum(solved(loop, run.objective, run.violation) for run in runs)

    def excess(self, entry: str, loop: str, seeds: Iterable[int]) -> float:
        """How far from solved, for ties: violation and objective's gap beyond 0, in their units, at
        most 10 each."""
        reference = REFERENCES[loop]
        total = 0.0
        for seed in seeds:
            run = self.results[Job(entry, loop, "c x1", seed)]
            for size in (run.violation, (run.objective - reference.best) / reference.price):
                total += min(max(size, 0.0), 10.0) if size == size else 10.0
        return total


def chosen_eta(store: Store, loop: str, seeds: tuple[int, ...]) -> str:
    return max(
        TUNED,
        key=lambda entry: (
            store.solved(entry, loop, "c x1", seeds),
            -store.excess(entry, loop, seeds),
        ),
    )


def table(
    store: Store, entries: dict[str, dict[str, str]], seeds: tuple[int, ...], settings: list[str]
) -> str:
    """Solved runs of each entry in each setting, then objective and violation of each loop at c
    x1."""
    total = len(LOOPS) * len(seeds)
    lines = [
        f"solved of {total:<24}"
        + "".join(f"{setting:>9}" for setting in settings)
        + "  CPU s a run"
    ]
    for label, entry_of in entries.items():
        counts = [
            sum(store.solved(entry_of[loop.name], loop.name, setting, seeds) for loop in LOOPS)
            for setting in settings
        ]
        times = [
            store.results[Job(entry_of[loop.name], loop.name, "c x1", seed)].seconds
            for loop in LOOPS
            for seed in seeds
        ]
        lines.append(
            f"{label:34}"
            + "".join(f"{count:9}" for count in counts)
            + f"{sum(times) / len(times):13.1f}"
        )
    for loop in LOOPS:
        reference = REFERENCES[loop.name]
        lines.append(
            f"\n{loop.name}: solved in each setting | objective / violation at c x1, each seed"
        )
        lines.append(f"    {'near the best and feasible':41} | below {reference.near:.4g} / 0.1")
        for label, entry_of in entries.items():
            entry = entry_of[loop.name]
            counts = "/".join(
                str(store.solved(entry, loop.name, setting, seeds)) for setting in settings
            )
            runs = [store.results[Job(entry, loop.name, "c x1", seed)] for seed in seeds]
            shown = "   ".join(f"{run.objective:.4g} / {run.violation:.2f}" for run in runs)
            lines.append(
                f"    {label + (f' ({entry})' if label == 'tuned' else ''):30} {counts:10} |"
                f" {shown}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--entries",
        nargs="+",
        default=["fixed", "tuned"],
        help="names of methods; fixed: all ENTRIES; tuned",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [
        name for entry in options.entries for name in (ENTRIES if entry == "fixed" else [entry])
    ]
    seeds, settings = (
        tuple(options.seeds),
        ["c x1"] + [name for name in options.settings if name != "c x1"],
    )
    store = Store(options.out / "results.csv")
    plain = [name for name in names if name != "tuned"]
    for setting in settings:  # the settings in turn, so that a run cut short has whole columns
        jobs = [
            Job(name, loop.name, setting, seed)
            for name in plain
            for loop in LOOPS
            for seed in seeds
        ]
        if setting == "c x1" and "tuned" in names:
            jobs += [
                Job(name, loop.name, setting, seed)
                for name in TUNED
                for loop in LOOPS
                for seed in seeds
            ]
        if setting != "c x1" and "tuned" in names:
            jobs += [
                Job(chosen_eta(store, loop.name, seeds), loop.name, setting, seed)
                for loop in LOOPS
                for seed in seeds
            ]
        store.compute(jobs, options.jobs)
    entries = {name: {loop.name: name for loop in LOOPS} for name in plain}
    if "tuned" in names:
        entries["tuned"] = {loop.name: chosen_eta(store, loop.name, seeds) for loop in LOOPS}
    report = table(store, entries, seeds, settings)
    print(report)
    (options.out / "table.txt").write_text(report + "\n")


if __name__ == "__main__":
    main()
