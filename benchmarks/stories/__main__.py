"""The three stories at equal budget: the default method untouched, descent-ascent, and what users do today.

    OMP_NUM_THREADS=1 python benchmarks/stories [--jobs 2] [--problems Forgetting ...] [--out FOLDER]

Every run has the same steps, mini-batches, optimizer and learning rate. A practice is run at its default and at eight
values; "tuned" is the value with the most runs of the report's seeds that meet the bound, then with the best objective:
an oracle that has looked at the answer, with eight times the budget. Results are rows of FOLDER/results.csv, read again
and not computed twice; the tables go into the page of the stories, between its marks.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import language
import physics
import subgroups
import torch
from story import Practice, Problem

from fairbound import AdaptivePI, Constrained, DescentAscent

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "guides" / "stories.md"
PROBLEMS = {problem.name: problem for module in (language, physics, subgroups) for problem in module.PROBLEMS}
SEEDS = (0, 1, 2)
METHODS = {"ours, untouched": AdaptivePI, "DescentAscent, its defaults": DescentAscent}


class Job(NamedTuple):
    problem: str
    entry: str  # of METHODS, or the name of a practice
    value: float  # of the practice; 0 for a method
    seed: int


class Result(NamedTuple):
    objective: float
    violation: float  # the largest; negative where all bounds are met with room to spare
    seconds: float  # CPU
    other: tuple[float, ...]  # what else the problem reports


def compute(job: Job) -> tuple[Job, Result]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    problem = PROBLEMS[job.problem]
    run = problem.build(job.seed)
    fair = loss = None
    if job.entry in METHODS:
        fair = Constrained(run.model, run.constraint, METHODS[job.entry]())
    else:
        loss = next(p for p in problem.practices if p.name == job.entry).loss(run, job.value)
    begin = time.process_time()
    for _ in range(problem.steps):
        run.optimizer.zero_grad()
        draw = run.draw()
        if fair is not None:
            fair.backward(**draw.fair)
        else:
            loss(draw).backward()
        run.optimizer.step()
    seconds = time.process_time() - begin
    objective, c = run.evaluate()
    return job, Result(objective, float(c.max()), seconds, tuple(run.other()))


class Store:
    """Rows of a CSV file, appended as they come."""

    def __init__(self, path: Path) -> None:
        self.path, self.results = path, {}
        if path.exists():
            with path.open() as file:
                for problem, entry, value, seed, *numbers in list(csv.reader(file))[1:]:
                    f, c, seconds, *other = map(float, numbers)
                    self.results[Job(problem, entry, float(value), int(seed))] = Result(f, c, seconds, tuple(other))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(",".join(Job._fields + Result._fields) + "\n")

    def compute(self, jobs: list[Job], processes: int) -> None:
        missing = [job for job in jobs if job not in self.results]
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool, self.path.open("a") as file:
            for future in as_completed([pool.submit(compute, job) for job in missing]):
                job, result = future.result()
                self.results[job] = result
                numbers = (*result[:-1], *result.other)
                csv.writer(file, lineterminator="\n").writerow([*job, *(f"{number:.5g}" for number in numbers)])
                file.flush()

    def of(self, problem: Problem, entry: str, value: float) -> list[Result]:
        return [self.results[Job(problem.name, entry, value, seed)] for seed in SEEDS]


def entries(problem: Problem) -> list[tuple[str, float]]:
    practised = [(p.name, v) for p in problem.practices for v in sorted({p.default, *p.values})]
    return [(name, 0.0) for name in METHODS] + practised


def tuned(store: Store, problem: Problem, practice: Practice) -> float:
    """The value that met the bound most often, then with the smallest objective, or violation where none met it."""

    def score(value: float) -> tuple[int, float]:
        runs = store.of(problem, practice.name, value)
        met = sum(run.violation <= problem.tolerance for run in runs)
        return -met, sum(run.objective if met else run.violation for run in runs)

    return min(practice.values, key=score)


def table(store: Store, problem: Problem) -> str:
    rows = [(name, name, 0.0) for name in METHODS]
    for p in problem.practices:
        best = tuned(store, problem, p)
        rows += [(f"{p.name}, default {p.setting} {p.default:g}", p.name, p.default)]
        rows += [(f"{p.name}, tuned {p.setting} {best:g}", p.name, best)]
    runs = [(label, store.of(problem, entry, value)) for label, entry, value in rows]
    heads = ["", problem.objective, "largest violation", "bound met", *problem.other.split(", ")]
    heads = [head for i, head in enumerate(heads) if head or i == 0]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for label, results in runs:
        met = sum(result.violation <= problem.tolerance for result in results)
        objectives, violations = ([getattr(r, name) for r in results] for name in ("objective", "violation"))
        other = [shown(column) for column in zip(*(result.other for result in results), strict=True)]
        cells = [label, shown(objectives), shown(violations), f"{met} of {len(SEEDS)}", *other]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", nargs="+", help="these entries, and no tables")
    options = parser.parse_args()
    store = Store(options.out / "results.csv")
    jobs = [
        Job(name, entry, value, seed)
        for seed in SEEDS
        for name in options.problems
        for entry, value in entries(PROBLEMS[name])
        if not options.only or entry in options.only
    ]
    store.compute(jobs, options.jobs)
    if options.only:
        return
    text = PAGE.read_text() if PAGE.exists() else ""
    for name in options.problems:
        made = table(store, PROBLEMS[name])
        print(f"\n{name}\n{made}")
        mark = re.escape(f"<!-- table: {name} -->")
        text = re.sub(f"(?s)({mark}\n).*?(\n<!-- end -->)", lambda found, made=made: found[1] + made + found[2], text)
    if PAGE.exists():
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
