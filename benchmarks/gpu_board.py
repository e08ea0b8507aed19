"""Problems without a known answer with all methods on a GPU, and from which size a worker with a
GPU takes a task.

    python benchmarks/gpu_board.py --rule              # a step of stacks of 5 to 1,000 runs on
    both: where the GPU pays python benchmarks/gpu_board.py --minutes 8         # their tasks, on
    the GPU where their problem can be moved

Needs torch, numpy, scipy, pandas, scikit-learn and pydantic; nothing is stored. A task that is not
reached within the minutes is counted and said.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._study import load_study as load_study
from fairbound.benchmark._task import Task, TaskRun
from fairbound.benchmark.problems._catalog import load_problem, problem_names
from fairbound.training._runner import run

RUNS = (5, 20, 100, 400, 1_000)
OURS = load_study("board").entries


class Nowhere:
    """A sink that keeps only what became of a task."""

    device = failure = ""

    def missing(self, keys: list[str], code: str | None = None) -> list[str]:
        return keys

    def put_many(self, results: list[StoredResult]) -> list[str]:
        self.device = str(results[0].made.get("kind", "cpu"))
        self.failure = (
            str(results[0].tables["failure"]["sentence"][0])
            if "failure" in results[0].tables
            else ""
        )
        return []

    def checkpoint(self, key: str) -> Path:
        return Path(tempfile.mkdtemp(prefix="fairbound-gpu-board-")) / key


def timed(task: Task) -> tuple[str, str, str, str, float]:
    """Problem, method, device, failure, seconds."""
    torch.set_num_threads(1)
    logging.getLogger("fairbound").setLevel(logging.ERROR)
    sink, start = Nowhere(), time.perf_counter()
    task.complete(sink, lambda share: None)
    return (
        task.problem,
        task.entries[0].name,
        sink.device,
        sink.failure,
        time.perf_counter() - start,
    )


def problems(minutes: float, processes: int, steps: int | None, device: str) -> None:
    """All tasks of these problems, the longest first, in so many processes that share the GPU."""
    solve = [
        name
        for name in problem_names()
        if load_problem(name).on_board and load_problem(name).family != "known answers"
    ]
    tasks = [
        Task(name, (entry,), tuple(TaskRun(0, seed) for seed in range(5)), "solve", limit=steps)
        for name in solve
        for entry in OURS
    ]
    tasks = [replace(one, device=device if one.built().movable else "cpu") for one in tasks]
    tasks.sort(key=lambda task: -task.work)
    start, found = time.perf_counter(), []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for future in [pool.submit(timed, task) for task in tasks]:
            left = 60 * minutes - (time.perf_counter() - start)
            try:
                found.append(future.result(timeout=max(left, 0.01)))
            except TimeoutError:  # later ones may be done
                continue
        whole = time.perf_counter() - start
        still = list(pool._processes.values())  # that compute what the time was too short for
        pool.shutdown(wait=False, cancel_futures=True)
        for process in still:
            process.kill()
    by = {kind: [one for one in found if one[2] == kind] for kind in ("cuda", "cpu")}
    print(
        f"{len(found)} of {len(tasks)} tasks ({len(solve)} problems x {len(OURS)} methods) in"
        f" {whole / 60:.1f} minutes"
    )
    for kind, some in by.items():
        print(
            f"  on {kind}: {len(some)} tasks, {sum(one[-1] for one in some) / 60:.1f} minutes of"
            f" {processes} processes"
        )
    for problem, method, kind, failure, seconds in sorted(found, key=lambda one: -one[-1])[:12]:
        print(f"  {seconds:7.1f} s {kind:4} {problem}: {method} {failure}")


def rule(steps: int) -> None:
    """Milliseconds of a step of so many runs: on a CPU's core, on the GPU, and there compiled as
    one CUDA graph."""
    cases = (
        ("SSL-ALM", "income-ok-race"),
        ("SSL-ALM", "digits-parity"),
        ("Tracked SQP", "income-ok-race"),
    )
    for method, problem in cases:
        entry = next(one for one in OURS if one.name == method)
        task = Task(problem, (entry,), (TaskRun(0, 0),), "solve")
        n, examples = task.built().starts([0]).shape[1], task.examples_per_step
        print(
            f"{problem}, {method}: {n} parameters, {examples:g} examples a step and run,"
            f" {task.steps} steps"
        )
        print("  runs      CPU      GPU   compiled, ms a step (and s to compile)")
        for runs in RUNS if method == "SSL-ALM" else RUNS[:3]:
            shown = [step_seconds(task, runs, "cpu", False, max(3, steps // (1 + runs // 100)))]
            shown += [
                step_seconds(task, runs, "cuda", compiled, steps) for compiled in (False, True)
            ]
            times = " ".join(f"{1000 * one:8.2f}" for one, _ in shown)
            print(f"{runs:6} {times} ({shown[-1][1]:.0f} s)", flush=True)


def step_seconds(
    task: Task, runs: int, device: str, compiled: bool, steps: int
) -> tuple[float, float]:
    """Seconds of a step, and of compiling it."""
    instance = task.built() if device == "cpu" else task.built().to(device)
    samplers = [instance.sampler(i, i) for i in range(runs)]
    methods = task.entries[0].algorithm(steps)
    spent = []
    for count in (3, steps):  # the first compiles
        start = time.perf_counter()
        going = run(
            instance.problem,
            methods,
            samplers,
            instance.starts(range(runs)),
            count,
            compile=compiled,
        )
        going.result()
        torch.cuda.synchronize()
        spent.append((time.perf_counter() - start, going.compiling))
    return spent[1][0] / steps, spent[0][0] if compiled else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rule", action="store_true")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    if given.rule:
        rule(300)
    else:
        problems(given.minutes, given.processes, given.steps, given.device)
