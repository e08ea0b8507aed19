"""What the tests of distributed loops share: a script in two processes, and the rows that each of
them sees."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import F64, people, surroundings
from torch import Tensor, distributed

from fairbound import MiniBatch
from fairbound.core import Algorithm

WHO = people()
STEPS = 10
HALVES = (20, 12)  # rows of the two processes


def drawn(method: Algorithm[Any], k: int) -> list[list[Tensor]]:
    """For every draw of step k the rows of both processes: race 2 is absent from the first one."""
    generator = torch.Generator().manual_seed(k)
    without, anybody = (WHO.race < 2).nonzero().flatten(), torch.arange(120)
    return [
        [
            pool[torch.randint(pool.numel(), (size,), generator=generator)]
            for pool, size in zip((without, anybody), HALVES, strict=True)
        ]
        for _ in range(method.draws)
    ]


def own_rows(halves: list[Tensor], rank: int | None) -> Tensor:
    """A process's rows; all of them, where there is one process."""
    return torch.cat(halves) if rank is None else halves[rank]


def spoilt_loss(rows: MiniBatch) -> MiniBatch:
    return rows._replace(losses=rows.losses * torch.nan)


def spoilt_gradient(rows: MiniBatch) -> MiniBatch:
    assert rows.outputs is not None
    return rows._replace(losses=rows.losses + (0 * rows.outputs).sqrt())


SPOILT = {"loss": spoilt_loss, "gradient": spoilt_gradient}


def told(call: Callable[[], object]) -> str:
    """The sentence that a call is refused with."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing"


def in_process(rank: int, folder: Path, compute: Callable[[], dict[str, Any]]) -> None:
    """One of the two processes: what it finds goes into the folder."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    torch.save(compute(), folder / f"{rank}.pt")
    distributed.barrier()  # a process that leaves first aborts the other
    distributed.destroy_process_group()


def assert_one_process_would(found: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    """Both processes end where one process on all rows does, with the same model to the bit."""
    for own in found:
        assert torch.allclose(own["model"], alone["model"], rtol=0, atol=1e-12)
        assert own.get("multipliers", {}) == pytest.approx(
            alone.get("multipliers", {}), rel=0, abs=1e-12
        )
        for a, b in zip(own["knows"], alone["knows"], strict=True):
            assert torch.allclose(a.to(F64), b.to(F64), rtol=0, atol=1e-12)
    assert torch.equal(found[0]["model"], found[1]["model"])


def two_processes(script: str, folder: Path) -> list[dict[str, Any]]:
    """What two processes of a script found; they are given ten minutes."""
    logs = [folder / f"{rank}.log" for rank in (0, 1)]
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(folder)],
            env=surroundings(),
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
        )
        for rank, log in enumerate(logs)
    ]
    until = time.monotonic() + 600
    try:
        ends = [process.wait(max(0.1, until - time.monotonic())) for process in running]
    except subprocess.TimeoutExpired:
        pytest.fail("the processes hang:\n" + "\n".join(log.read_text()[-2000:] for log in logs))
    finally:
        for process in running:
            process.kill()
    assert ends == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
