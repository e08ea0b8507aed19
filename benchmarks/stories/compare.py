"""The three stories at equal budget: the default method untouched, descent-ascent, and what users
do today.

    OMP_NUM_THREADS=1 python benchmarks/stories/compare.py [--jobs 2] [--problems Forgetting ...]
    [--ours] [--out NEW]

Every run of a problem has the same steps, mini-batches, optimizer and learning rate. A practice
runs at its default and at the best of eight values, which a run of another seed chose: one that
meets the bound, then the best objective. NEW/results.jsonl has a line for every run, and is not
computed twice (--steps has a file of its own): name a new folder after a change of the method. The
tables are printed; --ours computes and prints the rows of the default method alone.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import language
import physics
import subgroups
import torch

from fairbound import AdaptivePI, Constrained, DescentAscent

PROBLEMS = {
    problem.name: problem
    for module in (language, physics, subgroups)
    for problem in module.PROBLEMS
}
OURS = "ours, untouched"
METHODS = {OURS: AdaptivePI, "DescentAscent, its defaults": DescentAscent}
# a bound counts as met if it is exceeded by at most a tenth
SEEDS, TUNING_SEED, MET = (0, 1, 2), 10, 0.1


class Job(NamedTuple):
    problem: str
    entry: str  # of METHODS, or the name of a practice
    value: float  # of the practice; 0 for a method
    seed: int


class Result(NamedTuple):
    objective: float
    violation: float  # the largest, as a share of the bound
    seconds: float
    other: list[float]  # what else the problem reports


def compute(job: Job, steps: int | None) -> Result:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    problem = PROBLEMS[job.problem]
    run = problem.build(job.seed)
    if job.entry in METHODS:
        fair = Constrained(run.model, run.constraint, METHODS[job.entry]())
    else:
        loss = next(p for p in problem.practices if p.name == job.entry).loss(run, job.value)
    begin = time.perf_counter()
    for _ in range(steps or problem.steps):
        run.optimizer.zero_grad()
        draw = run.draw()
        if job.entry in METHODS:
            fair.backward(**draw.fair)
        else:
            loss(draw).backward()
        run.optimizer.step()
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        objective, violations = run.evaluate()
        return Result(objective, float(violations.max()), round(seconds, 2), run.other())


class Runs:
    """Results by job, kept as lines of a file."""

    def __init__(self, path: Path, steps: int | None, ours_alone: bool) -> None:
        self.ours_alone = ours_alone
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.path, self.steps, self.results = (
            path,
            steps,
            {Job(*job): Result(*r) for job, r in map(json.loads, lines)},
        )

    def make(self, jobs: list[Job], pool: ProcessPoolExecutor) -> None:
        futures = {
            pool.submit(compute, job, self.steps): job for job in jobs if job not in self.results
        }
        for future in as_completed(futures):
            job, result = futures[future], future.result()
            self.results[job] = result
            with self.path.open("a") as file:
                file.write(json.dumps([job, result]) + "\n")

    def tuned(self, problem: str, practice: Any) -> float:
        def score(value: float) -> tuple[bool, float]:
            result = self.results[Job(problem, practice.name, value, TUNING_SEED)]
            met = result.violation <= MET
            return not met, result.objective if met else result.violation

        return min(practice.values, key=score)

    def entries(self, problem: str, tuned: bool) -> list[tuple[str, str, float]]:
        """(label, entry, value) of every row of the table; the tuned ones if they are known."""
        if self.ours_alone:
            return [(OURS, OURS, 0.0)]
        rows = [(name, name, 0.0) for name in METHODS]
        for p in PROBLEMS[problem].practices:
            for word, value in [("default", p.default)] + (
                [("tuned", self.tuned(problem, p))] if tuned else []
            ):
                rows.append(
                    (
                        f"{p.name}, {' '.join(filter(None, [word, p.setting, f'{value:g}']))}",
                        p.name,
                        value,
                    )
                )
        return rows

    def table(self, problem: str) -> str:
        stated = PROBLEMS[problem]
        heads = [
            "",
            stated.objective,
            "largest violation",
            f"bound met, of {len(SEEDS)}",
            *stated.other,
        ]
        lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for label, entry, value in self.entries(problem, tuned=True):
            results = [self.results[Job(problem, entry, value, seed)] for seed in SEEDS]
            met = sum(result.violation <= MET for result in results)
            columns = zip(*([r.objective, r.violation, *r.other] for r in results), strict=True)
            f, c, *other = (", ".join(f"{number:.3g}" for number in column) for column in columns)
            lines.append(f"| {' | '.join([label, f, c, str(met), *other])} |")
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--steps", type=int, help="of every run, for a trial or a longer run")
    parser.add_argument("--ours", action="store_true", help="only the rows of the default method")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    name = "results.jsonl" if options.steps is None else f"results_{options.steps}_steps.jsonl"
    runs = Runs(options.out / name, options.steps, options.ours)
    jobs = [
        Job(name, practice.name, value, TUNING_SEED)
        for name in options.problems
        for practice in PROBLEMS[name].practices
        for value in practice.values
        if not options.ours
    ]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for tuned in (False, True):
            rows = [
                (name, *row[1:]) for name in options.problems for row in runs.entries(name, tuned)
            ]
            runs.make(
                jobs + [Job(*row, seed) for seed in SEEDS for row in dict.fromkeys(rows)], pool
            )
    for name in options.problems:
        print(f"\n{name}: {PROBLEMS[name].bound}\n\n{runs.table(name)}")


if __name__ == "__main__":
    main()
