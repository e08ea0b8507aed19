"""What the tests of distributed loops share: a script in two processes, and the rows that each of
them sees."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import (
    F64,
    LR,
    knowledge,
    network,
    people,
    rows_of,
    surroundings,
    three_constraints,
)
from torch import Tensor, distributed, nn

from fairbound import Constrained, MiniBatch
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
        for a, b in zip(own["knows"], alone["knows"], strict=True):
            assert torch.allclose(a.to(F64), b.to(F64), rtol=0, atol=1e-12)
    assert torch.equal(found[0]["model"], found[1]["model"])


class Loop:
    """Steps of a method, in one of two processes (rank) or alone (None)."""

    def __init__(self, method: Algorithm[Any], rank: int | None) -> None:
        self.method, self.rank, self.inner = method, rank, network()
        self.model = self.inner if rank is None else self.distributed(self.inner)
        self.begin(self.model)

    def distributed(self, model: nn.Module) -> nn.Module:
        raise NotImplementedError

    def unsynchronized(self) -> AbstractContextManager[Any]:
        """Inside of it gradients are not reduced."""
        raise NotImplementedError

    def begin(self, model: nn.Module, limits: Any = None) -> None:
        self.fair = Constrained(model, limits or three_constraints(), self.method, seed=2)
        self.optimizer = torch.optim.SGD(self.inner.parameters(), lr=LR)

    def rows(self, halves: list[Tensor]) -> MiniBatch:
        return rows_of(self.model, WHO, own_rows(halves, self.rank))

    def backward(self, k: int, spoil: Any = None, **options: Any) -> bool:
        draws = drawn(self.method, k)
        with torch.no_grad():
            further = [self.rows(halves) for halves in draws[1:]]
        rows = self.rows(draws[0])
        return self.fair.backward(
            rows if spoil is None else spoil(rows), extra_batches=further, **options
        ).skipped

    def run(self, first: int = 0, last: int = STEPS, spoilt: Any = None) -> dict[str, Any]:
        """Steps; of two processes, a fourth one that only the second finds not finite."""
        for k in range(first, last):
            self.optimizer.zero_grad()
            self.backward(k)
            self.optimizer.step()
            if k == 3 and spoilt is not None and self.rank is not None:
                self.optimizer.zero_grad()
                assert self.backward(77, spoilt if self.rank == 1 else None)
                self.optimizer.step()
        return self.end()

    def accumulated(self) -> dict[str, Any]:
        """The same over two mini-batches a process, of which only the last is reduced."""
        if self.rank is None:
            return self.run()
        for k in range(STEPS):
            self.optimizer.zero_grad()
            numbers = own_rows(drawn(self.method, k)[0], self.rank)
            parts = numbers.split([numbers.numel() - 5, 5])
            for part in parts:
                with torch.no_grad():
                    self.fair.accumulate(rows_of(self.model, WHO, part))
            with self.unsynchronized():
                self.fair.backward(rows_of(self.model, WHO, parts[0]))
            self.fair.backward(rows_of(self.model, WHO, parts[1]))
            self.optimizer.step()
        return self.end()

    def shared(self, held_back: bool = True) -> dict[str, Any]:
        """A step over two mini-batches, each of which moves the multipliers; the first is held
        back if it may be."""
        with self.unsynchronized() if held_back and self.rank is not None else nullcontext():
            self.backward(0, scale=0.5)
        self.backward(1, scale=0.5)
        self.optimizer.step()
        return self.end()

    def end(self) -> dict[str, Any]:
        self.fair.load_output()
        return {
            "model": torch.cat([whole(p.detach()).flatten() for p in self.inner.parameters()]),
            "knows": [whole(part) for part in knowledge(self.fair)],
            "skipped": self.fair.skipped,
        }


def whole(tensor: Any) -> Tensor:
    """Of a parameter, or of what is kept of it, that is spread over processes."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


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
