"""Two processes that each hold half of every parameter (FSDP2) are one process on all rows.

As in `test_distributed`: both processes run everything once (this file, as a script), and the tests
compare.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import LR, network, rows_of, tensors, three_constraints
from processes import (
    SPOILT,
    STEPS,
    WHO,
    assert_one_process_would,
    drawn,
    in_process,
    own_rows,
    told,
    two_processes,
)
from torch import Tensor
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


KINDS = SPOILT | {"piece": lambda rows: rows}


def spoil_piece(p: Any) -> None:
    p.grad.to_local().fill_(torch.nan)


class Loop:
    """Steps of a method, in one of two processes (rank) or alone (None)."""

    def __init__(self, method: Algorithm[Any], rank: int | None, mesh: Any = None) -> None:
        self.method, self.rank, self.model = method, rank, network()
        if rank is not None:
            fully_shard(self.model[0], mesh=mesh)  # type: ignore[index]
            fully_shard(self.model, mesh=mesh)
        self.fair = Constrained(self.model, three_constraints(), method, seed=2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)

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

    def run(self, first: int, last: int, spoilt: str | None = None) -> dict[str, Any]:
        """Steps; a fourth one that only the second process finds not finite."""
        for k in range(first, last):
            self.optimizer.zero_grad()
            self.backward(k)
            self.optimizer.step()
            if k == 3 and spoilt is not None:
                self.optimizer.zero_grad()
                assert self.spoilt_backward(spoilt)
                self.optimizer.step()
        return self.end()

    def spoilt_backward(self, kind: str) -> bool:
        if self.rank == 0:
            return self.backward(77)
        bias = next(p for name, p in self.model.named_parameters() if name == "0.bias")
        hook = None
        if kind == "piece":  # the gradient that this process holds of one parameter
            hook = bias.register_post_accumulate_grad_hook(spoil_piece)
        skipped = self.backward(77, KINDS[kind])
        if hook is not None:
            hook.remove()
        return skipped

    def accumulated(self) -> dict[str, Any]:
        """Steps over two mini-batches a process, of which only the last is reduced."""
        for k in range(STEPS):
            self.optimizer.zero_grad()
            numbers = own_rows(drawn(self.method, k)[0], self.rank)
            parts = numbers.split([numbers.numel() - 5, 5])
            for part in parts:
                with torch.no_grad():
                    self.fair.accumulate(rows_of(self.model, WHO, part))
            for i, part in enumerate(parts):
                assert isinstance(self.model, FSDPModule)
                self.model.set_requires_gradient_sync(i == 1)
                self.fair.backward(rows_of(self.model, WHO, part))
            self.optimizer.step()
        return self.end()

    def shared(self) -> dict[str, Any]:
        """One step over two mini-batches, each of which moves the multipliers; the first is held
        back if it may be."""
        for k in range(2):
            if isinstance(self.model, FSDPModule) and not isinstance(self.method, SSLALM):
                self.model.set_requires_gradient_sync(k == 1)
            self.backward(k, scale=0.5)
        self.optimizer.step()
        return self.end()

    def end(self) -> dict[str, Any]:
        self.fair.load_output()
        kept = self.fair.state_dict()
        return {
            "model": torch.cat([_whole(p.detach()).flatten() for p in self.model.parameters()]),
            "multipliers": self.fair.multipliers,
            "knows": [_whole(part) for part in tensors([kept["state"], kept["smoothed"]])],
            "skipped": self.fair.skipped,
        }


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def resumed(rank: int, folder: Path) -> dict[str, Any]:
    """Half of the steps, saved by each process, the rest in a new loop."""
    first, second = Loop(SSLALM(samples=1), rank), Loop(SSLALM(samples=1), rank)
    first.run(0, 4)
    torch.save((first.model.state_dict(), first.fair.state_dict()), folder / f"saved {rank}.pt")
    model, fair = torch.load(folder / f"saved {rank}.pt", weights_only=True)
    second.model.load_state_dict(model)
    second.fair.load_state_dict(fair)
    return second.run(4, STEPS)


def from_one_process(rank: int) -> dict[str, Any]:
    """What one process saved, whole, goes on in two."""
    alone, both = Loop(SSLALM(samples=1), None), Loop(SSLALM(samples=1), rank)
    alone.run(0, 4)
    for p, q in zip(both.model.parameters(), alone.model.parameters(), strict=True):
        p.data.copy_(distribute_tensor(q.data, p.device_mesh, p.placements))  # type: ignore[attr-defined]
    both.fair.load_state_dict(alone.fair.state_dict())
    return both.run(4, STEPS)


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


def meshes(rank: int) -> dict[str, Any]:
    """Replicated in both processes (2 x 1); tensor parallel, with the same rows in both."""
    hybrid = Loop(
        DescentAscent(),
        rank,
        init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")),
    )
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    tensor = Loop(SSLALM(samples=1), None)
    parallelize_module(
        tensor.model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    fully_shard(tensor.model, mesh=mesh["data"])
    tensor.fair = Constrained(tensor.model, three_constraints(), tensor.method, seed=2)
    tensor.optimizer = torch.optim.SGD(tensor.model.parameters(), lr=LR, foreach=False)
    return {"hybrid": hybrid.run(0, STEPS), "tensor": tensor.run(0, STEPS)}


def everything(rank: int, folder: Path) -> dict[str, Any]:
    """What one of the two processes runs."""
    return {
        "whole": {name: Loop(method, rank).run(0, STEPS) for name, method in METHODS.items()},
        "accumulated": {name: Loop(method, rank).accumulated() for name, method in ONE.items()},
        "shared": {name: Loop(method, rank).shared() for name, method in ONE.items()},
        "spoilt": {
            f"{name}, {kind}": Loop(method, rank).run(0, STEPS, kind)
            for name, method in ONE.items()
            for kind in KINDS
        },
        "resumed": resumed(rank, folder),
        "from one process": from_one_process(rank),
        "refused": refused(rank),
        **meshes(rank),
    }


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return two_processes(__file__, tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_with_half_of_the_parameters_are_one(
    name: str, processes: list[dict[str, Any]]
) -> None:
    """Ten steps, float64; one process never sees the third race."""
    assert_one_process_would(
        [found["whole"][name] for found in processes], Loop(METHODS[name], None).run(0, STEPS)
    )


@pytest.mark.parametrize("name", ONE)
def test_only_the_last_of_accumulated_mini_batches_is_reduced(
    name: str, processes: list[dict[str, Any]]
) -> None:
    alone = Loop(ONE[name], None).run(0, STEPS)
    assert_one_process_would([found["accumulated"][name] for found in processes], alone)


@pytest.mark.parametrize("name", ONE)
def test_directions_add_up_in_the_pieces(name: str, processes: list[dict[str, Any]]) -> None:
    assert_one_process_would(
        [found["shared"][name] for found in processes], Loop(ONE[name], None).shared()
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ONE)
def test_what_is_not_finite_in_one_piece_all_leave_out(
    name: str, kind: str, processes: list[dict[str, Any]]
) -> None:
    found = [own["spoilt"][f"{name}, {kind}"] for own in processes]
    assert [own["skipped"] for own in found] == [1, 1]
    assert_one_process_would(found, Loop(ONE[name], None).run(0, STEPS))


@pytest.mark.parametrize("how", ["resumed", "from one process"])
def test_a_saved_state_goes_on(how: str, processes: list[dict[str, Any]]) -> None:
    """In the pieces that each process saved, and from whole vectors."""
    assert_one_process_would(
        [found[how] for found in processes], Loop(SSLALM(samples=1), None).run(0, STEPS)
    )


@pytest.mark.parametrize(
    ("mesh", "method"), [("hybrid", DescentAscent()), ("tensor", SSLALM(samples=1))]
)
def test_statistics_are_reduced_over_the_data_dimensions(
    mesh: str, method: Algorithm[Any], processes: list[dict[str, Any]]
) -> None:
    """Replicated and sharded: over both. With a tensor parallel dimension, whose processes see the
    same rows: not."""
    assert_one_process_would([found[mesh] for found in processes], Loop(method, None).run(0, STEPS))


def test_what_needs_whole_vectors_is_a_sentence(processes: list[dict[str, Any]]) -> None:
    ghost, norm, held_back, parameters, report = processes[0]["refused"]
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
    in_process(rank, folder, lambda: everything(rank, folder))
