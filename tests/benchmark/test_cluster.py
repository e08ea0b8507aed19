"""Tasks handed to Dask: workers with and without the folder, failures, other versions, a scheduler
that goes away."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import call
from small_study import BROKEN, carry_out, contents, small_plan

from fairbound.benchmark import _cluster as module
from fairbound.benchmark._engine import Engine, parse_shard
from fairbound.benchmark._job_queues import cluster_options, parse_queue
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._store import Store
from fairbound.benchmark._work_log import WorkLog

distributed = pytest.importorskip("distributed", reason="workers need the extra cli")
dask = pytest.importorskip("dask", reason="workers need the extra cli")

HOST = {"host": "127.0.0.1", "dashboard": False} | module.OWN_PORT


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return small_plan(tmp_path)


@pytest.fixture(scope="module")
def there() -> Iterator[Engine]:
    """A scheduler with two workers, as a cluster has them."""
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        scheduler_kwargs=module.OWN_PORT,
        memory_limit=0,
    ) as cluster:
        yield Engine(scheduler=cluster.scheduler_address)


def test_workers_without_the_folder_send_their_files_back(
    plan: Plan, there: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file by which a worker knows the folder is not where it looks: as on a machine without
    that disk."""
    carry_out(plan, tmp_path / "one", Engine())
    written: list[str] = []
    put_files = Store.put_files
    monkeypatch.setattr(
        Store, "put_files", lambda self, files: written.extend(files) or put_files(self, files)
    )
    carry_out(plan, tmp_path / "shared", there)
    assert written == []
    monkeypatch.setattr(Store, "in_use", lambda self: nullcontext(tmp_path / "nowhere"))
    carry_out(plan, tmp_path / "apart", there)
    assert sorted(written) == sorted(contents(tmp_path / "one"))
    assert (
        contents(tmp_path / "apart") == contents(tmp_path / "shared") == contents(tmp_path / "one")
    )
    made = next(Store(tmp_path / "apart").results()).made
    assert made["kind"] == "cpu"
    assert made["seconds"] > 0


def test_what_fails_twice_is_marked_and_the_rest_goes_on(
    plan: Plan, there: Engine, tmp_path: Path
) -> None:
    method, folder = tmp_path / "mine.py", tmp_path / "results"
    method.write_text(BROKEN.replace("REPAIRED", str(tmp_path / "repaired")))
    broken = small_plan(tmp_path, algorithm=f"{method}:Broken")
    done = carry_out(broken, folder, there)
    assert len(contents(folder)) == 6
    (failure,) = done.failed
    assert failure.sentence == "this method cannot take a step"
    assert "Traceback" in failure.traceback
    assert f'File "{method}", line 18, in update' in failure.traceback
    assert WorkLog(folder).failures() == [failure]
    said = call("status", "--out", folder)
    assert "small, groups: Broken: this method cannot take a step" in " ".join(said.split())
    (tmp_path / "repaired").touch()
    assert not carry_out(broken, folder, there).failed
    assert len(contents(folder)) == 8
    assert WorkLog(folder).failures() == []


def test_what_needs_a_gpu_waits_for_a_worker_with_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = iter([([], ["tcp://cpu:1"]), ([], ["tcp://cpu:1"]), (["tcp://gpu:1"], ["tcp://cpu:1"])])
    monkeypatch.setattr(module, "_workers", lambda client: next(found))
    module._wait_for_a_worker(SimpleNamespace(status="running"), wants_gpu=True)
    assert next(found, None) is None
    assert "no worker with a GPU (dask worker ... --resources GPU=1) is there yet" in caplog.text


def test_a_file_of_the_user_travels_to_a_worker_that_does_not_have_it(tmp_path: Path) -> None:
    here, there = tmp_path / "here.py", tmp_path / "there.py"
    there.write_text("x = 1")
    places = module.placed({str(here): b"x = 1", str(there): b"x = 1"}, tmp_path / "worker")
    assert list(places) == [str(here)]
    assert Path(places[str(here)]).name == "here.py"
    assert Path(places[str(here)]).read_text() == "x = 1"


def test_a_worker_with_another_version_is_refused_in_a_sentence(
    plan: Plan, there: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = module.public_version
    monkeypatch.setattr(
        module, "public_version", lambda name: "9.9" if name == "torch" else own(name)
    )
    sentence = (
        rf"worker .* has torch {own('torch')}, and this command 9.9; .*: pip install torch==9.9"
        r" there"
    )
    with pytest.raises(ValueError, match=sentence):
        carry_out(plan, tmp_path / "results", there)
    assert contents(tmp_path / "results") == {}


def test_a_worker_with_other_data_or_code_is_refused_in_a_sentence(
    plan: Plan, there: Engine, tmp_path: Path
) -> None:
    def other_code(dask_worker: Any = None) -> None:
        import fairbound.benchmark._cluster as cluster

        cluster.code_hash = lambda: "other"

    def as_before(dask_worker: Any = None) -> None:
        import fairbound.benchmark._cluster as cluster
        from fairbound.benchmark._fingerprint import code_hash

        cluster.code_hash = code_hash

    with distributed.Client(there.scheduler) as client:
        client.run(other_code)
        try:
            with pytest.raises(ValueError, match="compute other results"):
                carry_out(plan, tmp_path / "results", there)
        finally:
            client.run(as_before)


def test_nobody_answers_at_the_address(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 1)
    with pytest.raises(OSError, match=r"tcp://127.0.0.1:9 .*1 s .*`dask scheduler`"):
        carry_out(plan, tmp_path / "results", Engine(scheduler="tcp://127.0.0.1:9"))


def test_tls_without_certificates_is_a_sentence(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"tls://127.0.0.1:9.*certificates, .*DASK_DISTRIBUTED__COMM__TLS__CA_FILE",
    ):
        carry_out(plan, tmp_path / "results", Engine(scheduler="tls://127.0.0.1:9"))


def test_two_commands_with_one_store_compute_a_task_once(
    plan: Plan, there: Engine, tmp_path: Path
) -> None:
    """Dask gives both the answer of one computation: the method notes when it starts."""
    method, noted, folder = tmp_path / "mine.py", tmp_path / "noted", tmp_path / "results"
    text = BROKEN.replace("REPAIRED", str(method)).replace(
        "        return x.new_zeros", "        NOTE\n        return x.new_zeros"
    )
    method.write_text(
        text.replace("NOTE", f"x.numel() > 4 and open({str(noted)!r}, 'a').write('started\\n')")
    )  # no trial
    both = small_plan(tmp_path, algorithm=f"{method}:Broken")
    both.tasks(Store(folder))  # a file is loaded by one thread at a time
    with ThreadPoolExecutor(2) as pool:
        done = [
            one.result() for one in [pool.submit(carry_out, both, folder, there) for _ in range(2)]
        ]
    assert [len(one.failed) for one in done] == [0, 0]
    assert len(contents(folder)) == 8
    assert noted.read_text() == "started\n"
    assert not list(folder.glob(".*"))


@pytest.mark.slow
def test_a_worker_whose_clock_is_an_hour_ahead(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 3600\n"
    )
    ahead = {"distributed.nanny.pre-spawn-environ": {"PYTHONPATH": str(tmp_path)}}
    with (
        dask.config.set(ahead),
        distributed.LocalCluster(
            n_workers=1, dashboard_address=None, scheduler_kwargs=module.OWN_PORT
        ) as cluster,
    ):
        with distributed.Client(cluster) as client:
            (theirs,) = client.run(lambda: __import__("time").time()).values()
        assert theirs > time.time() + 3000
        done = carry_out(plan, tmp_path / "results", Engine(scheduler=cluster.scheduler_address))
    assert (done.runs, len(done.failed)) == (6, 0)
    carry_out(plan, tmp_path / "one", Engine())
    assert contents(tmp_path / "results") == contents(tmp_path / "one")


def test_what_another_machine_writes_is_not_removed_by_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is being written there looks an hour old, or an hour young; one of yesterday was
    left behind."""
    store = Store(tmp_path)
    store.put({"seed": 0}, {"a": {"b": np.zeros(1)}})
    part, now = tmp_path / "runs" / ".x.part", time.time()
    for apart, kept in ((3600, True), (-3600, True), (25 * 3600, False)):
        part.touch()
        monkeypatch.setattr(time, "time", lambda apart=apart: now + apart)
        Store(tmp_path).put({"seed": 1}, {"a": {"b": np.zeros(1)}})
        assert part.exists() == kept


@pytest.mark.slow
def test_kills_at_random_moments() -> None:
    """The short form of benchmarks/kills.py: of a command, a worker or the scheduler, which comes
    back."""
    script = Path(__file__).parents[2] / "benchmarks" / "kills.py"
    done = subprocess.run(
        [sys.executable, script, "--short"],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'lost': 0, 'computed twice': 0, 'different': 0" in done.stdout


def test_shards_are_parts_of_one_plan(plan: Plan, tmp_path: Path) -> None:
    """They do not depend on what is stored already; together they are everything."""
    folders = [tmp_path / str(number) for number in (1, 2)]
    for number, folder in enumerate(folders, 1):
        carry_out(plan, folder, Engine(shard=(number, 2)))
        carry_out(plan, folder, Engine(shard=(number, 2)))
    first, second = (contents(folder) for folder in folders)
    assert not set(first) & set(second)
    assert {*first, *second} == {key for task in plan.tasks(Store(tmp_path)) for key in task.keys}
    said = call("merge", *folders, "--out", tmp_path / "all")
    assert "6 results copied" in said
    assert contents(tmp_path / "all") == first | second
    assert "0 results copied, 6 were there" in call("merge", *folders, "-o", tmp_path / "all")


def test_a_damaged_result_is_not_merged(plan: Plan, tmp_path: Path) -> None:
    carry_out(plan, tmp_path / "one", Engine())
    path = next((tmp_path / "one" / "runs").glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.warns(UserWarning, match="is damaged"):
        said = call("merge", tmp_path / "one", "--out", tmp_path / "all")
    assert "5 results copied" in said
    assert call("merge", tmp_path / "nowhere", "--out", tmp_path / "all", code=1).startswith(
        "Error: "
    )


@pytest.mark.parametrize("text", ["0/4", "5/4", "3", "a/b", "1/0"])
def test_wrong_shards(text: str) -> None:
    with pytest.raises(ValueError, match="such as 3/40"):
        parse_shard(text)


# Queues -------------------------------------------------------------------------------------------


def test_the_job_script_that_slurm_is_given() -> None:
    jobqueue = pytest.importorskip("dask_jobqueue", reason="queues need the extra cluster")
    kind, options = parse_queue("slurm", "partition=gpu,gpus=1,time=2:00,memory=8GB")
    with jobqueue.SLURMCluster(**cluster_options(kind, options), scheduler_options=HOST) as cluster:
        script = cluster.job_script()
    for line in (
        "#SBATCH -p gpu",
        "#SBATCH -t 02:00:00",
        "#SBATCH --gres=gpu:1",
        "#SBATCH --mem=8G",
    ):
        assert line in script
    assert "--resources GPU=1" in script
    assert "--nthreads 1" in script


@pytest.mark.parametrize("kind", ["pbs", "lsf", "sge"])
def test_the_other_queues_take_the_same_options(kind: str) -> None:
    jobqueue = pytest.importorskip("dask_jobqueue", reason="queues need the extra cluster")
    own = cluster_options(*parse_queue(kind, "queue=long,time=2:00"))
    extra = {"lsf_units": "mb"} if kind == "lsf" else {}
    with getattr(jobqueue, f"{kind.upper()}Cluster")(
        **own, **extra, scheduler_options=HOST
    ) as cluster:
        assert "long" in cluster.job_script()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--slurm", "partition"), "--slurm takes NAME=VALUE,NAME=VALUE"),
        (("--slurm", "partitions=gpu"), "the nearest is 'partition'"),
        (("--slurm", "time=2"), "time is HOURS:MINUTES, such as 2:00 for two hours, got '2'"),
        (("--slurm", "gpus=none"), "gpus is a whole number, at least 1, got 'none'"),
        (("--queue", "torque:queue=a"), "--queue starts with one of slurm, pbs, lsf, sge"),
        (("--scheduler", "tcp://a:1", "--jobs", "2"), "--jobs are processes of this machine"),
        (("--scheduler", "tcp://a:1", "--slurm", "time=1:00"), "name different places to compute"),
        (("--shard", "9"), "such as 3/40"),
    ],
)
def test_wrong_options_are_sentences(
    plan: Plan, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    said = " ".join(
        call(
            "run", tmp_path / "small.toml", "--out", tmp_path / "results", *options, code=1
        ).split()
    )
    assert said.startswith("Error: ")
    assert sentence in said
