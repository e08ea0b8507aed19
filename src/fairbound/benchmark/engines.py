"""Tasks carried out by several processes, each with one thread.

Small tensors are faster on one thread than on two, so cores are used by processes. Batches of runs that share a
compiled step go to one process, the longest first. A process writes its results itself; the store makes each write
whole, so nothing but what was in progress is lost with a process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol

import torch

from fairbound.benchmark.executor import Job, PlannedJob, Progress, Spent, compute_and_store, plan
from fairbound.benchmark.store import Store

log = logging.getLogger("fairbound")

EXPECTED = (ValueError, OSError, ImportError)  # errors whose sentence is passed on
LIVENESS_CHECK_S = 1.0  # between checks that no process was killed
KEEP_FREED_BYTES = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}  # 32 MB is the most that glibc takes


class Task(Protocol):
    """Work for one process, as an object that can be sent to it."""

    @property
    def work(self) -> int: ...  # about how long it takes, in examples that pass through the model

    def complete(self, store: Store, advanced: Callable[[float], None]) -> Spent:
        """Compute it and store the results; `advanced` receives the share of it that is done."""


@dataclass(frozen=True)
class JobTask:
    """Batches of one job that share a compiled step, by their numbers in the job's plan."""

    job: Job
    batches: tuple[int, ...]
    work: int

    def complete(self, store: Store, advanced: Callable[[float], None]) -> Spent:
        spent, whole = Spent(), _planned(self.job)
        for count, number in enumerate(self.batches):

            def of_task(share: float, count: int = count) -> None:
                advanced((count + share) / len(self.batches))

            spent = spent.plus(compute_and_store(whole.prepared, whole.batches[number], store, of_task))
        return spent


@lru_cache(maxsize=1)  # one at a time: the data of many splits fill memory
def _planned(job: Job) -> PlannedJob:
    return plan(job)


class Done(NamedTuple):
    """What was carried out."""

    runs: int
    spent: Spent  # of all processes together


def carry_out(jobs: Sequence[Job], folder: Path, processes: int, progress: Progress | None = None) -> Done:
    """Compute what the results folder lacks of the jobs."""
    store = Store(folder)
    waiting, runs = _waiting([(job, plan(job)) for job in jobs], store)
    return Done(runs, complete_all(waiting, store, processes, progress))


def complete_all(tasks: Sequence[Task], store: Store, processes: int, progress: Progress | None = None) -> Spent:
    """Complete tasks, the longest first, in this process or in several; what they took."""
    waiting = sorted(tasks, key=lambda task: -task.work)
    following = _Following([task.work for task in waiting], progress)
    if processes == 1 or len(waiting) <= 1:
        for number, task in enumerate(waiting):
            following.add(task.complete(store, partial(following.advanced, number)))
    else:
        _in_processes(waiting, store.folder, min(processes, len(waiting)), following)
    return following.spent


def _waiting(planned: Sequence[tuple[Job, PlannedJob]], store: Store) -> tuple[list[JobTask], int]:
    """What is still to be computed, and how many runs that are."""
    tasks: list[JobTask] = []
    runs = 0
    claimed: set[str] = set()  # budgets share runs: SSL-ALM runs as long within either
    for job, whole in planned:
        groups = len(whole.prepared.experiment.groups)
        by_compile_key: dict[Hashable, list[int]] = {}
        for number, batch in enumerate(whole.batches):
            if set(batch.keys) - claimed and store.missing(batch.keys):
                by_compile_key.setdefault(batch.compile_key, []).append(number)
                claimed |= set(batch.keys)
                runs += len(batch.plans)
        tasks += [
            JobTask(job, tuple(numbers), sum(whole.batches[number].work(groups) for number in numbers))
            for numbers in by_compile_key.values()
        ]
    return tasks, runs


class _Following:
    """How far all tasks together are, and what they took."""

    def __init__(self, work: Sequence[int], progress: Progress | None) -> None:
        self.work, self.progress = work, progress
        self.shares = [0.0] * len(work)
        self.spent = Spent()

    def advanced(self, number: int, share: float) -> None:
        self.shares[number] = share
        if self.progress is not None:
            done = sum(share * work for share, work in zip(self.shares, self.work, strict=True))
            self.progress(round(done), sum(self.work))

    def add(self, spent: Spent) -> None:
        self.spent = self.spent.plus(spent)


# Several processes ----------------------------------------------------------------------------------------------------


def _in_processes(waiting: Sequence[Task], folder: Path, processes: int, following: _Following) -> None:
    context = multiprocessing.get_context("spawn")  # forked, torch's threads and locks would be in an unknown state
    tasks, messages = context.Queue(), context.Queue()
    for numbered in (*enumerate(waiting), *[None] * processes):
        tasks.put(numbered)
    workers = [
        context.Process(target=_work, args=(tasks, messages, folder, os.getpid()), daemon=True)
        for _ in range(processes)
    ]
    with _kept_memory():
        for worker in workers:
            worker.start()
    try:
        _listen(workers, messages, following)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


@contextmanager
def _kept_memory() -> Iterator[None]:
    """Processes started in here keep what they free, as glibc reads these settings at a start.

    A step of many runs frees and asks for the same tens of megabytes; taken anew from the system, each page of them is
    a fault: up to a fifth of the time of a Ghost step.
    """
    wanted = {name: value for name, value in KEEP_FREED_BYTES.items() if name not in os.environ}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            del os.environ[name]


def _listen(workers: Sequence[BaseProcess], messages: Any, following: _Following) -> None:
    """Read what the processes say until all of them have finished."""
    finished, checked = 0, monotonic()
    while finished < len(workers):
        if monotonic() - checked > LIVENESS_CHECK_S:  # not only without messages: another process may run for long
            _refuse_lost(workers)
            checked = monotonic()
        try:
            kind, *content = messages.get(timeout=LIVENESS_CHECK_S)
        except queue.Empty:
            continue
        if kind == "advanced":
            following.advanced(*content)
        elif kind == "spent":
            following.add(*content)
        elif kind == "log":
            log.log(*content)
        elif kind == "failed":
            raise content[0]
        else:
            finished += 1


def _refuse_lost(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        if worker.exitcode is not None and worker.exitcode < 0:
            raise OSError(
                f"a computing process was killed (signal {-worker.exitcode}), perhaps for want of memory; "
                "start again, with --jobs 1 if it recurs: stored runs are not computed again"
            )


def _work(tasks: Any, messages: Any, folder: Path, parent: int) -> None:
    """The body of a process: tasks until there are none."""
    torch.set_num_threads(1)
    logging.getLogger("fairbound").addHandler(_Passing(messages))
    store = Store(folder)
    try:
        while (numbered := tasks.get()) is not None:
            number, task = numbered
            messages.put(("spent", task.complete(store, partial(_report, messages, parent, number))))
        messages.put(("finished",))
    except EXPECTED as error:
        messages.put(("failed", type(error)(str(error)) if type(error) in EXPECTED else OSError(str(error))))
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        traceback.print_exc()
        messages.put(("failed", RuntimeError(f"{type(error).__name__}: {error} (in a computing process, see above)")))


def _report(messages: Any, parent: int, number: int, share: float) -> None:
    if os.getppid() != parent:  # killed: nothing reads these results, and a restart would compute them too
        os._exit(1)
    messages.put(("advanced", number, share))


class _Passing(logging.Handler):
    """Passes on what is logged, so that it does not break the progress bar."""

    def __init__(self, messages: Any) -> None:
        super().__init__()
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(ValueError):  # the queue was closed: the process is being ended
            self.messages.put(("log", record.levelno, record.getMessage()))
