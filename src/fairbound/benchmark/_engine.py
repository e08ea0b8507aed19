"""Tasks carried out in this process, or handed to Dask: its workers on this machine or on a cluster
(`cluster`).

Small tensors are faster on one thread than on two, so cores are used by processes. The longest
tasks go first. The store is the truth: what it has is not computed, and a task is stored as soon as
it is done, so that whatever is killed costs at most the tasks in progress. A task that fails is
marked with its traceback, and the others go on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from fairbound._utils.sentences import counted, listing
from fairbound.benchmark._store import Store, UnwritableError
from fairbound.benchmark._task import Task
from fairbound.benchmark._work_log import Failure, WorkLog

ProgressCallback = Callable[[int, int], None]  # work done and work in all, as `Task.work` counts it
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Place where tasks are carried out: this process, workers on this machine, or those of a
    cluster."""

    processes: int = 1
    scheduler: str | None = None  # its address: tcp://host:8786
    # ("slurm", {"partition": "gpu"}): workers are its jobs
    queue: tuple[str, Mapping[str, str]] | None = None
    shard: tuple[int, int] | None = None  # (3, 40): the third of forty parts of every plan


class Done(NamedTuple):
    """What was carried out."""

    runs: int = 0
    seconds: float = 0.0  # of all processes together
    failed: Sequence[Failure] = ()

    def plus(self, other: Done) -> Done:
        return Done(
            self.runs + other.runs, self.seconds + other.seconds, (*self.failed, *other.failed)
        )


def complete_all(
    tasks: Sequence[Task], store: Store, engine: Engine, progress: ProgressCallback | None = None
) -> Done:
    """Complete tasks where the engine says, the longest first; what they took, and those that
    failed."""
    distinct: list[Task] = []
    asked: set[str] = set()
    for task in sorted(tasks, key=lambda task: -len(task.keys)):
        if not asked.issuperset(task.keys):  # budgets share runs: SSL-ALM runs as long in both
            distinct.append(task)
            asked.update(task.keys)
    ordered = share_of(sorted(distinct, key=lambda task: (-task.work, task.keys[0])), engine.shard)
    lacking = {task.keys[0]: task.missing_in(store) for task in ordered}
    waiting = [task for task in ordered if lacking[task.keys[0]]]
    if not waiting:
        return Done()
    following = Following(waiting, store, progress)
    with _stop_in_words(ordered, store):
        if (
            engine.scheduler is None
            and engine.queue is None
            and (engine.processes == 1 or len(waiting) == 1)
        ):
            _here(waiting, store, following)
        else:
            from fairbound.benchmark._cluster import complete_with_dask  # the package is an extra

            complete_with_dask(waiting, store, engine, following)
    return Done(sum(map(len, lacking.values())), following.seconds, following.failed)


@contextmanager
def _stop_in_words(tasks: Sequence[Task], store: Store) -> Iterator[None]:
    """Ctrl-C with how far the command has come."""
    try:
        yield
    except KeyboardInterrupt:
        keys = [key for task in tasks for key in task.keys]
        stored = sum(map(store.is_named, keys))
        raise KeyboardInterrupt(
            f"stopped; {stored:,} of {len(keys):,} results are stored, start again to go on"
        ) from None


def share_of(ordered: Sequence[_T], shard: tuple[int, int] | None) -> list[_T]:
    """Part i of n of a plan, the same wherever it is asked for, whatever is stored already.

    >>> share_of(["long", "middle", "short"], (1, 2)), share_of(["long", "middle", "short"], (2, 2))
    (['long', 'short'], ['middle'])
    """
    if shard is None:
        return list(ordered)
    number, of = shard
    return list(ordered[number - 1 :: of])


def parse_shard(text: str) -> tuple[int, int]:
    """
    >>> parse_shard("3/40")
    (3, 40)
    """
    number, _, of = text.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise ValueError(
            f"a shard is a part of so many, such as 3/40 (from 1/40 to 40/40), got {text!r}"
        )
    return int(number), int(of)


def _here(waiting: Sequence[Task], store: Store, following: Following) -> None:
    """Compute tasks one after the other in this process. What fails here once would fail again."""
    for number, task in enumerate(waiting):
        try:
            seconds = task.complete(store, partial(following.advanced, number))
        except UnwritableError:
            raise
        except Exception:
            following.failed_on(number, traceback.format_exc(), ["this process"])
        else:
            following.completed(number, seconds)


# Progress -----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Following:
    """How far all tasks together are, what they took and which failed."""

    tasks: Sequence[Task]
    store: Store
    progress: ProgressCallback | None
    seconds: float = 0.0
    failed: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = WorkLog(self.store.folder)
        self.shares = [0.0] * len(self.tasks)
        self.work = [float(max(task.work, 1)) for task in self.tasks]
        # by method: seconds and work of tasks that are done
        self.measured: dict[str, tuple[float, float]] = {}

    def advanced(self, number: int, share: float) -> None:
        """A share of a task is done; of one that is tried again it may be less than before."""
        if self.shares[number] < 1.0:
            self.shares[number] = share
        self._show()

    def completed(self, number: int, seconds: float) -> None:
        self.seconds += seconds
        if seconds:
            before, work = self.measured.get(self.tasks[number].method, (0.0, 0.0))
            self.measured[self.tasks[number].method] = before + seconds, work + self.work[number]
        self.log.forget(self.tasks[number].keys)
        self.advanced(number, 1.0)

    def failed_on(self, number: int, words: str, workers: Sequence[str]) -> None:
        task = self.tasks[number]
        self.failed.append(
            Failure(task=task.name, keys=task.keys, traceback=words, workers=workers)
        )
        self.log.fail(self.failed[-1])
        self.advanced(number, 1.0)

    def _show(self) -> None:
        if self.progress is not None:
            weights = self._weights()
            done = sum(share * weight for share, weight in zip(self.shares, weights, strict=True))
            self.progress(round(done), round(sum(weights)))

    def _weights(self) -> list[float]:
        """The work of every task; once tasks of its method are done, times their seconds for work
        against the mean."""
        if not self.measured:
            return self.work
        seconds, work = map(sum, zip(*self.measured.values(), strict=True))
        pace = {method: own / of * work / seconds for method, (own, of) in self.measured.items()}
        return [
            size * pace.get(task.method, 1.0)
            for size, task in zip(self.work, self.tasks, strict=True)
        ]


def failures_in_words(failed: Iterable[Failure]) -> str:
    """One sentence for a command to end with."""
    listed = list(failed)
    some = listing((f"{failure.task}: {failure.sentence}" for failure in listed), 3)
    return f"{counted(len(listed), 'task')} failed, the others are stored: {some}"
