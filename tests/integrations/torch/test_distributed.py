"""Two processes on half of the rows each are one process on all of them.

Both processes run everything once (this file, as a script), and the tests compare what they left.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from loops import (
    F64,
    MULTIPLIERS,
    ONE_DRAW,
    ONE_GRADIENT,
    flat,
    knowledge,
    rows_of,
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
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairbound import constraints
from fairbound.algorithms import SSLALM, AdaptivePI, DescentAscent
from fairbound.core import Algorithm, MultiplierMethod


class Loop(processes.Loop):
    """In two processes with `DistributedDataParallel`."""

    def __init__(self, method: Algorithm[Any], rank: int | None, view: bool = False) -> None:
        self.view = view
        super().__init__(method, rank)

    def distributed(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, gradient_as_bucket_view=self.view)

    def unsynchronized(self) -> AbstractContextManager[Any]:
        assert isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync()


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


def empty(rank: int | None) -> dict[str, Any]:
    """A process without any row takes part all the same."""
    loop = Loop(DescentAscent(), rank)
    numbers = torch.arange(0) if rank == 1 else torch.arange(24)
    loop.fair.backward(rows_of(loop.model, WHO, numbers))
    loop.optimizer.step()
    return loop.end()


def compiled(rank: int | None) -> dict[str, Any]:
    """Two steps of a model that was compiled after it was distributed, the order that torch
    recommends."""
    loop = Loop(DescentAscent(), rank)
    if rank is not None:
        loop.model = torch.compile(loop.model, backend="eager")  # type: ignore[assignment]
        loop.begin(loop.model)
    return loop.run(0, 2)


def saved(rank: int) -> dict[str, Any]:
    """The method's state after a step, for a loop that is not distributed."""
    loop = Loop(SSLALM(samples=1), rank)
    loop.run(0, 1)
    return loop.fair.state_dict()


def many(kind: str, rank: int | None) -> dict[str, Any]:
    """Every person is a group of very many: the processes show different ones."""
    loop = Loop(DescentAscent(eta=0.5), rank)
    limit = (
        constraints.bounded_group_loss(300, bound=0.3)
        if kind == "each"
        else constraints.loss_parity(300, bound=0.1)
    )
    loop.begin(loop.model, limit)
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
            held_back = part == 0 and rank is not None
            with loop.unsynchronized() if held_back else nullcontext():
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


def spoilt(method: Algorithm[Any], kind: str, rank: int | None) -> dict[str, Any]:
    """What one process finds spoilt both leave out."""
    return Loop(method, rank).run(spoilt=SPOILT[kind])


# What the two processes run, and one process: ten steps in float64, where sums and counts are
# reduced, not means. Gradients may be views of buckets.
CASES: dict[str, Callable[[int | None], dict[str, Any]]] = (
    {f"whole, {name}": lambda rank, m=m: Loop(m, rank).run() for name, m in ONE_GRADIENT.items()}  # type: ignore[misc]
    | {f"view, {name}": lambda rank, m=m: Loop(m, rank, True).run() for name, m in SOME.items()}  # type: ignore[misc]
    | {
        f"accumulated, {name}": lambda rank, m=m: Loop(m, rank).accumulated()  # type: ignore[misc]
        for name, m in ONE_DRAW.items()
    }
    | {f"shared, {name}": lambda rank, m=m: Loop(m, rank).shared() for name, m in SHARED.items()}  # type: ignore[misc]
    | {f"spoilt {kind}, {n}": partial(spoilt, m, kind) for n, m in SOME.items() for kind in SPOILT}
    | {f"many groups, {kind}": partial(many, kind) for kind in ("each", "against the mean")}
    | {f"by loss, {kind}": partial(by_loss, kind) for kind in ("wrapped", "prepared")}
    | {"without rows": empty, "compiled": compiled}
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return two_processes(__file__, tmp_path_factory.mktemp("processes"))


def test_a_race_is_absent_from_one_process() -> None:
    first, second = drawn(DescentAscent(), 0)[0]
    assert sorted(WHO.race[first].unique().tolist()) == [0, 1]
    assert 2 in WHO.race[second]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(case: str, found: list[dict[str, Any]]) -> None:
    ends = [own[case] for own in found]
    assert [end.get("skipped", 0) for end in ends] == [int(case.startswith("spoilt"))] * 2
    assert_one_process_would(ends, CASES[case](None))


def test_a_state_is_not_of_its_wrapper(found: list[dict[str, Any]]) -> None:
    """What two processes saved one process can load: parameters are named without `module.`."""
    loop, other = Loop(SSLALM(samples=1), None), Loop(SSLALM(samples=1), None)
    loop.fair.load_state_dict(found[0]["saved"])
    other.run(0, 1)
    assert all(
        torch.allclose(a, b, atol=1e-12)
        for a, b in zip(knowledge(loop.fair), knowledge(other.fair), strict=True)
    )


@pytest.mark.parametrize("name", GENERAL)
def test_what_cannot_be_reduced_is_a_sentence(name: str, found: list[dict[str, Any]]) -> None:
    kind = type(GENERAL[name]).__name__
    for sentence in found[0]["refused"][name]:
        assert f"{kind} takes its gradients one by one, which processes cannot reduce" in sentence
        assert "use one that takes one gradient a step, such as DescentAscent or SSLALM" in sentence


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    own = CASES | {"saved": saved, "refused": refused}  # type: ignore[operator]
    in_process(rank, folder, lambda: {name: case(rank) for name, case in own.items()})
