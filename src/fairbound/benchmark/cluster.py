"""Tasks handed to Dask: a LocalCluster on this machine, a scheduler by its address, or jobs of a queue (Slurm, ...).

A worker that sees the results folder writes into it; any other sends the files of a task back, and this process writes
them. A task whose worker was killed is given to another one by Dask; a task that raises is tried once more on another
worker. A scheduler that goes away is waited for, and asked again for what the store lacks.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import signal
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing import resource_tracker
from pathlib import Path
from time import sleep
from typing import Any

import torch

from fairbound._utils.optional import need
from fairbound.benchmark.engines import Engine, Following, Task
from fairbound.benchmark.executor import Spent
from fairbound.benchmark.result_file import StoredResult, sealed_files
from fairbound.benchmark.store import Store, UnwritableError

log = logging.getLogger("fairbound")

TRIES = 2  # of a task that raises, each on another worker where there is one
TOPIC = "fairbound"  # of Dask's events: how far a task is
CONNECT_S = 10  # to wait for a scheduler before the command says that it does not answer
RECONNECT_EVERY_S = 2.0
LOOK_EVERY_S = 0.1  # for tasks that have ended
OWN_PORT = {"dashboard_address": "127.0.0.1:0"}  # any that is free: Dask would take 8787, or warn that it is taken
WORKER_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": {
        "OMP_NUM_THREADS": 1,  # small tensors are slower on more; processes use the cores
        # A step of many runs frees and asks for the same tens of megabytes; taken anew from the system, each page of
        # them is a fault: up to a fifth of the time of a Ghost step. glibc reads these at a start; 32 MB is its most.
        "MALLOC_TRIM_THRESHOLD_": 1 << 30,
        "MALLOC_MMAP_THRESHOLD_": 32 << 20,
    },
}


_ONE_AT_A_TIME = threading.Lock()  # threads of a worker would share torch's random state and the data of a plan


class RefusedError(Exception):
    """Why a worker cannot take part; the whole command ends with it."""


class _LostError(Exception):
    """The scheduler went away."""


def complete_with_dask(waiting: Sequence[Task], store: Store, engine: Engine, following: Following) -> None:
    """Complete the tasks with the engine's workers, through any loss of them."""
    tries: dict[int, list[str]] = {number: [] for number in range(len(waiting))}  # the workers that failed on a task
    while tries:
        try:
            with _client(engine, min(engine.processes, len(waiting))) as client:
                here = engine.scheduler is None and engine.queue is None
                _Round(client, waiting, store, following, tries, here).run()
        except _LostError:
            if engine.scheduler is None:
                raise OSError(
                    "the scheduler of the workers ended; start again: stored results are not computed again"
                ) from None
            log.warning(f"the scheduler at {engine.scheduler} is gone; waiting until it is back (Ctrl-C ends this)")
            _wait_for(engine.scheduler)
            for number in [number for number in tries if not store.missing(waiting[number].result_keys())]:
                following.completed(number, Spent())
                del tries[number]


# This process ---------------------------------------------------------------------------------------------------------


class _Round:
    """Everything that is left, handed to one client."""

    def __init__(
        self,
        client: Any,
        tasks: Sequence[Task],
        store: Store,
        following: Following,
        tries: dict[int, list[str]],
        here: bool,
    ) -> None:
        self.client, self.tasks, self.store, self.following, self.tries = client, tasks, store, following, tries
        self.here = here  # the workers are on this machine: all of them reach its GPU
        self.versions = {name: public_version(name) for name in ("fairbound", "torch")}
        self.numbers = {_task_key(task, store): number for number, task in enumerate(tasks)}
        self.futures: dict[Any, int] = {}
        self.pinned: dict[Any, list[str]] = {}  # second tries, and the workers that may take them
        self.moves: Counter[int] = Counter()  # of second tries whose workers had gone

    def run(self) -> None:
        distributed = need("distributed", "cli", "More than one process")
        self.client.subscribe_topic(TOPIC, self._event)
        self.client.forward_logging("fairbound", logging.WARNING)
        self._wait_for_a_worker()
        done = distributed.as_completed([self._submit(number) for number in list(self.tries)], loop=self.client.loop)
        try:
            while not done.is_empty():
                if done.has_ready():
                    future = next(done)
                    again = self._finish(future, self.futures.pop(future)) if future in self.futures else None
                else:
                    sleep(LOOK_EVERY_S)
                    again = self._stranded()
                if again is not None:
                    done.add(self._submit(again))
        finally:
            for future in self.futures:
                future.cancel(reason="the command ends", force=True)

    def _stranded(self) -> int | None:
        """The number of a second try whose workers have all gone."""
        there = set().union(*self._workers()) if self.pinned else set()
        for future, workers in list(self.pinned.items()):
            if future.done() or future not in self.futures:
                del self.pinned[future]
            elif there and there.isdisjoint(workers):
                del self.pinned[future]
                future.cancel(reason="its workers have gone", force=True)
                number = self.futures.pop(future)
                self.moves[number] += 1
                return number
        return None

    def _wait_for_a_worker(self) -> None:
        """What workers are there decides which tasks go to a GPU; jobs of a queue may start late."""
        wants_gpu = not self.here and any(self.tasks[number].device != "cpu" for number in self.tries)
        kind = "a GPU (dask worker ... --resources GPU=1)" if wants_gpu else "this fairbound"
        said = False
        while not (self._workers()[0] if wants_gpu else any(self._workers())):
            if self.client.status == "closed":
                raise _LostError
            if not said:
                log.warning(f"no worker with {kind} is there yet; waiting for the first (Ctrl-C ends this)")
                said = True
            sleep(0.2)

    def _submit(self, number: int) -> Any:
        task, failed = self.tasks[number], self.tries[number]
        key = f"{_task_key(task, self.store)}-{len(failed)}.{self.moves[number]}"
        gpus, cpus = self._workers()
        where: dict[str, Any] = {}
        if task.gpu and gpus:
            task, where = task.on("cuda"), {"resources": {"GPU": 1}}
        elif gpus and cpus:
            where = {"workers": cpus, "allow_other_workers": True}  # where those have gone
        others = [worker for worker in (where.get("workers") or [*gpus, *cpus]) if worker not in failed]
        if failed and others:
            where |= {"workers": others, "allow_other_workers": False}  # else it may be stolen by the first
        files = {name: Path(name).read_bytes() for name in task.user_files()}
        front = str(self.following.log.front_file(self.following.name).resolve())
        future = self.client.submit(
            complete_there, task, task.result_keys(), files, str(self.store.folder.resolve()), front, self.versions,
            key=key, priority=-number, pure=False, **where,
        )  # fmt: skip
        self.futures[future] = number
        if failed and others:
            self.pinned[future] = others
        return future

    def _workers(self) -> tuple[list[str], list[str]]:
        """Addresses of those with a GPU (started with --resources GPU=1), and of the others."""
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        gpus = [address for address, about in found.items() if about["resources"].get("GPU")]
        return gpus, [address for address in found if address not in gpus]

    def _finish(self, future: Any, number: int) -> int | None:
        """Store what came back; the number of a task that is to be tried again."""
        if future.status == "finished":
            files, spent = future.result()
            if files:
                self.store.put_files(files)
            self.following.completed(number, spent)
            del self.tries[number]
            return None
        if future.status == "cancelled":
            raise _LostError
        error, killed = future.exception(), type(future.exception()).__name__ == "KilledWorker"
        if isinstance(error, RefusedError):
            raise ValueError(str(error))
        if isinstance(error, UnwritableError):
            raise error
        where = str(error.last_worker.address) if killed else str(getattr(error, "worker", "a worker"))
        self.tries[number].append(where)
        if len(self.tries[number]) < TRIES and not killed:  # Dask has tried that on several workers already
            return number
        words = "".join(traceback.format_exception(type(error), error, future.traceback()))
        if killed:
            words += "\nthe workers that computed it were killed, perhaps for want of memory; try fewer --jobs"
        self.following.failed_on(number, words, self.tries[number])
        del self.tries[number]
        return None

    def _event(self, event: tuple[Any, Mapping[str, Any]]) -> None:
        _, said = event
        number = self.numbers.get(said["task"])
        if number in self.tries:
            self.following.advanced(number, said["share"], said["worker"])


def _task_key(task: Task, store: Store) -> str:
    """Dask's name of a task: two commands with one store and one scheduler have it computed once."""
    content = "\n".join([str(store.folder.resolve()), *task.result_keys()])
    return f"fairbound-{hashlib.sha256(content.encode()).hexdigest()[:32]}"


@contextmanager
def _client(engine: Engine, workers: int) -> Iterator[Any]:
    distributed = need("distributed", "cli", "More than one process")
    dask = need("dask", "cli", "More than one process")
    quiet = {"distributed.logging.distributed": "error"} if engine.scheduler is None else {}
    with dask.config.set(WORKER_SETTINGS | quiet):
        if engine.scheduler is not None:
            with _connected(distributed, engine.scheduler) as client:
                yield client
        elif engine.queue is not None:
            from fairbound.benchmark.job_queues import queue_cluster

            with queue_cluster(*engine.queue) as cluster, distributed.Client(cluster) as client:
                yield client
        else:
            with _holding_interrupts():
                cluster = distributed.LocalCluster(
                    n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=None,
                    scheduler_kwargs=OWN_PORT, silence_logs=logging.CRITICAL + 1,  # a closed connection is one
                )  # fmt: skip
            with cluster, distributed.Client(cluster) as client:
                client.run(atexit.register, os._exit, 0)  # taking an interpreter with torch down would take 4 s
                yield client


@contextmanager
def _holding_interrupts() -> Iterator[None]:
    """Ctrl-C is for this thread alone, afterwards: threads and processes that are started here never get it.

    A terminal sends it to the workers as well, whose tracebacks would say nothing: this process ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock the signal, in the thread that starts a worker
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _connected(distributed: Any, address: str) -> Iterator[Any]:
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OSError(
            f"no scheduler answers at {address} within {CONNECT_S} s ({error}); start one there with `dask scheduler`, "
            "or check the address and the firewall"
        ) from error
    try:
        yield client
    finally:
        client.close(timeout=CONNECT_S)


def _wait_for(address: str) -> None:
    distributed = need("distributed", "cli", "More than one process")
    while True:
        try:
            with _connected(distributed, address):
                return
        except OSError:
            sleep(RECONNECT_EVERY_S)


# A worker -------------------------------------------------------------------------------------------------------------


class SentBack:
    """Results of a worker that does not see the folder of the store: files that travel with the answer."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self.files]

    def put_many(self, results: Sequence[StoredResult]) -> list[str]:
        self.files |= sealed_files(results)
        return [result.key for result in results]

    def checkpoint(self, key: str) -> Path:
        """On the worker's own disk: whoever goes on there finds it, if it is the same user."""
        user = f"-{os.getuid()}" if os.name == "posix" else ""
        folder = Path(tempfile.gettempdir()) / f"fairbound-checkpoints{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{key}.pt"


def complete_there(
    task: Task, keys: Sequence[str], files: Mapping[str, bytes], folder: str, front: str, versions: Mapping[str, str]
) -> tuple[dict[str, bytes], Spent]:
    """The body of a task on a worker: the files that it could not write itself, and what it took."""
    distributed = need("distributed", "cli", "A worker")
    worker = distributed.get_worker()
    name = f"{worker.name} at {worker.address}" if isinstance(worker.name, int) else str(worker.name)
    refuse_other_versions(versions, name)
    torch.set_num_threads(1)
    own = worker.get_current_task().rpartition("-")[0]
    try:
        with _ONE_AT_A_TIME:
            task = task.relocated(placed(files, Path(worker.local_directory)))
            if task.keys_here() != list(keys):
                raise RefusedError(
                    f"worker {name} would compute other results than this command has planned: its fairbound has other "
                    "code, or it finds other data; install the same there, and run `fairbound data fetch` on both"
                )
            store = Store(folder) if Path(front).exists() else SentBack()
            spent = task.complete(store, _reporter(worker, own, name)) if store.missing(list(keys)) else Spent()
    except Exception as error:
        error.worker = worker.address  # type: ignore[attr-defined]
        raise
    return store.files if isinstance(store, SentBack) else {}, spent


def _reporter(worker: Any, task: str, name: str) -> Callable[[float], None]:
    def advanced(share: float) -> None:
        worker.log_event(TOPIC, {"task": task, "share": share, "worker": name})

    advanced(0.0)
    return advanced


def refuse_other_versions(wanted: Mapping[str, str], worker: str) -> None:
    """Other code gives other results."""
    for package, own in wanted.items():
        found = public_version(package)
        if found != own:
            raise RefusedError(
                f"worker {worker} has {package} {found}, and this command {own}; results of different versions must "
                f"not be mixed: pip install {package}=={own} there"
            )


def public_version(package: str) -> str:
    """Without the build: torch 2.13.0+cu130 and 2.13.0+cpu may work together.

    >>> public_version("torch") == torch.__version__.partition("+")[0]
    True
    """
    return version(package).partition("+")[0]


def placed(files: Mapping[str, bytes], own: Path) -> dict[str, str]:
    """Where files of the command's user are on this machine: where they were, or else in a folder of the worker's."""
    places = {}
    for name, content in files.items():
        path = Path(name)
        if path.is_file() and path.read_bytes() == content:
            continue
        copy = own / hashlib.sha256(content).hexdigest() / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        places[name] = str(copy)
    return places
