"""What the tests of distributed loops share: a script in two processes, and the rows that each of them sees."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import people, surroundings
from torch import Tensor

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
        [pool[torch.randint(pool.numel(), (size,), generator=generator)] for pool, size in zip((without, anybody), HALVES, strict=True)]  # noqa: E501
        for _ in range(method.draws)
    ]  # fmt: skip


def own_rows(halves: list[Tensor], rank: int | None) -> Tensor:
    """A process's rows; all of them, where there is one process."""
    return torch.cat(halves) if rank is None else halves[rank]


def spoilt_loss(rows: MiniBatch) -> MiniBatch:
    return rows._replace(losses=rows.losses * torch.nan)


def spoilt_gradient(rows: MiniBatch) -> MiniBatch:
    assert rows.outputs is not None
    return rows._replace(losses=rows.losses + (0 * rows.outputs).sqrt())


def told(call: Callable[[], object]) -> str:
    """The sentence that a call is refused with."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing"


def two_processes(script: str, folder: Path) -> list[dict[str, Any]]:
    """What two processes of a script found; they are given ten minutes."""
    logs = [folder / f"{rank}.log" for rank in (0, 1)]
    running = [
        subprocess.Popen([sys.executable, script, str(rank), str(folder)], env=surroundings(), stdout=log.open("w"), stderr=subprocess.STDOUT)  # noqa: E501
        for rank, log in enumerate(logs)
    ]  # fmt: skip
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
