"""Workers as jobs of a cluster's queue, through dask-jobqueue: Slurm, PBS, LSF, SGE.

`--slurm partition=gpu,gpus=1,time=2:00,jobs=8` starts 8 jobs of one worker each, for two hours at
most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fairbound._utils.optional import need
from fairbound.benchmark._user_files import known_name

QUEUES = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster", "sge": "SGECluster"}
GPU_DIRECTIVES = {
    "slurm": "--gres=gpu:{}",
    "pbs": "-l ngpus={}",
    "lsf": "-gpu num={}",
    "sge": "-l gpu={}",
}
OPTIONS = {
    "partition": "queue",
    "queue": "queue",
    "account": "account",
    "memory": "memory",
    "time": "walltime",
    "interface": "interface",
}  # ours, and what dask-jobqueue calls them
OURS = ("jobs", "gpus", "cores")
USUAL = {"jobs": "4", "cores": "1", "memory": "4GB", "time": "1:00"}
TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")


def parse_queue(kind: str, text: str) -> tuple[str, dict[str, str]]:
    """
    >>> parse_queue("slurm", "partition=gpu,gpus=1,time=2:00")
    ('slurm', {'partition': 'gpu', 'gpus': '1', 'time': '2:00'})
    """
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise ValueError(
                f"--{kind} takes NAME=VALUE,NAME=VALUE, such as partition=gpu,time=2:00; got"
                f" {part!r}"
            )
        found[known_name(name.strip(), [*OPTIONS, *OURS], f"option of --{kind}")] = value.strip()
    for name in OURS:
        if name in found and not (found[name].isdigit() and int(found[name]) >= 1):
            raise ValueError(f"--{kind}: {name} is a whole number, at least 1, got {found[name]!r}")
    cluster_options(kind, found)
    return kind, found


def queue_cluster(kind: str, options: Mapping[str, str]) -> Any:
    """A Dask cluster whose workers are waiting in the queue."""
    jobqueue = need("dask_jobqueue", "cluster", f"--{kind}")
    cluster = getattr(jobqueue, QUEUES[kind])(**cluster_options(kind, options))
    cluster.scale(jobs=int(options.get("jobs", USUAL["jobs"])))
    return cluster


def cluster_options(kind: str, options: Mapping[str, str]) -> dict[str, Any]:
    """What dask-jobqueue is given: one worker of one thread in every job.

    >>> cluster_options("slurm", {"gpus": "1", "time": "2:00"})["job_extra_directives"]
    ['--gres=gpu:1']
    """
    whole = USUAL | dict(options)
    made: dict[str, Any] = {
        OPTIONS[name]: value for name, value in whole.items() if name in OPTIONS
    }
    made |= {"walltime": _hours(whole["time"]), "cores": int(whole["cores"]), "processes": 1}
    made["worker_extra_args"] = ["--nthreads", "1"]
    if "gpus" in whole:
        made["job_extra_directives"] = [GPU_DIRECTIVES[kind].format(whole["gpus"])]
        made["worker_extra_args"] += ["--resources", "GPU=1"]
    return made


def _hours(text: str) -> str:
    """Write a time as queues write it.

    >>> _hours("2:00"), _hours("1-12:30:00")
    ('02:00:00', '1-12:30:00')
    """
    found = TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"time is HOURS:MINUTES, such as 2:00 for two hours, got {text!r}")
    days, hours, minutes, seconds = found.groups(default="")
    return f"{days}{'-' if days else ''}{int(hours):02}:{minutes}:{seconds or '00'}"
