"""Two processes that each hold half of every parameter (FSDP2) are one process on all rows.

As in `test_distributed`: both processes run everything once (this file, as a script), and the tests
compare.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from loops import LR, rows_of, three_constraints
from processes import (
    SPOILT,
    WHO,
    assert_one_process_would,
    in_process,
    told,
    two_processes,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from fairbound import Constrained, MiniBatch
from fairbound.algorithms import (
    SSLALM,
    AdaptivePI,
    DescentAscent,
    Penalty,
    StochasticGhost,
    SwitchingSubgradient,
)
from fairbound.core import Algorithm

pytestmark = pytest.mark.skipif(
    torch.__version__ < "2.7", reason="torch 2.6 has no FSDP2 for the CPU"
)

METHODS: dict[str, Algorithm[Any]] = {
    "AdaptivePI": AdaptivePI(),
    "DescentAscent": DescentAscent(),
    "Penalty": Penalty(),
    "SSLALM, one draw": SSLALM(samples=1),
    "SSLALM": SSLALM(),
}
# AdaptivePI measures at certain steps, which a step that is skipped or held back moves: other
# numbers, the same method.
ONE = {
    name: method for name, method in METHODS.items() if method.draws == 1 and name != "AdaptivePI"
}


class Loop(processes.Loop):
    """In two processes that each hold half of every parameter."""

    def __init__(self, method: Algorithm[Any], rank: int | None, mesh: Any = None) -> None:
        self.mesh = mesh
        super().__init__(method, rank)

    def distributed(self, model: nn.Module) -> nn.Module:
        fully_shard(model[0], mesh=self.mesh)  # type: ignore[index]
        fully_shard(model, mesh=self.mesh)
        return model

    @contextmanager
    def unsynchronized(self) -> Iterator[None]:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(False)
        yield
        self.model.set_requires_gradient_sync(True)

    def spoilt(self, kind: str) -> dict[str, Any]:
        """With a step at which the second process finds something not finite, or, as a piece, the
        gradient that it holds of one parameter."""
        if kind != "piece":
            return self.run(spoilt=SPOILT[kind])
        bias = dict(self.inner.named_parameters())["0.bias"]

        def with_a_hook(rows: MiniBatch) -> MiniBatch:
            hooks.append(bias.register_post_accumulate_grad_hook(spoil_piece))
            return rows

        def spoil_piece(p: Any) -> None:
            p.grad.to_local().fill_(torch.nan)
            hooks.pop().remove()

        hooks: list[Any] = []
        return self.run(spoilt=with_a_hook)


def resumed(rank: int | None) -> dict[str, Any]:
    """Half of the steps, saved by each process in its pieces, the rest in a new loop."""
    first, second = Loop(SSLALM(samples=1), rank), Loop(SSLALM(samples=1), rank)
    first.run(0, 4)
    file = io.BytesIO()
    torch.save((first.model.state_dict(), first.fair.state_dict()), file)
    file.seek(0)
    model, fair = torch.load(file, weights_only=True)
    second.model.load_state_dict(model)
    second.fair.load_state_dict(fair)
    return second.run(4)


def from_one_process(rank: int | None) -> dict[str, Any]:
    """What one process saved, whole, goes on in two."""
    alone, both = Loop(SSLALM(samples=1), None), Loop(SSLALM(samples=1), rank)
    alone.run(0, 4)
    if rank is None:
        return alone.run(4)
    for p, q in zip(both.model.parameters(), alone.model.parameters(), strict=True):
        p.data.copy_(distribute_tensor(q.data, p.device_mesh, p.placements))  # type: ignore[attr-defined]
    both.fair.load_state_dict(alone.fair.state_dict())
    return both.run(4)


def refused(rank: int) -> list[str]:
    held_back = Loop(SSLALM(samples=1), rank)
    assert isinstance(held_back.model, FSDPModule)
    held_back.model.set_requires_gradient_sync(False)
    loop = Loop(DescentAscent(), rank)
    loop.backward(0)
    data = [torch.arange(24)]
    return [
        told(lambda: Loop(StochasticGhost(), rank)),
        told(lambda: Loop(SwitchingSubgradient(), rank)),
        told(lambda: held_back.backward(0)),
        told(lambda: Constrained(loop.model.parameters(), three_constraints(), DescentAscent())),
        told(lambda: loop.fair.report(data, lambda numbers: rows_of(loop.model, WHO, numbers))),
    ]


def hybrid(rank: int | None) -> dict[str, Any]:
    """Replicated in both processes and sharded (2 x 1): statistics are reduced over both."""
    names = ("replicate", "shard")
    mesh = None if rank is None else init_device_mesh("cpu", (2, 1), mesh_dim_names=names)
    return Loop(DescentAscent(), rank, mesh).run()


def tensor_parallel(rank: int | None) -> dict[str, Any]:
    """With the same rows in both processes, over which nothing is reduced."""
    loop = Loop(SSLALM(samples=1), None)
    if rank is not None:
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(loop.model, mesh["tensor"], plan)
        fully_shard(loop.model, mesh=mesh["data"])
        loop.begin(loop.model)
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=LR, foreach=False)
    return loop.run()


# What the two processes run, and one process: ten steps in float64; one process never sees the
# third race.
CASES: dict[str, Callable[[int | None], dict[str, Any]]] = (
    {f"whole, {name}": lambda rank, m=m: Loop(m, rank).run() for name, m in METHODS.items()}  # type: ignore[misc]
    | {f"accumulated, {n}": lambda rank, m=m: Loop(m, rank).accumulated() for n, m in ONE.items()}  # type: ignore[misc]
    | {
        f"shared, {n}": lambda rank, m=m: Loop(m, rank).shared(not isinstance(m, SSLALM))  # type: ignore[misc]
        for n, m in ONE.items()
    }
    | {
        f"spoilt {kind}, {n}": lambda rank, m=m, kind=kind: Loop(m, rank).spoilt(kind)  # type: ignore[misc]
        for n, m in ONE.items()
        for kind in (*SPOILT, "piece")
    }
    | {"resumed": resumed, "from one process": from_one_process}
    | {"hybrid": hybrid, "tensor parallel": tensor_parallel}
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return two_processes(__file__, tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_with_half_of_the_parameters_are_one(
    case: str, found: list[dict[str, Any]]
) -> None:
    ends = [own[case] for own in found]
    assert [end["skipped"] for end in ends] == [int(case.startswith("spoilt"))] * 2
    assert_one_process_would(ends, CASES[case](None))


def test_what_needs_whole_vectors_is_a_sentence(found: list[dict[str, Any]]) -> None:
    ghost, norm, held_back, parameters, report = found[0]["refused"]
    assert (
        "StochasticGhost needs whole vectors, and the parameters are spread over processes" in ghost
    )
    assert "SwitchingSubgradient needs whole vectors" in norm
    assert (
        "(FSDP, DTensor); use one that takes one gradient a step, such as DescentAscent or SSLALM"
        in norm
    )
    assert "set_requires_gradient_sync(False)" in held_back
    assert "give Constrained the module itself" in parameters
    assert "a report needs gradients beside `.grad`" in report


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    own = CASES | {"refused": refused}  # type: ignore[operator]
    in_process(rank, folder, lambda: {name: case(rank) for name, case in own.items()})
