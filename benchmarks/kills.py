"""kill -9 of the command, a worker or the scheduler at random moments: is a result lost, computed
twice, or changed?

    python benchmarks/kills.py                # 100 kills, two to four workers: half an hour on two
    cores python benchmarks/kills.py --short        # the short form that the tests run: one kill of
    each, with a scheduler

A third of the rounds run `fairbound run --jobs N` (a LocalCluster; the scheduler is in the
command), the others a scheduler, N workers and `fairbound run --scheduler`. What was killed is
started again until everything is stored; then the round's store is compared, bit by bit, with that
of an undisturbed run in one process. Exits with 1 where something differs.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from fairbound.benchmark._plan import Plan
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark._study import load_study

METHODS = ("SGD", "SSLALM", "DescentAscent", "SwitchingSubgradient", "Penalty")
LENGTHS = (600, 900, 1_200)  # steps: a task takes about a second
STUDY = """
title = "Kills"
seeds = 2
records = 4
entries = [
"""
PROBLEM = """
]
[problem]
state = "OK"
group = "RAC1P=1"
notion = "pairwise"
bound = 0.005
hidden = [4]
batch = 8
"""
KILLS_A_ROUND = 10
ROUND_S = 900  # a round that takes longer hangs
KINDS = ("front", "worker", "scheduler")
Stamps = dict[str, tuple[int, int]]


def study(folder: Path, methods: Sequence[str]) -> Path:
    """A task for every method at every length."""
    rows = [
        f'  {{ name = "{m} {n}", method = "{m}", steps = {n} }},' for m in methods for n in LENGTHS
    ]
    path = folder / "kills.toml"
    path.write_text(STUDY + "\n".join(rows) + PROBLEM)
    return path


class Machine:
    """A command, and where it says so a scheduler and workers beside it."""

    def __init__(self, file: Path, out: Path, workers: int, cluster: bool) -> None:
        self.file, self.out, self.cluster, self.count = file, out, cluster, workers
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.front: subprocess.Popen[bytes] | None = None
        self.log = open(out.with_suffix(".log"), "ab")  # noqa: SIM115

    def start(self) -> None:
        """Whatever is not running."""
        if self.cluster:
            if _ended(self.scheduler):
                host, port = self.address.removeprefix("tcp://").split(":")
                self.scheduler = self._run(
                    "distributed.cli.dask_scheduler",
                    "--host",
                    host,
                    "--port",
                    port,
                    "--no-dashboard",
                )
            self.workers = [one for one in self.workers if not _ended(one)]
            while len(self.workers) < self.count:
                own = (
                    "--nthreads",
                    "1",
                    "--no-dashboard",
                    "--no-nanny",
                    "--local-directory",
                    str(self.out.parent),
                )
                self.workers.append(self._run("distributed.cli.dask_worker", self.address, *own))
        if _ended(self.front):
            where = ("--scheduler", self.address) if self.cluster else ("--jobs", str(self.count))
            code = "from fairbound.cli import main; main()"
            self.front = self._spawn(
                [sys.executable, "-c", code, *run_arguments(self.file, self.out), *where]
            )

    def _run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self._spawn([sys.executable, "-m", module, *arguments])

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        own = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        return subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env=own, start_new_session=True
        )

    def kill(self, rng: random.Random, before: Counter[str]) -> str:
        """One of those that run, of a kind that was killed least; what it was."""
        victims = {"front": [self.front.pid] if self.front and not _ended(self.front) else []}
        if self.cluster:
            victims["worker"] = [one.pid for one in self.workers if not _ended(one)]
            victims["scheduler"] = (
                [self.scheduler.pid] if self.scheduler and not _ended(self.scheduler) else []
            )
        elif self.front:
            victims["worker"] = worker_processes(self.front.pid)
        there = [name for name, found in victims.items() if found]
        if not there:
            return ""
        fewest = min(before[name] for name in there)
        kind = rng.choice([name for name in there if before[name] == fewest])
        os.kill(rng.choice(victims[kind]), signal.SIGKILL)
        for marker in self.out.glob(".command.*") if kind == "front" else ():
            marker.unlink()
        return kind

    def stop(self) -> None:
        for one in [self.front, *self.workers, self.scheduler]:
            if one is not None and not _ended(one):
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()
        self.log.close()


def run_arguments(file: Path, out: Path) -> list[str]:
    return ["run", str(file), "--source", "synthetic:OK", "--out", str(out)]


def _ended(process: subprocess.Popen[bytes] | None) -> bool:
    return process is None or process.poll() is not None


def worker_processes(pid: int) -> list[int]:
    """Children of a command that compute: not the one that tracks its resources."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = path.read_text().split()
            found += [
                int(child)
                for child in own
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
            ]
        except OSError:  # it has ended
            continue
    return found


def stored(tasks: list[list[str]], out: Path) -> Stamps:
    """Files of the tasks of which no result is missing, with what changes where one is written
    again."""
    found: Stamps = {}
    for keys in tasks:
        paths = [out / "runs" / f"{key}.parquet" for key in keys]
        if all(path.exists() for path in paths):
            found |= {path.stem: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}
    return found


def bits(result: StoredResult) -> object:
    return result.settings, {
        (table, name): (column.dtype.str, column.shape, column.tobytes())
        for table, columns in result.tables.items()
        for name, column in columns.items()
    }


def one_round(
    machine: Machine,
    tasks: list[list[str]],
    rng: random.Random,
    most: int,
    say: Callable[[str], None],
) -> Counter[str]:
    """Run to the end with at most so many kills; counts of kills and of what went wrong."""
    counts: Counter[str] = Counter()
    kept: Stamps = {}

    def look() -> None:
        now = stored(tasks, machine.out)
        counts["computed twice"] += sum(
            now.get(key) != stamp for key, stamp in kept.items() if key in now
        )
        counts["lost"] += len(kept.keys() - now.keys())
        kept.update(now)

    due, ended, end = float("inf"), 0, time.monotonic() + ROUND_S
    machine.start()
    while True:
        time.sleep(0.05)
        if time.monotonic() > end:
            raise SystemExit(f"a round does not end within {ROUND_S} s: see {machine.log.name}")
        look()
        status = machine.front.poll() if machine.front is not None else None
        if status == 0 and len(kept) == sum(map(len, tasks)):
            return counts
        ended += status not in (None, 0, -signal.SIGKILL)
        if ended > 20:
            raise SystemExit(f"the command ends with {status}: see {machine.log.name}")
        if status is None and due == float("inf") and is_computing(machine.out):
            due = time.monotonic() + rng.uniform(0, 4)
        if time.monotonic() > due and sum(counts[kind] for kind in KINDS) < most:
            kind = machine.kill(rng, counts)
            counts[kind] += bool(kind)
            say(kind)
            due = float("inf")
            time.sleep(0.2)
        machine.start()


def _say(kind: str) -> None:
    print(kind or "-", end=" ", flush=True)


def is_computing(out: Path) -> bool:
    """Whether a command has come so far as to start its workers: then its file is there
    (`Store.in_use`)."""
    return any(out.glob(".command.*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    # nothing that was started stays behind
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    kills, methods = (3, METHODS[:2]) if given.short else (given.kills, METHODS)
    rng, counts, rounds = random.Random(given.seed), Counter[str](), 0
    folder = Path(tempfile.mkdtemp(prefix="fairbound-kills-"))
    file = study(folder, methods)
    code = "from fairbound.cli import main; main()"
    whole = folder / "whole"
    subprocess.run(
        [sys.executable, "-c", code, *run_arguments(file, whole), "--jobs", "1"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    expected = {result.key: bits(result) for result in Store(whole).results()}
    tasks = [
        task.keys for task in Plan(load_study(file).on(source="synthetic:OK")).tasks(Store(whole))
    ]
    start = time.monotonic()
    while (killed := sum(counts[kind] for kind in KINDS)) < kills:
        rounds += 1
        machine = Machine(
            file,
            folder / f"round-{rounds}",
            2 if given.short else rng.choice((2, 3, 4)),
            cluster=given.short or rounds % 3 != 1,
        )
        try:
            counts += one_round(
                machine,
                tasks,
                rng,
                min(KILLS_A_ROUND, kills - killed),
                _say,
            )
        finally:
            machine.stop()
        found = {result.key: bits(result) for result in Store(machine.out).results()}
        counts["lost"] += len(expected.keys() - found.keys())
        different = [key for key in found if key in expected and found[key] != expected[key]]
        counts["different"] += len(different)
        print(
            f"\nround {rounds}, {machine.count}"
            f" workers{', a scheduler' if machine.cluster else ''}: {dict(counts)}",
            flush=True,
        )
        if different:
            print(f"compare {machine.out} with {whole}: {different[0]}")
            sys.exit(1)
        shutil.rmtree(machine.out)
    wrong = {name: counts[name] for name in ("lost", "computed twice", "different")}
    kinds = ", ".join(f"{counts[name]} of a {name}" for name in KINDS)
    print(
        f"{killed} kills ({kinds}) in {rounds} rounds of {len(expected)} results, "
        f"{time.monotonic() - start:.0f} s: {wrong}"
    )
    shutil.rmtree(folder)
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
