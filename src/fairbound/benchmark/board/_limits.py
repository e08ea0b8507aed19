"""Entries are code of their authors: a task in a process of its own, with limits of time and
memory.

This is no sandbox: the process has the rights of whoever runs the command. It keeps a method that
never ends, fills the memory or crashes from taking the board with it, and what it prints from being
taken for an answer.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fairbound.benchmark._store import Store

if TYPE_CHECKING:
    from fairbound.benchmark._task import Task

GB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one task: a method on a problem, all its seeds."""

    seconds: float = 600.0
    gigabytes: float = 4.0  # beside what Python and torch take

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.gigabytes > 0):
            raise ValueError(
                f"limits of time and memory are positive, got {self.seconds:g} s and"
                f" {self.gigabytes:g} GB"
            )


def complete_limited(
    task: Task, limits: Limits, store: Store, advanced: Callable[[float], None]
) -> float:
    """Complete a task in a process of its own, and the seconds; what ends that process is its
    result."""
    start = perf_counter()
    with tempfile.TemporaryDirectory(prefix="fairbound-") as folder:
        sentence = run_limited(task, Path(folder), limits, advanced)
        store.put_many(task.failed(sentence) if sentence else list(Store(folder).results()))
    return perf_counter() - start


def run_limited(
    task: Any, folder: Path, limits: Limits, advanced: Callable[[float], None] = lambda share: None
) -> str | None:
    """Complete a task in another process, which stores its results in the folder; None, or why
    there are none."""
    command = [
        sys.executable,
        "-m",
        "fairbound.benchmark.board._limits",
        str(folder),
        str(limits.gigabytes),
    ]
    late = threading.Event()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None

        def end() -> None:
            late.set()
            _kill(child)

        timer = threading.Timer(limits.seconds, end)
        timer.start()
        try:
            with suppress(BrokenPipeError):  # it crashed before it read its task
                child.stdin.write(pickle.dumps(task))
                child.stdin.close()
            for line in child.stdout:
                advanced(float(line))
            child.wait()
        finally:
            timer.cancel()
            _kill(child)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    if child.returncode == 0:
        return None
    if late.is_set():
        return f"it did not end within {limits.seconds:g} s"
    if child.returncode < 0:
        return f"its process was ended by signal {-child.returncode}, perhaps for want of memory"
    return f"it crashed: {said[-1] if said else f'exit status {child.returncode}'}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a process with what it has started, where the system has groups of processes."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL) if os.name == "posix" else child.kill()


def _main() -> None:
    """The body of the process: the task comes as bytes, shares of it go back as lines."""
    import torch

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a method prints is no answer
    folder, gigabytes = sys.argv[1:]
    task = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    limit_memory(float(gigabytes))

    def advanced(share: float) -> None:
        answers.write(f"{share}\n")
        answers.flush()

    task.complete(Store(folder), advanced)


def limit_memory(gigabytes: float) -> None:
    """Limit the memory of this process, beside what it has; without effect where the system has no
    such limit."""
    try:
        import resource
    except ImportError:  # Windows
        return
    statistics = Path("/proc/self/statm")
    pages = int(statistics.read_text().split()[0]) if statistics.exists() else 0
    most = pages * resource.getpagesize() + int(gigabytes * GB)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    _main()
