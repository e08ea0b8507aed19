"""Jobs carried out by several processes, each with one thread.

Small tensors are faster on one thread than on two, so cores are used by processes. Stacks of one form share a compiled
step: they go to one process, the longest first. A process writes its cells itself; the store makes each write whole, so
nothing but what was in progress is lost with a process.
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
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch

from fairbound.benchmark.executor import Spent, TrainingState, completed
from fairbound.benchmark.job import Job, Prepared, prepared
from fairbound.benchmark.store import Store

log = logging.getLogger("fairbound")

EXPECTED = (ValueError, OSError, ImportError)  # errors whose sentence is passed on
ALIVE = 1.0  # seconds between looks at whether the other side still lives
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}  # bytes; 32 MB is the most


@dataclass(frozen=True)
class Bundle:
    """Stacks of one job that share a compiled step, by their places in the job's plan."""

    job: Job
    places: tuple[int, ...]
    work: int


class Done(NamedTuple):
    """What was carried out."""

    cells: int
    spent: Spent  # of all processes together


def carry_out(jobs: Sequence[Job], folder: Path, processes: int, progress: TrainingState | None = None) -> Done:
    """Compute what the results folder lacks of the jobs."""
    store = Store(folder)
    waiting, cells = _waiting([(job, prepared(job)) for job in jobs], store)
    following = _Following([bundle.work for bundle in waiting], progress)
    if processes == 1 or len(waiting) <= 1:
        for number, bundle in enumerate(waiting):
            following.add(_completed(bundle, prepared(bundle.job), store, partial(following.advanced, number)))
    else:
        _in_processes(waiting, folder, min(processes, len(waiting)), following)
    return Done(cells, following.spent)


def _waiting(found: Sequence[tuple[Job, Prepared]], store: Store) -> tuple[list[Bundle], int]:
    """What is still to be computed, the longest first, and how many cells that are."""
    bundles: list[Bundle] = []
    cells = 0
    claimed: set[str] = set()  # budgets share cells: SSL-ALM runs as long within either
    for job, whole in found:
        groups = len(whole.setting.experiment.groups)
        by_form: dict[Hashable, list[int]] = {}
        for place, stack in enumerate(whole.planned):
            if set(stack.keys) - claimed and store.missing(stack.keys):
                by_form.setdefault(stack.form, []).append(place)
                claimed |= set(stack.keys)
                cells += len(stack.plans)
        bundles += [
            Bundle(job, tuple(places), sum(whole.planned[place].work(groups) for place in places))
            for places in by_form.values()
        ]
    return sorted(bundles, key=lambda bundle: -bundle.work), cells


def _completed(bundle: Bundle, whole: Prepared, store: Store, advanced: Callable[[float], None]) -> Spent:
    spent = Spent()
    for count, place in enumerate(bundle.places):

        def of_bundle(share: float, count: int = count) -> None:
            advanced((count + share) / len(bundle.places))

        spent = spent.plus(completed(whole.setting, whole.planned[place], store, of_bundle))
    return spent


class _Following:
    """How far all bundles together are, and what they took."""

    def __init__(self, work: Sequence[int], progress: TrainingState | None) -> None:
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


def _in_processes(waiting: Sequence[Bundle], folder: Path, processes: int, following: _Following) -> None:
    context = multiprocessing.get_context("spawn")  # forked, torch's threads and locks would be in an unknown state
    tasks, messages = context.Queue(), context.Queue()
    for task in (*enumerate(waiting), *[None] * processes):
        tasks.put(task)
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
    wanted = {name: value for name, value in KEEP.items() if name not in os.environ}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            del os.environ[name]


def _listen(workers: Sequence[BaseProcess], messages: Any, following: _Following) -> None:
    """Read what the processes say until all of them have finished."""
    finished, looked = 0, monotonic()
    while finished < len(workers):
        if monotonic() - looked > ALIVE:  # not only in silence: another process may go on for long
            _refuse_lost(workers)
            looked = monotonic()
        try:
            kind, *content = messages.get(timeout=ALIVE)
        except queue.Empty:
            continue
        if kind == "advanced":
            following.advanced(*content)
        elif kind == "spent":
            following.add(*content)
        elif kind == "said":
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
    """The body of a process: bundles until there are none."""
    torch.set_num_threads(1)
    logging.getLogger("fairbound").addHandler(_Passing(messages))
    store, known = Store(folder), dict[Job, Prepared]()
    try:
        while (task := tasks.get()) is not None:
            number, bundle = task
            if bundle.job not in known:
                known = {bundle.job: prepared(bundle.job)}  # one at a time: the rows of many splits fill memory
            advanced = partial(_tell, messages, parent, number)
            messages.put(("spent", _completed(bundle, known[bundle.job], store, advanced)))
        messages.put(("finished",))
    except EXPECTED as error:
        messages.put(("failed", type(error)(str(error)) if type(error) in EXPECTED else OSError(str(error))))
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        traceback.print_exc()
        messages.put(("failed", RuntimeError(f"{type(error).__name__}: {error} (in a computing process, see above)")))


def _tell(messages: Any, parent: int, number: int, share: float) -> None:
    if os.getppid() != parent:  # killed: nobody waits for these results, and another start would compute them too
        os._exit(1)
    messages.put(("advanced", number, share))


class _Passing(logging.Handler):
    """Passes on what is logged, so that it does not break the progress bar."""

    def __init__(self, messages: Any) -> None:
        super().__init__()
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(ValueError):  # the queue was closed: the process is being ended
            self.messages.put(("said", record.levelno, record.getMessage()))
