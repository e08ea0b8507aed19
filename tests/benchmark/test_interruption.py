"""`fairbound run` is killed, finds its results damaged, may not write, or meets a full disk; then
it goes on.

One process imports everything (which takes longer than the runs) and forks a process of its own
session for every command, in the place of a shell: what is killed is the whole group, worker
processes included.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as parquet
import pytest
from small_study import small_study

from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="forks, sessions and kill -9 are of POSIX systems"
)

ROWS, SEEDS = 4, 3
STUDY = small_study(
    """
  { name = "SGD", method = "SGD", steps = 60 },
  { name = "SSL-ALM", method = "SSLALM", steps = 40 },
  { name = "SSw", method = "SwitchingSubgradient", steps = 40 },
  { name = "Descent-ascent", method = "DescentAscent", steps = 40 },
""",
    seeds=SEEDS,
    records=4,
)
# Results do not depend on how many processes compute them: one in the uninterrupted run, one or two
# in the others. Two are new processes, each of which imports everything for some seconds.
ALONE, TOGETHER = ("--jobs", "1"), ("--jobs", "2")
JOBS = pytest.mark.parametrize(
    "jobs", [ALONE, pytest.param(TOGETHER, marks=pytest.mark.slow)], ids=["one", "two"]
)


def serve() -> None:
    """The process that forks. It runs from this source; a request is a line of JSON, an answer a
    line."""
    import pyarrow.parquet  # noqa: F401  (these three are loaded where they are needed first, which takes seconds)
    import sklearn.model_selection  # noqa: F401
    import torch
    import torch._dynamo

    import fairbound.cli._app  # noqa: F401
    from fairbound.cli import main
    from fairbound.data import load

    torch.set_num_threads(1)
    load("synthetic:OK")
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "shell" in request:
            print(subprocess.run(request["shell"], capture_output=True).returncode, flush=True)
            continue
        pid = os.fork()
        if pid:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        os.setsid()
        print(os.getpid(), flush=True)
        with open(request["said"], "wb") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        if request["largest_file"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
        sys.argv = ["fairbound", *request["arguments"]]
        try:
            main()
        except SystemExit as end:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(end.code or 0))  # taking the interpreter down would take a second
    os._exit(0)


class Done(NamedTuple):
    status: int  # negative: the signal that ended it
    said: str  # on both streams, spaces and breaks of lines as single spaces


class Commands:
    """Commands one after the other, each in a session of its own."""

    def __init__(self, folder: Path) -> None:
        source = f"import json, os, resource, subprocess, sys\n{inspect.getsource(serve)}\nserve()"
        # mounts of its own
        apart = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
        self.private = (
            bool(shutil.which("unshare"))
            and not subprocess.run([*apart, "true"], capture_output=True).returncode
        )
        self.server = subprocess.Popen(
            [*(apart if self.private else []), sys.executable, "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"COLUMNS": "80", "OMP_NUM_THREADS": "1"},
        )
        self.file, self.said = folder / "small.toml", folder / "said"
        self.file.write_text(STUDY)
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def _ask(self, request: dict[str, Any]) -> int:
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self._line())

    def shell(self, *words: str) -> int:
        """Another program in the same place; its exit status."""
        return self._ask({"shell": words})

    def seen(self, path: Path) -> Path:
        """A path as the commands see it, for this process."""
        return Path(f"/proc/{self.server.pid}/root{path}")

    def start(self, out: Path, *options: str, largest_file: int = 0) -> int:
        """`fairbound run`; its process, which leads a group."""
        arguments = ["run", str(self.file), "--source", "synthetic:OK", "--out", str(out), *options]
        return self._ask(
            {"arguments": arguments, "said": str(self.said), "largest_file": largest_file}
        )

    def end(self) -> Done:
        """After the command that was started last."""
        status = int(self._line())
        return Done(status, " ".join(self.said.read_text().split()))

    def run(self, out: Path, *options: str, largest_file: int = 0) -> Done:
        self.start(out, *options, largest_file=largest_file)
        return self.end()


class Flat(NamedTuple):
    """An uninterrupted run."""

    store: Store
    said: str
    pace: float  # seconds between the results of one row and those of the next


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    made = Commands(tmp_path_factory.mktemp("commands"))
    yield made
    assert made.server.stdin is not None
    made.server.stdin.close()
    made.server.wait(timeout=600)


@pytest.fixture(scope="module")
def whole(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Flat:
    store = Store(tmp_path_factory.mktemp("whole") / "results")
    done = commands.run(store.folder, *ALONE)
    assert done.status == 0, done.said
    assert len(files_in(store.folder)) == ROWS * SEEDS
    stored = sorted(path.stat().st_mtime for path in files_in(store.folder))
    return Flat(store, done.said, (stored[-1] - stored[0]) / (ROWS - 1))


def files_in(folder: Path) -> list[Path]:
    return sorted((folder / "runs").glob("*.parquet"))


def bits(result: StoredResult) -> Any:
    """Everything in a result, to the bit."""
    return {
        (table, name): (column.dtype.str, column.shape, column.tobytes())
        for table, columns in result.tables.items()
        for name, column in columns.items()
    }


def assert_same(found: Store, whole: Store) -> None:
    assert found.keys() == whole.keys()
    for mine, other in zip(found.results(), whole.results(), strict=True):
        assert mine.settings == other.settings
        assert bits(mine) == bits(other)


def method_of(settings: Any) -> str:
    return str(settings["method"]).partition("(")[0]


Stamps = dict[Path, tuple[int, int]]


def stamps(paths: Iterable[Path]) -> Stamps:
    """Of files, what changes where one is written again."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def finished(folder: Path) -> Stamps:
    """The files of those rows of which no run is missing."""
    rows: dict[str, list[Path]] = {}
    for result in Store(folder).results():
        rows.setdefault(result.settings["method"], []).append(
            folder / "runs" / f"{result.key}.parquet"
        )
    return stamps(path for paths in rows.values() if len(paths) == SEEDS for path in paths)


# Killed -------------------------------------------------------------------------------------------


def kill_when(pid: int, folder: Path, runs: int, later: float) -> None:
    """The whole group, some seconds after the folder has that many runs."""
    wait_for(folder, runs, later)
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(pid, signal.SIGKILL)


def wait_for(folder: Path, runs: int, later: float = 0.0) -> None:
    deadline = time.monotonic() + 600
    while len(files_in(folder)) < runs and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(later)


@pytest.mark.slow
@JOBS
def test_killed_three_times_and_resumed(
    jobs: tuple[str, ...], commands: Commands, whole: Flat, tmp_path: Path
) -> None:
    """At three moments of a seeded generator: so many runs are there, and the next are being
    computed."""
    rng = random.Random(20)
    folder, killed = tmp_path / "results", 0
    # of twelve: half of the run is still to come
    for runs in sorted(rng.sample(range(2 * SEEDS + 1), 3)):
        kept = finished(folder)
        pid = commands.start(folder, *jobs)
        kill_when(pid, folder, runs, rng.random() * whole.pace / 2)
        killed += commands.end().status == -signal.SIGKILL
        assert stamps(kept) == kept
    assert killed >= 2  # where the machine is much quicker than it was, the last kill finds nobody
    kept = finished(folder)
    done = commands.run(folder, *jobs)
    assert done.status == 0, done.said
    assert stamps(kept) == kept
    assert_same(Store(folder), whole.store)
    assert tables_of(done.said) == tables_of(whole.said)


def tables_of(said: str) -> str:
    """What a run prints after its results are there."""
    return said[said.index("train: mean") :]


def test_a_finished_run_computes_nothing(commands: Commands, whole: Flat) -> None:
    kept = finished(whole.store.folder)
    assert len(kept) == ROWS * SEEDS
    done = commands.run(whole.store.folder)
    assert done.status == 0
    assert re.search(r"\b0 runs computed, 12 were there", done.said), done.said
    assert stamps(kept) == kept


@pytest.mark.parametrize("to_all", [True, False], ids=["as-a-terminal-sends-it", "to-the-front"])
@JOBS
def test_ctrl_c_is_one_sentence(
    jobs: tuple[str, ...], to_all: bool, commands: Commands, whole: Flat, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    pid = commands.start(folder, *jobs)
    wait_for(folder, SEEDS)
    (os.killpg if to_all else os.kill)(pid, signal.SIGINT)
    done = commands.end()
    assert done.status == 130, done.said
    assert re.search(
        rf"stopped; \d+ of {ROWS * SEEDS} results are stored, start again to go on$", done.said
    ), done.said
    assert "Traceback" not in done.said
    assert not list(folder.glob(".*"))


# Damaged ------------------------------------------------------------------------------------------


def test_damaged_results_are_named_and_computed_again(
    commands: Commands, whole: Flat, tmp_path: Path
) -> None:
    """A bit of one result is flipped, another lost its second half; their rows are computed again,
    others are not."""
    folder = tmp_path / "results"
    shutil.copytree(whole.store.folder, folder)
    files = {
        (method_of(c.settings), c.settings["seed"]): folder / "runs" / f"{c.key}.parquet"
        for c in whole.store.results()
    }
    flipped, halved = files["SSLALM", 1], files["SwitchingSubgradient", 2]
    column = parquet.read_metadata(flipped).row_group(0).column(1)
    data = bytearray(flipped.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 1  # a number
    flipped.write_bytes(data)
    halved.write_bytes(halved.read_bytes()[: halved.stat().st_size // 2])

    kept = stamps(path for (row, _), path in files.items() if row in ("SGD", "DescentAscent"))
    done = commands.run(folder, *ALONE)
    assert done.status == 0, done.said
    combine = done.said.replace(" ", "")
    for path in (flipped, halved):
        assert f"{path}isdamaged:" in combine
        assert path.with_suffix(".damaged").exists()
    assert combine.count("isdamaged:") == 2
    assert stamps(kept) == kept
    assert_same(Store(folder), whole.store)


# May not write ------------------------------------------------------------------------------------


def assert_sentence(done: Done, *parts: str) -> None:
    assert done.status == 1, done
    assert "Traceback" not in done.said
    for part in parts:
        assert part.replace(" ", "") in done.said.replace(" ", ""), done.said


def test_a_file_in_the_place_of_the_folder(commands: Commands, tmp_path: Path) -> None:
    taken = tmp_path / "results"
    taken.write_text("mine")
    assert_sentence(commands.run(taken), f"Error: {taken} is a file; name a folder")
    below = taken / "deeper"
    assert_sentence(
        commands.run(below),
        f"results cannot be stored in {below}: Not a directory; name another folder",
    )
    assert taken.read_text() == "mine"


@pytest.fixture
def disk(commands: Commands) -> Iterator[Path]:
    """A disk of 64 kB that only commands see, where a place of their own to mount it was given to
    them."""
    place = commands.file.parent / "disk"
    place.mkdir(exist_ok=True)
    if not commands.private or commands.shell(
        "mount", "-t", "tmpfs", "-o", "size=96k", "test", str(place)
    ):
        pytest.skip("a disk of our own needs the rights to mount one")
    yield place
    assert commands.shell("umount", str(place)) == 0


def test_a_read_only_folder(commands: Commands, disk: Path) -> None:
    assert commands.shell("mount", "-o", "remount,ro", str(disk)) == 0
    said = (
        f"Error: results cannot be stored in {disk}: it may not be written to (Read-only file"
        " system); change that"
    )
    assert_sentence(commands.run(disk), said)


# A full disk --------------------------------------------------------------------------------------


@JOBS
def test_a_full_disk(jobs: tuple[str, ...], commands: Commands, whole: Flat, disk: Path) -> None:
    """It has room for some of the rows; with more room the run goes on from them."""
    seen = commands.seen(disk)
    said = (
        f"Error: results cannot be stored in {disk}: no space is left; free some and start again,"
        " stored runs are"
    )
    assert_sentence(commands.run(disk, *jobs), said)
    kept = finished(seen)
    assert 0 < len(kept) < ROWS * SEEDS
    assert not [path for path in (seen / "runs").iterdir() if path.name.endswith(".part")]
    assert commands.shell("mount", "-o", "remount,size=1m", str(disk)) == 0
    done = commands.run(disk, *jobs)
    assert done.status == 0, done.said
    assert stamps(kept) == kept
    assert_same(Store(seen), whole.store)


def test_files_that_may_not_be_large(commands: Commands, whole: Flat, tmp_path: Path) -> None:
    """A quota of another kind, which every process can set itself: small notes can be written,
    results cannot."""
    folder = tmp_path / "results"
    (folder / "runs").mkdir(parents=True)
    for result in whole.store.results(
        lambda settings: method_of(settings) in ("SGD", "SwitchingSubgradient")
    ):
        Store(folder).put_many([result])
    kept = finished(folder)
    done = commands.run(folder, *ALONE, largest_file=4096)
    assert_sentence(
        done,
        f"Error: results cannot be stored in {folder}: File too large; name another folder, stored",
    )
    assert len(files_in(folder)) == len(kept) == 2 * SEEDS
    assert commands.run(folder, *ALONE).status == 0
    assert stamps(kept) == kept
    assert_same(Store(folder), whole.store)
