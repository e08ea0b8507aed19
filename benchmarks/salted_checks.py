"""How often `fairbound check` would refuse a sound method for its results in salted coordinates
(want: never).

    python benchmarks/salted_checks.py                        # every method on eleven problems
    python benchmarks/salted_checks.py --problems qcqp p1     # some of them

Every method of the library is run as stated and with a salt, as `check` does; exits with 1 where
one is refused. Methods that store an answer, which must be refused, are in
tests/benchmark/test_entry_folders.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace

import torch

from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark._study import load_study as load_study
from fairbound.benchmark._task import Task, TaskRun
from fairbound.benchmark.board._checks import SALTED, _scales, salted_difference
from fairbound.benchmark.problems._catalog import load_problem
from fairbound.benchmark.problems._salted import can_be_salted

PROBLEMS = (
    "p1",
    "p4",
    "p5",
    "hs7",
    "hs40",
    "hs71",
    "orthogonal",
    "neyman-pearson",
    "qcqp",
    "grid-world",
    "two-moons",
)


def results(task: Task) -> list[StoredResult]:
    with tempfile.TemporaryDirectory() as folder:
        task.complete(Store(folder), lambda share: None)
        return sorted(Store(folder).results(), key=lambda one: int(one.settings["seed"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="*", default=PROBLEMS)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--salt", default="a salt")
    given = parser.parse_args()
    torch.set_num_threads(1)
    compared, refused, start = 0, [], time.process_time()
    for problem in given.problems:
        if not can_be_salted(load_problem(problem).build()):
            print(f"{problem}: its constraints see the variables themselves; it is not salted")
            continue
        for entry in load_study("board").entries:
            if given.methods and entry.name not in given.methods:
                continue
            task = Task(problem, (entry,), tuple(TaskRun(0, seed) for seed in range(5)), "solve")
            plain = results(task)
            if "failure" in plain[0].tables:
                continue
            salted = results(replace(task, salt=given.salt))
            compared += 1
            if why := salted_difference(plain, salted, _scales(problem, plain)):
                refused.append(f"{problem}, {entry.name}: {why}")
                print(refused[-1], flush=True)
        print(
            f"{problem}: {compared} compared so far, {time.process_time() - start:.0f} CPU s",
            flush=True,
        )
    print(
        f"{len(refused)} of {compared} sound pairs of method and problem are refused (tolerance"
        f" {SALTED})"
    )
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
