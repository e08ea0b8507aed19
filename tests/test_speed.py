"""The contestants of `make speed` are the methods they are called: the same steps on the same rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairbound import SSLALM, Draw, Problem, SwitchingSubgradient
from fairbound.core import Algorithm
from fairbound.fairness import accuracy_equality
from fairbound.modules import functional
from fairbound.sampling import Batch

SPEED = Path(__file__).parent.parent / "benchmarks" / "speed"
if not SPEED.is_dir():
    pytest.skip("the benchmarks are not beside the tests", allow_module_level=True)
sys.path.insert(0, str(SPEED))
import by_hand  # noqa: E402
import setting  # noqa: E402
from measuring import Checks, alternate  # noqa: E402

STEPS = 6


class Given(by_hand.Rows):
    """Rows that are known beforehand."""

    def __init__(self, data: Any, rows: Iterator[Tensor]) -> None:
        super().__init__(data)
        self.rows = rows

    def objective(self, size: int = by_hand.B) -> Tensor:
        return next(self.rows)

    def group(self, g: int, size: int = by_hand.B) -> Tensor:
        return next(self.rows)


def flat(model: torch.nn.Module) -> Tensor:
    return by_hand.flat([p.detach() for p in model.parameters()])


def by_us(method: Algorithm[Any], data: Any, steps: list[list[Batch]]) -> Tensor:
    forward, x = functional(setting.network())
    problem = Problem(forward, setting.row_losses, accuracy_equality(data.groups["group"], bound=setting.BOUND), data)
    state = method.init(x, problem.m)
    for batches in steps:
        samples = [problem.sample(problem.gather(batch, "fc")) for batch in batches]
        d, state = method.update(x, state, Draw.of(*samples))
        x = x + d
    return x


def drawn() -> tuple[Any, list[Tensor], list[list[Tensor]]]:
    """People, for every step the rows of the objective, and those of the groups of two mini-batches."""
    data = setting.people(400)
    rows = by_hand.Rows(data)
    objective = [rows.objective() for _ in range(STEPS)]
    return data, objective, [[rows.group(g) for g in (0, 1, 0, 1)] for _ in range(STEPS)]


@pytest.mark.parametrize("make", [by_hand.plain_ssl_alm, by_hand.authors_ssl_alm], ids=["plain", "authors"])
def test_ssl_alm_by_hand_is_ssl_alm(make: Callable[..., Callable[[], None]]) -> None:
    data, objective, groups = drawn()
    model = setting.network()
    step = make(Given(data, iter([r for f, c in zip(objective, groups, strict=True) for r in (f, *c)])), model)
    for _ in range(STEPS):
        step()
    batches = [
        [Batch(f, torch.stack(c[:2])), Batch(f, torch.stack(c[2:]))] for f, c in zip(objective, groups, strict=True)
    ]
    expected = by_us(SSLALM(slack_from_first=False), data, batches)
    assert torch.allclose(flat(model), expected, atol=1e-6)
    assert not torch.allclose(flat(setting.network()), expected, atol=1e-3)


def test_switching_by_hand_is_switching() -> None:
    data, objective, groups = drawn()
    expected = by_us(
        SwitchingSubgradient(),
        data,
        [[Batch(f, torch.stack(c[:2])), Batch(f, torch.stack(c[2:]))] for f, c in zip(objective, groups, strict=True)],
    )
    model, order, branches = setting.network(), iter(range(STEPS)), set()

    class Branching(Given):
        """The plain loop draws the objective's rows or the groups', by its test."""

        def cells(self, size: int = by_hand.B) -> Tensor:
            self.calls += 1
            if self.calls % 2:  # the test
                self.k = next(order)
                return torch.cat(groups[self.k][:2])
            branches.add("constraint")
            return torch.cat(groups[self.k][2:])

        def objective(self, size: int = by_hand.B) -> Tensor:
            self.calls += 1
            branches.add("objective")
            return objective[self.k]

    rows = Branching(data, iter(()))
    rows.calls = 0
    step = by_hand.plain_switching(rows, model)
    for _ in range(STEPS):
        step()
    assert torch.allclose(flat(model), expected, atol=1e-6)
    assert branches == {"constraint", "objective"}


def test_rounds_alternate_and_a_missed_limit_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[str] = []

    def work(name: str) -> Callable[[], int]:
        return lambda: (calls.append(name), 2)[1]

    found = alternate({"a": work("a"), "b": work("b")}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert set(found) == {"a", "b"}
    checks = Checks()
    checks.at_most("x", 1.0, 2.0)
    assert checks.status == 0
    checks.at_least("y", 1.0, 2.0)
    assert checks.status == 1
    assert "MISSED y: 1 (wanted >= 2)" in capsys.readouterr().out
