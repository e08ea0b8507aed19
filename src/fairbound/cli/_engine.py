"""What commands that compute share: where they compute, and how they say it. Imported when a
command runs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from threadpoolctl import threadpool_limits  # with scikit-learn

from fairbound.benchmark import _study as study
from fairbound.benchmark._custom_algorithm import load_custom_algorithm
from fairbound.benchmark._engine import Engine, ProgressCallback, failures_in_words, parse_shard
from fairbound.benchmark._environment import describe, usable_cpus
from fairbound.benchmark._job_queues import QUEUES, parse_queue
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._store import Store
from fairbound.benchmark._stored_study import Card, StoredStudy, data_line
from fairbound.benchmark._study import Budget, Study
from fairbound.benchmark._work_log import Failure
from fairbound.cli._printing import console, progress

MAX_DEFAULT_JOBS = 4  # every process holds the data and a copy of torch


def engine_of(
    jobs: int | None,
    scheduler: str | None = None,
    slurm: str | None = None,
    queue: str | None = None,
    shard: str | None = None,
    device: str = "cpu",
) -> Engine:
    """Make an engine from the options of a command."""
    places = {"--scheduler": scheduler, "--slurm": slurm, "--queue": queue}
    given = [name for name, value in places.items() if value is not None]
    if len(given) > 1:
        raise ValueError(
            f"{' and '.join(given)} name different places to compute; give one of them"
        )
    if given and jobs is not None:
        raise ValueError(
            f"--jobs are processes of this machine, and {given[0]} has workers elsewhere; leave"
            " one out"
        )
    several = device == "cpu" and find_spec("distributed") is not None
    return Engine(
        processes=jobs or (min(usable_cpus(), MAX_DEFAULT_JOBS) if several else 1),
        scheduler=scheduler,
        queue=parse_queue("slurm", slurm) if slurm is not None else _other_queue(queue),
        shard=None if shard is None else parse_shard(shard),
    )


def _other_queue(text: str | None) -> tuple[str, dict[str, str]] | None:
    if text is None:
        return None
    kind, _, options = text.partition(":")
    if kind not in QUEUES:
        raise ValueError(
            f"--queue starts with one of {', '.join(QUEUES)}, as in pbs:queue=long; got {text!r}"
        )
    return parse_queue(kind, options)


@contextmanager
def computing(out: Path, device: str = "cpu") -> Iterator[ProgressCallback]:
    """Progress while results are computed into a folder, which notes the system."""
    torch.set_num_threads(1)  # small tensors are slower on more; several processes use the cores
    # numpy's too: a sum over two threads ends with other bits than that of a worker
    threadpool_limits(1)
    Store(out).note_system(
        describe(datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), device)
    )
    with progress("computing") as advanced:
        yield advanced


def end_with(failed: Sequence[Failure], out: Path) -> None:
    """Raise an error where tasks failed, after everything else is said."""
    if failed:
        raise ValueError(
            f"{failures_in_words(failed)}; tracebacks: fairbound status --out {out} --tracebacks"
        )


def checked_device(device: str, *, here: bool = True) -> str:
    """The device, if it is one of this machine's, or of workers elsewhere."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}; use cpu, cuda or cuda:1") from error
    found = torch.cuda.device_count()
    if here and kind == "cuda" and (torch.device(device).index or 0) >= found:
        raise ValueError(
            f"device {device!r}: this torch ({torch.__version__}) finds {found} NVIDIA devices;"
            " use cpu"
        )
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r}: the benchmark computes on cpu or cuda")
    return device


def planned(
    name: str,
    *,
    folder: Path | None = None,
    source: str | None = None,
    label: str | None = None,
    group: str | None = None,
    seeds: int | None = None,
    splits: int | None = None,
    steps: int | None = None,
    budget: Budget = "paper",
    algorithm: str | None = None,
    device: str = "cpu",
    recompute: bool = False,
) -> Plan:
    """The plan of a study, with the options of a command."""
    whole = study.load_study(name)
    chosen = whole.within(budget) if whole.page == "report" else whole
    if any(option is not None for option in (folder, source, label, group)):
        chosen = chosen.on(source=source, label=label, group=group, folder=folder)
    if algorithm is not None:
        chosen = chosen.with_entries([chosen.custom_entry(load_custom_algorithm(algorithm))])
    chosen = with_options(chosen, seeds=seeds, splits=splits, steps=steps)
    return Plan(chosen, device=device, recompute=recompute, whole_seeds=whole.seeds)


def with_options(study: Study, **options: Any) -> Study:
    """Options that are given replace the study's keys."""
    return replace(
        study, **{option: value for option, value in options.items() if value is not None}
    )


def announce(stored: Sequence[StoredStudy]) -> None:
    """The data, real or synthetic, and what is run on them."""
    cards = [card for one in stored for card in one.cards]
    announce_data(cards)
    left_out = [card.data for card in cards if card.data != card.source]  # rows, and why
    for words in dict.fromkeys([*(one.title for one in stored), *left_out]):
        console().print(escape(words), highlight=False)


def announce_data(cards: Sequence[Card]) -> None:
    """Print the first line of every command that computes or reports."""
    style = "bold yellow" if any(card.synthetic for card in cards) else "bold"
    console().print(escape(data_line(cards)), style=style, highlight=False)
