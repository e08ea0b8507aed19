"""Two processes on half of the rows each are one process on all of them.

Both processes run everything once (this file, as a script), and the tests compare what they left.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import (
    F64,
    LR,
    MULTIPLIERS,
    ONE_DRAW,
    ONE_GRADIENT,
    flat,
    knowledge,
    network,
    rows_of,
    three_constraints,
)
from methods import METHODS
from own_method import Optimistic
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
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairbound import Constrained, MiniBatch, constraints
from fairbound.algorithms import SSLALM, AdaptivePI, DescentAscent
from fairbound.core import Algorithm, MultiplierMethod


class Loop:
    """Ten steps of a method, in one of two processes (rank) or alone (None)."""

    def __init__(self, method: Algorithm[Any], rank: int | None, view: bool = False) -> None:
        self.method, self.rank, self.inner = method, rank, network()
        self.model: nn.Module = self.inner
        if rank is not None:
            self.model = DistributedDataParallel(self.inner, gradient_as_bucket_view=view)
        self.fair = Constrained(self.model, three_constraints(), method, seed=2)
        self.optimizer = torch.optim.SGD(self.inner.parameters(), lr=LR)

    def rows(self, halves: list[Tensor]) -> MiniBatch:
        return rows_of(self.model, WHO, own_rows(halves, self.rank))

    def step(self, k: int, poison_grads: Any = None) -> bool:
        self.optimizer.zero_grad()
        draws = drawn(self.method, k)
        with torch.no_grad():
            further = [self.rows(halves) for halves in draws[1:]]
        rows = self.rows(draws[0])
        skipped = self.fair.backward(
            poison_grads(rows) if poison_grads is not None else rows, extra_batches=further
        ).skipped
        self.optimizer.step()
        return skipped

    def accumulated_step(self, k: int) -> None:
        """The same over two mini-batches a process, of which only the last is synchronized."""
        self.optimizer.zero_grad()
        numbers = own_rows(drawn(self.method, k)[0], self.rank)
        parts = numbers.split([numbers.numel() - 5, 5])
        for part in parts:
            with torch.no_grad():
                rows = rows_of(self.model, WHO, part)
            self.fair.accumulate(rows)
        assert isinstance(self.model, DistributedDataParallel)
        with self.model.no_sync():
            self.fair.backward(rows_of(self.model, WHO, parts[0]))
        self.fair.backward(rows_of(self.model, WHO, parts[1]))
        self.optimizer.step()

    def end(self) -> dict[str, Any]:
        return {
            "model": flat(self.inner),
            "knows": knowledge(self.fair),
            "skipped": self.fair.skipped,
        }


def whole(method: Algorithm[Any], view: bool = False, rank: int | None = None) -> dict[str, Any]:
    loop = Loop(method, rank, view)
    for k in range(STEPS):
        loop.step(k)
    return loop.end()


def accumulated(method: Algorithm[Any], rank: int) -> dict[str, Any]:
    loop = Loop(method, rank)
    for k in range(STEPS):
        loop.accumulated_step(k)
    return loop.end()


SOME: dict[str, Algorithm[Any]] = MULTIPLIERS | {
    "two draws": SSLALM(),
    "a user's own": Optimistic(),
}


GENERAL = {
    name: method for name, method in METHODS.items() if not isinstance(method, MultiplierMethod)
}
SHARED: dict[str, Algorithm[Any]] = {
    "AdaptivePI": AdaptivePI(),
    "descent-ascent": DescentAscent(eta=0.5),
    "SSL-ALM": SSLALM(eta=0.5, samples=1),
}


def spoilt(method: Algorithm[Any], kind: str, rank: int) -> dict[str, Any]:
    """As `whole`, with a fourth step that only the second process finds not finite."""
    loop = Loop(method, rank)
    for k in range(STEPS):
        loop.step(k)
        if k == 3:
            loop.step(77, SPOILT[kind] if rank == 1 else None)
    return loop.end()


def empty(rank: int) -> dict[str, Any]:
    """A process without any row takes part all the same."""
    loop = Loop(DescentAscent(), rank)
    numbers = torch.arange(24) if rank == 0 else torch.arange(0)
    loop.fair.backward(rows_of(loop.model, WHO, numbers))
    loop.optimizer.step()
    return loop.end()


def compiled(rank: int) -> dict[str, Any]:
    """Two steps of a model that was compiled after it was distributed."""
    loop = Loop(DescentAscent(), rank)
    loop.model = torch.compile(loop.model, backend="eager")  # type: ignore[assignment]
    loop.fair = Constrained(loop.model, three_constraints(), DescentAscent(), seed=2)
    for k in range(2):
        loop.step(k)
    return loop.end()


def shared(method: Algorithm[Any], rank: int | None) -> dict[str, Any]:
    """A step over two mini-batches of which each moves the multipliers, the first one held back."""
    loop = Loop(method, rank)
    halves = drawn(method, 0)[0], drawn(method, 1)[0]
    with loop.model.no_sync() if isinstance(loop.model, DistributedDataParallel) else nullcontext():
        loop.fair.backward(loop.rows(halves[0]), scale=0.5)
    loop.fair.backward(loop.rows(halves[1]), scale=0.5)
    loop.optimizer.step()
    return loop.end()


def saved(rank: int) -> dict[str, Any]:
    """The method's state after a step, for a loop that is not distributed."""
    loop = Loop(SSLALM(samples=1), rank)
    loop.step(0)
    return loop.fair.state_dict()


def many(kind: str, rank: int | None) -> dict[str, Any]:
    """Every person is a group of very many: the processes show different ones."""
    loop = Loop(DescentAscent(eta=0.5), rank)
    limit = (
        constraints.bounded_group_loss(300, bound=0.3)
        if kind == "each"
        else constraints.loss_parity(300, bound=0.1)
    )
    loop.fair = Constrained(loop.model, limit, loop.method)
    for k in range(STEPS):
        loop.optimizer.zero_grad()
        numbers = own_rows(drawn(loop.method, k)[0], rank)
        loop.fair.backward(rows_of(loop.model, WHO, numbers)._replace(groups=numbers))
        loop.optimizer.step()
    multipliers = torch.tensor([*loop.fair.multipliers.values()], dtype=F64)
    assert multipliers.max() > 0.1
    return {
        "model": flat(loop.inner),
        "knows": [multipliers, torch.tensor([*loop.fair.ages.values()])],
    }


def by_loss(kind: str, rank: int | None) -> dict[str, Any]:
    """Four windows of two mini-batches through `fair.loss`; race 2 is absent from the first
    process."""
    if kind == "prepared" and rank is not None:  # as a trainer does, which wraps the model later
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop = Loop(DescentAscent(eta=0.3), None)
        loop.model = DistributedDataParallel(loop.inner)
        loop.fair.prepare(loop.model)
    else:
        loop = Loop(DescentAscent(eta=0.3), rank)
    without = (WHO.race < 2).nonzero().flatten()
    for k in range(4):
        for part in range(2):
            halves = [without[torch.arange(15) + k + part], torch.arange(15) + 40 + 8 * k + part]
            held_back = part == 0 and isinstance(loop.model, DistributedDataParallel)
            with loop.model.no_sync() if held_back else nullcontext():  # type: ignore[operator, union-attr]
                (loop.fair.loss(rows_of(loop.model, WHO, own_rows(halves, rank))) / 2).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    return loop.end()


def refused(rank: int) -> dict[str, list[str]]:
    """What general methods are told, at once and where the model is distributed later."""
    sentences = {}
    for name, method in GENERAL.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the model is not distributed
            later = Loop(method, None)
        prepared = DistributedDataParallel(later.inner)
        at_once = told(partial(Loop, method, rank))
        sentences[name] = [at_once, told(partial(later.fair.prepare, prepared))]
    return sentences


def everything(rank: int) -> dict[str, Any]:
    """What one of the two processes runs."""
    return {
        "whole": {name: whole(method, rank=rank) for name, method in ONE_GRADIENT.items()},
        "view": {name: whole(method, True, rank) for name, method in SOME.items()},
        "accumulated": {name: accumulated(method, rank) for name, method in ONE_DRAW.items()},
        "spoilt": {
            f"{name}, {kind}": spoilt(m, kind, rank) for name, m in SOME.items() for kind in SPOILT
        },
        "many": {kind: many(kind, rank) for kind in ("each", "against the mean")},
        "empty": empty(rank),
        "compiled": compiled(rank),
        "shared": {name: shared(method, rank) for name, method in SHARED.items()},
        "by loss": {kind: by_loss(kind, rank) for kind in ("wrapped", "prepared")},
        "saved": saved(rank),
        "refused": refused(rank),
    }


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return two_processes(__file__, tmp_path_factory.mktemp("processes"))


def test_a_race_is_absent_from_one_process() -> None:
    first, second = drawn(DescentAscent(), 0)[0]
    assert sorted(WHO.race[first].unique().tolist()) == [0, 1]
    assert 2 in WHO.race[second]


@pytest.mark.parametrize("name", ONE_GRADIENT)
def test_two_processes_are_one(name: str, processes: list[dict[str, Any]]) -> None:
    """Ten steps, float64, 1e-12: sums and counts are reduced, not means."""
    assert_one_process_would(
        [found["whole"][name] for found in processes], whole(ONE_GRADIENT[name])
    )


@pytest.mark.parametrize("name", SOME)
def test_gradients_may_be_views_of_buckets(name: str, processes: list[dict[str, Any]]) -> None:
    assert_one_process_would([found["view"][name] for found in processes], whole(SOME[name]))


@pytest.mark.parametrize("name", ONE_DRAW)
def test_accumulation_without_synchronization(name: str, processes: list[dict[str, Any]]) -> None:
    """`no_sync` on all but the last mini-batch."""
    assert_one_process_would(
        [found["accumulated"][name] for found in processes], whole(ONE_DRAW[name])
    )


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("name", SOME)
def test_what_one_process_finds_spoilt_both_leave_out(
    name: str, kind: str, processes: list[dict[str, Any]]
) -> None:
    found = [own["spoilt"][f"{name}, {kind}"] for own in processes]
    assert [own["skipped"] for own in found] == [1, 1]
    assert_one_process_would(found, whole(SOME[name]))


@pytest.mark.parametrize("kind", ["each", "against the mean"])
def test_processes_show_different_groups_of_very_many(
    kind: str, processes: list[dict[str, Any]]
) -> None:
    assert_one_process_would([found["many"][kind] for found in processes], many(kind, None))


def test_a_process_without_rows_takes_part(processes: list[dict[str, Any]]) -> None:
    model = network()
    fair = Constrained(model, three_constraints(), DescentAscent())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    fair.backward(rows_of(model, WHO, torch.arange(24)))
    optimizer.step()
    assert_one_process_would(
        [found["empty"] for found in processes], {"model": flat(model), "knows": knowledge(fair)}
    )


def test_a_compiled_distributed_model_is_recognized(processes: list[dict[str, Any]]) -> None:
    """`torch.compile(DistributedDataParallel(model))` is the order that torch recommends."""
    loop = Loop(DescentAscent(), None)
    for k in range(2):
        loop.step(k)
    assert_one_process_would([found["compiled"] for found in processes], loop.end())


@pytest.mark.parametrize("name", SHARED)
def test_a_share_held_back_is_a_share(name: str, processes: list[dict[str, Any]]) -> None:
    """`backward(scale=1/2)` twice, the first inside `no_sync`."""
    assert_one_process_would(
        [found["shared"][name] for found in processes], shared(SHARED[name], None)
    )


@pytest.mark.parametrize("kind", ["wrapped", "prepared"])
def test_a_loss_passed_backward_by_two_processes_is_that_of_one(
    kind: str, processes: list[dict[str, Any]]
) -> None:
    assert_one_process_would([found["by loss"][kind] for found in processes], by_loss(kind, None))


def test_a_state_is_not_of_its_wrapper(processes: list[dict[str, Any]]) -> None:
    """What two processes saved one process can load: parameters are named without `module.`."""
    loop = Loop(SSLALM(samples=1), None)
    loop.fair.load_state_dict(processes[0]["saved"])
    other = Loop(SSLALM(samples=1), None)
    other.step(0)
    assert all(
        torch.allclose(a, b, atol=1e-12)
        for a, b in zip(knowledge(loop.fair), knowledge(other.fair), strict=True)
    )


@pytest.mark.parametrize("name", GENERAL)
def test_what_cannot_be_reduced_is_a_sentence(name: str, processes: list[dict[str, Any]]) -> None:
    kind = type(GENERAL[name]).__name__
    for sentence in processes[0]["refused"][name]:
        assert f"{kind} takes its gradients one by one, which processes cannot reduce" in sentence
        assert "use one that takes one gradient a step, such as DescentAscent or SSLALM" in sentence


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    in_process(rank, folder, lambda: everything(rank))
