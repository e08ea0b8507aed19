"""A loop that was saved goes on in a fresh process as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import (
    LR,
    flat,
    knowledge,
    network,
    numbers_for,
    people,
    rows_of,
    same,
    seeded,
    step,
    surroundings,
    tensors,
    three_constraints,
)
from methods import IN_A_LOOP as METHODS
from torch import nn

from fairbound import Constrained, constraints
from fairbound.algorithms import SSLALM, DescentAscent, SwitchingSubgradient
from fairbound.core import Algorithm

WHO = people()
SEED = 5


class Loop:
    """Model, optimizer and method, all of which a checkpoint holds."""

    def __init__(self, method: Algorithm[Any], backwards: bool = False) -> None:
        self.method, self.model = method, network()
        own = three_constraints()
        self.fair = Constrained(
            self.model, dict(reversed(own.items())) if backwards else own, method, seed=SEED
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=0.9)

    def run(self, first: int, last: int) -> None:
        for k in range(first, last):
            generator = torch.Generator().manual_seed(k)
            if self.method.batch_size_probs is None:
                step(
                    self.fair,
                    self.optimizer,
                    self.model,
                    WHO,
                    numbers_for(self.method, 1, WHO, seed=k)[0],
                )
                continue
            self.optimizer.zero_grad()
            self.fair.backward_closure(
                lambda size, generator=generator: rows_of(  # type: ignore[misc]
                    self.model, WHO, torch.randint(120, (24 * size,), generator=generator)
                )
            )
            self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {part: getattr(self, part).state_dict() for part in ("model", "optimizer", "fair")}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        for part in ("model", "optimizer", "fair"):
            getattr(self, part).load_state_dict(kept[part])

    def end(self) -> dict[str, Any]:
        """What two runs are compared by; constraints by name."""
        self.fair.load_output()
        return {
            "model": flat(self.model),
            "knows": knowledge(self.fair),
            "multipliers": self.fair.multipliers,
        }


def resume(folder: Path, backwards: bool) -> None:
    """In a fresh process: the second half of every method's run."""
    ends = {}
    for name, kept in torch.load(folder / "half.pt", weights_only=True).items():
        loop = Loop(METHODS[name], backwards)
        loop.load_state_dict(kept)
        loop.run(10, 20)
        ends[name] = loop.end()
    torch.save(ends, folder / f"end {backwards}.pt")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """Every method's run, resumed in fresh processes: with the limits in their order, and in the
    other one."""
    folder = tmp_path_factory.mktemp("resumed")
    halves = {}
    for name, method in METHODS.items():
        loop = Loop(method)
        loop.run(0, 10)
        halves[name] = loop.state_dict()
    torch.save(halves, folder / "half.pt")
    code = "import sys, pathlib, torch, test_state_dict as t; torch.set_num_threads(1); "
    code += "[t.resume(pathlib.Path(sys.argv[1]), backwards) for backwards in (False, True)]"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        check=True,
        env=surroundings(PYTHONHASHSEED="4321"),
        timeout=600,
    )
    return {
        backwards: torch.load(folder / f"end {backwards}.pt", weights_only=True)
        for backwards in (False, True)
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_is_the_whole_one_bit_for_bit(
    name: str, resumed: dict[bool, dict[str, Any]]
) -> None:
    """20 steps = 10, saved, a fresh process, 10 more: three limits, told by name."""
    loop = Loop(METHODS[name])
    loop.run(0, 20)
    whole, end = loop.end(), resumed[False][name]
    assert torch.equal(whole["model"], end["model"])
    assert same(whole["knows"], end["knows"])
    assert whole["multipliers"] == end["multipliers"]


@pytest.mark.parametrize("name", METHODS)
def test_limits_may_be_listed_in_another_order(
    name: str, resumed: dict[bool, dict[str, Any]]
) -> None:
    """A multiplier is its constraint's, wherever that stands; sums over them are added up in
    another order."""
    whole, end = resumed[False][name], resumed[True][name]
    assert not whole["multipliers"] or [*whole["multipliers"]] != [*end["multipliers"]]
    assert torch.allclose(whole["model"], end["model"], rtol=0, atol=1e-12)
    assert whole["multipliers"] == pytest.approx(end["multipliers"], rel=0, abs=1e-12)
    for a, b in zip(whole["knows"], end["knows"], strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_the_second_half_is_worth_something(resumed: dict[bool, dict[str, Any]]) -> None:
    """The runs above differ by method and went on after they were saved."""
    ends = {name: end["model"] for name, end in resumed[False].items()}
    for name, method in METHODS.items():
        loop = Loop(method)
        loop.run(0, 10)
        assert not torch.equal(loop.end()["model"], ends[name])
    assert not torch.equal(ends["DescentAscent"], ends["SSLALM"])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_loading_shares_nothing_with_its_source(method: Algorithm[Any]) -> None:
    first, second = Loop(method), Loop(method)
    first.run(0, 3)
    kept = first.fair.state_dict()
    before = [leaf.clone() for leaf in tensors(kept)]
    second.fair.load_state_dict(kept)
    first.run(3, 6)
    second.run(3, 6)
    assert same(before, tensors(kept))
    for leaf in tensors(kept):
        leaf.fill_(77.0)
    third = Loop(method)
    third.fair.load_state_dict(second.fair.state_dict())
    assert same(knowledge(second.fair), knowledge(third.fair))
    assert not any(
        (leaf == 77.0).any() for leaf in (*knowledge(first.fair), *knowledge(second.fair))
    )


def test_a_loop_that_has_not_begun_can_be_saved() -> None:
    first, second = Loop(SSLALM()), Loop(SSLALM())
    second.load_state_dict(first.state_dict())
    first.run(0, 3)
    second.run(0, 3)
    assert torch.equal(flat(first.model), flat(second.model))


def test_the_trend_is_saved() -> None:
    """The sign of an infeasible problem is seen after a resumption as well."""
    model = network()
    limit = constraints.bounded_group_loss(3, bound=0.01, by="race")
    fair = Constrained(model, limit, DescentAscent(eta=0.1))
    for _ in range(30):
        step(fair, torch.optim.SGD(model.parameters(), lr=LR), model, WHO, torch.arange(120)[None])
    other = Constrained(network(), limit, DescentAscent(eta=0.1))
    other.load_state_dict(fair.state_dict())
    assert fair.infeasible is not None
    assert other.infeasible == fair.infeasible


def test_what_was_skipped_is_saved() -> None:
    model = network()
    fair = Constrained(
        model, constraints.bounded_group_loss(3, bound=0.3, by="race"), DescentAscent()
    )
    with pytest.warns(RuntimeWarning, match="skipped"):
        fair.backward(model(WHO.X)[:, 0] * torch.nan, {"race": WHO.race})
    other = Constrained(
        network(), constraints.bounded_group_loss(3, bound=0.3, by="race"), DescentAscent()
    )
    other.load_state_dict(fair.state_dict())
    assert other.skipped == 1


# What does not fit --------------------------------------------------------------------------------


def saved(method: Algorithm[Any]) -> dict[str, Any]:
    loop = Loop(method)
    loop.run(0, 1)
    return loop.fair.state_dict()


def test_a_state_of_another_method_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"saved.*SSLALM.*DescentAscent"):
        Loop(DescentAscent()).fair.load_state_dict(saved(SSLALM()))


@pytest.mark.parametrize("method", [SSLALM(), SwitchingSubgradient()])
def test_a_state_without_a_constraint_is_a_sentence(method: Algorithm[Any]) -> None:
    other: dict[str, Any] = {
        "sex": constraints.demographic_parity(["f", "m"], bound=0.03, by="sex"),
        "weights": constraints.weight_norm(1.0),
    }
    fair = Constrained(network(), other, method)
    with pytest.raises(ValueError, match=r"'weights: weight norm <= 1'.*\['norm: "):
        fair.load_state_dict(saved(method))


@pytest.mark.parametrize("method", [SSLALM(), SwitchingSubgradient()])
def test_a_state_of_another_model_is_a_sentence(method: Algorithm[Any]) -> None:
    for model in (
        seeded(lambda: nn.Linear(4, 1)).double(),
        seeded(lambda: nn.Sequential(nn.Linear(4, 1))).double(),
    ):
        fair = Constrained(model, three_constraints(), method)
        with pytest.raises(ValueError, match=r"another model: .*differ"):
            fair.load_state_dict(saved(method))
        assert fair.state_dict()["state"] is None
        assert fair.steps == 0
