"""Tasks handed to Dask: a LocalCluster on this machine, a scheduler by its address, or jobs of a
queue (Slurm, ...).

A worker that sees the results folder writes into it; any other sends the files of a task back, and
this process writes them. Dask does the rest: it gives the task of a killed worker to another one,
tries one that raises again (`retries`), and speaks TLS where its own settings name certificates. A
command whose scheduler goes away ends; start it again to go on.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing import resource_tracker
from pathlib import Path
from time import sleep
from typing import Any

import torch

from fairbound._utils.optional import need
from fairbound.benchmark._engine import Engine, Following
from fairbound.benchmark._fingerprint import code_hash
from fairbound.benchmark._store import Store, UnwritableError
from fairbound.benchmark._task import Task

_log = logging.getLogger("fairbound")

RETRIES = 1  # of a task that raises
LOST = "the scheduler of the workers is gone; start again: stored results are not computed again"
TOPIC = "fairbound"  # of Dask's events: how far a task is
CONNECT_S = 10  # to wait for a scheduler before the command says that it does not answer
# any that is free: Dask would take 8787, or warn that it is taken
OWN_PORT = {"dashboard_address": "127.0.0.1:0"}
WORKER_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": {
        "OMP_NUM_THREADS": 1,  # small tensors are slower on more; processes use the cores
        # A step of many runs frees and asks for the same tens of megabytes; taken anew from the
        # system, each page of them is a fault: up to a fifth of the time of a Ghost step. glibc
        # reads these at a start; 32 MB is its most.
        "MALLOC_TRIM_THRESHOLD_": 1 << 30,
        "MALLOC_MMAP_THRESHOLD_": 32 << 20,
    },
}


# threads of a worker would share torch's random state and the data of a plan
_ONE_AT_A_TIME = threading.Lock()


class RefusedError(Exception):
    """Why a worker cannot take part; the whole command ends with it."""


def complete_with_dask(
    waiting: Sequence[Task], store: Store, engine: Engine, following: Following
) -> None:
    """Complete the tasks with the engine's workers."""
    distributed = need("distributed", "cli", "More than one process")
    here = engine.scheduler is None and engine.queue is None
    with store.in_use() as marker, _client(engine, min(engine.processes, len(waiting))) as client:
        numbers = {_task_key(task, store): number for number, task in enumerate(waiting)}

        def event(about: tuple[Any, Mapping[str, Any]]) -> None:
            number = numbers.get(about[1]["task"])
            if number is not None:
                following.advanced(number, about[1]["share"])

        client.subscribe_topic(TOPIC, event)
        client.forward_logging("fairbound", logging.WARNING)
        _wait_for_a_worker(client, not here and any(task.device != "cpu" for task in waiting))
        futures = {
            _submit(client, task, store, marker, -number): number
            for number, task in enumerate(waiting)
        }
        try:
            for future in distributed.as_completed(list(futures), loop=client.loop):
                _finish(future, futures.pop(future), store, following)
        finally:
            for future in futures:
                future.cancel(reason="the command ends", force=True)


# This process -------------------------------------------------------------------------------------


def _wait_for_a_worker(client: Any, wants_gpu: bool) -> None:
    """What workers are there decides which tasks go to a GPU; jobs of a queue may start late."""
    kind, said = (
        "a GPU (dask worker ... --resources GPU=1)" if wants_gpu else "this fairbound",
        False,
    )
    while not (_workers(client)[0] if wants_gpu else any(_workers(client))):
        if client.status == "closed":
            raise OSError(LOST)
        if not said:
            _log.warning(
                f"no worker with {kind} is there yet; waiting for the first (Ctrl-C ends this)"
            )
            said = True
        sleep(0.2)


def _workers(client: Any) -> tuple[list[str], list[str]]:
    """Addresses of those with a GPU (started with --resources GPU=1), and of the others."""
    found = client.scheduler_info(n_workers=-1)["workers"]
    gpus = [address for address, about in found.items() if about["resources"].get("GPU")]
    return gpus, [address for address in found if address not in gpus]


def _submit(client: Any, task: Task, store: Store, marker: Path, priority: int) -> Any:
    gpus, cpus = _workers(client)
    where: dict[str, Any] = {}
    if task.gpu and gpus:
        task, where = task.on("cuda"), {"resources": {"GPU": 1}}
    elif gpus and cpus:
        where = {"workers": cpus, "allow_other_workers": True}  # where those have gone
    files = {name: Path(name).read_bytes() for name in task.user_files()}
    versions = {name: public_version(name) for name in ("fairbound", "torch")}
    return client.submit(
        complete_there,
        task,
        [*task.keys, code_hash()],
        files,
        str(marker.resolve()),
        versions,
        key=_task_key(task, store),
        priority=priority,
        retries=RETRIES,
        pure=False,
        **where,
    )


def _finish(future: Any, number: int, store: Store, following: Following) -> None:
    """Store what came back, or note why nothing did."""
    if future.status == "finished":
        files, seconds = future.result()
        if files:
            store.put_files(files)
        following.completed(number, seconds)
        return
    if future.status == "cancelled":
        raise OSError(LOST)
    error = future.exception()
    if isinstance(error, RefusedError):
        raise ValueError(str(error))
    if isinstance(error, UnwritableError):
        raise error
    words = "".join(traceback.format_exception(type(error), error, future.traceback()))
    if type(error).__name__ == "KilledWorker":
        words += (
            "\nthe workers that computed it were killed, perhaps for want of memory; try fewer"
            " --jobs"
        )
    following.failed_on(number, words, [str(getattr(error, "worker", "a worker"))])


def _task_key(task: Task, store: Store) -> str:
    """Dask's name of a task: two commands with one store and one scheduler have it computed
    once."""
    content = "\n".join([str(store.folder.resolve()), str(task.recompute), *task.keys])
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
            from fairbound.benchmark._job_queues import queue_cluster

            with queue_cluster(*engine.queue) as cluster, distributed.Client(cluster) as client:
                yield client
        else:
            with _holding_interrupts():
                cluster = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    memory_limit=0,
                    dashboard_address=None,
                    # a closed connection is one
                    scheduler_kwargs=OWN_PORT,
                    silence_logs=logging.CRITICAL + 1,
                )
            with cluster, distributed.Client(cluster) as client:
                # taking an interpreter with torch down would take 4 s
                client.run(atexit.register, os._exit, 0)
                yield client


@contextmanager
def _holding_interrupts() -> Iterator[None]:
    """Ctrl-C is for this thread alone, afterwards: threads and processes that are started here
    never get it.

    A terminal sends it to the workers as well, whose tracebacks would say nothing: this process
    ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # its start would unblock the signal, in the thread that starts a worker
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _connected(distributed: Any, address: str) -> Iterator[Any]:
    if address.startswith("tls://") and distributed.Security().tls_client_cert is None:
        raise ValueError(
            f"{address} needs certificates, and Dask has none here: set"
            " DASK_DISTRIBUTED__COMM__TLS__CA_FILE, DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT and"
            " DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY to your files, or write them into Dask's"
            " configuration (distributed.comm.tls)"
        )
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OSError(
            f"no scheduler answers at {address} within {CONNECT_S} s ({error}); start one there"
            " with `dask scheduler`, or check the address and the firewall"
        ) from error
    try:
        yield client
    finally:
        client.close(timeout=CONNECT_S)


# A worker -----------------------------------------------------------------------------------------


def complete_there(
    task: Task,
    planned: Sequence[str],
    files: Mapping[str, bytes],
    marker: str,
    versions: Mapping[str, str],
) -> tuple[dict[str, bytes], float]:
    """The body of a task on a worker: the files that it could not write itself, and the seconds."""
    distributed = need("distributed", "cli", "A worker")
    worker = distributed.get_worker()
    name = (
        f"{worker.name} at {worker.address}" if isinstance(worker.name, int) else str(worker.name)
    )
    refuse_other_versions(versions, name)
    torch.set_num_threads(1)
    own = worker.get_current_task()
    try:
        with _ONE_AT_A_TIME:
            task = task.relocated(placed(files, Path(worker.local_directory)))
            if [*task.keys, code_hash()] != list(planned):
                raise RefusedError(
                    f"worker {name} would compute other results than this command has planned: its"
                    " fairbound has other code, or it finds other data; install the same there,"
                    " and run `fairbound data fetch` on both"
                )
            is_shared = Path(marker).exists()
            store = Store(
                Path(marker).parent if is_shared else Path(worker.local_directory) / "results"
            )
            seconds = (
                task.complete(store, _reporter(worker, own)) if task.missing_in(store) else 0.0
            )
    except RefusedError:
        raise
    except Exception as error:
        error.worker = worker.address  # type: ignore[attr-defined]
        raise
    return (
        {}
        if is_shared
        else {key: data for key in task.keys if (data := store.file(key)) is not None}
    ), seconds


def _reporter(worker: Any, task: str) -> Callable[[float], None]:
    def advanced(share: float) -> None:
        worker.log_event(TOPIC, {"task": task, "share": share})

    advanced(0.0)
    return advanced


def refuse_other_versions(wanted: Mapping[str, str], worker: str) -> None:
    """Other code gives other results."""
    for package, own in wanted.items():
        found = public_version(package)
        if found != own:
            raise RefusedError(
                f"worker {worker} has {package} {found}, and this command {own}; results of"
                f" different versions must not be mixed: pip install {package}=={own} there"
            )


def public_version(package: str) -> str:
    """Version without the build: torch 2.13.0+cu130 and 2.13.0+cpu may work together.

    >>> public_version("torch") == torch.__version__.partition("+")[0]
    True
    """
    return version(package).partition("+")[0]


def placed(files: Mapping[str, bytes], own: Path) -> dict[str, str]:
    """Places of the files of the command's user on this machine: where they were, or else in a
    folder of the worker's."""
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
