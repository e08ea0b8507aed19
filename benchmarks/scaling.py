"""How well a plan spreads over workers: recorded durations of tasks, given to 2 to 512 simulated
workers.

    fairbound board --out results && python benchmarks/scaling.py results
    python benchmarks/scaling.py results --overhead      # and what Dask takes here: start-up, and
    each task python benchmarks/scaling.py results --whole         # the whole board, from the
    seconds that a short one recorded

The simulation hands out tasks as the engine does, the longest (by `work`, which is known
beforehand) first, each to the worker that is free first, plus the engine's own time for a task.
Efficiency: the sum of the durations over workers x time. No plan can be quicker than its longest
task: that limit is shown beside it.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Sequence
from pathlib import Path

from fairbound.benchmark._store import Store

WORKERS = (2, 8, 64, 512)
# of Dask, sending a task, its answer and its events; --overhead measured 6 ms on two cores
TASK_OVERHEAD_S = 0.02
TARGETS = {8: 0.9, 64: 0.8}


def durations(folder: Path) -> list[float]:
    """Seconds of every task: each of its results has them, under one code and method and
    problem."""
    found: dict[tuple[str, ...], float] = {}
    for one in Store(folder).results():
        own = one.settings
        method = (
            str(own["method"]) if own["kind"] != "groups" else str(own["method"]).partition("(")[0]
        )
        name = (
            str(own["problem"]),
            str(own["kind"]),
            str(own.get("change", "")),
            str(own["steps"]),
            method,
        )
        found[name] = max(found.get(name, 0.0), float(one.made.get("seconds", 0.0)))
    return sorted(found.values(), reverse=True)


def whole_board(folder: Path) -> list[float]:
    """Seconds of every task of the default board: its work, times the recorded seconds for a unit
    of work by method."""
    from fairbound.benchmark._plan import Plan
    from fairbound.benchmark._study import load_study

    seconds: dict[str, float] = {}
    work: dict[str, float] = {}
    store = Store(folder)
    for task in Plan(load_study("board-short")).tasks(store):
        one = store.get(task.keys[0])
        if one is not None and "seconds" in one.made:
            method = type(task.entries[0].algorithm(1)).__name__
            seconds[method] = seconds.get(method, 0.0) + float(one.made["seconds"])
            work[method] = work.get(method, 0.0) + task.work
    usual = sum(seconds.values()) / sum(work.values())
    # as the engine hands them out
    tasks = sorted(Plan(load_study("board")).tasks(store), key=lambda task: -task.work)
    rates = {method: seconds[method] / work[method] for method in seconds}
    found = [
        task.work * rates.get(type(task.entries[0].algorithm(1)).__name__, usual) for task in tasks
    ]
    return [one for one in found if one > 0]


def makespan(seconds: Sequence[float], workers: int, overhead: float = TASK_OVERHEAD_S) -> float:
    """
    >>> makespan([3.0, 2.0, 2.0, 1.0], 2, overhead=0.0)
    4.0
    """
    free = [0.0] * workers
    for one in seconds:
        heapq.heappush(free, heapq.heappop(free) + one + overhead)
    return max(free)


def measured_overhead(tasks: int = 500, workers: int = 2) -> tuple[float, float]:
    """Seconds of a start of workers, and of the engine for each task, on this machine."""
    import distributed

    start = time.perf_counter()
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.submit(int, 0).result()
        started = time.perf_counter() - start
        start = time.perf_counter()
        futures = [client.submit(_nothing, i, bytes(20_000), key=f"task-{i}") for i in range(tasks)]
        for _ in distributed.as_completed(futures, with_results=True):
            pass
        return started, (time.perf_counter() - start) / tasks


def _nothing(i: int, task: bytes) -> tuple[int, bytes]:
    return i, task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    seconds = whole_board(given.results) if given.whole else durations(given.results)
    if not seconds:
        raise SystemExit(
            f"{given.results} has no results with durations: compute some with this version"
        )
    overhead = TASK_OVERHEAD_S
    if given.overhead:
        started, overhead = measured_overhead()
        a_run = overhead * len(seconds) / sum(seconds)
        print(
            f"start-up of two workers {started:.1f} s; {1000 * overhead:.1f} ms for a task:"
            f" {a_run:.2%} of this plan"
        )
    print(f"{len(seconds)} tasks, {sum(seconds):.0f} s in all, the longest {max(seconds):.1f} s\n")
    print("workers     time   efficiency   the longest task allows")
    for workers in WORKERS:
        whole = makespan(seconds, workers, overhead)
        best = sum(seconds) / workers / max(sum(seconds) / workers, max(seconds))
        print(f"{workers:7} {whole:7.0f} s {sum(seconds) / workers / whole:11.2f} {best:25.2f}")


if __name__ == "__main__":
    main()
