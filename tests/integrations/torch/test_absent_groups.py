"""Groups that a mini-batch lacks: what the others are compared with, and what is said of it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fairbound import Constrained, constraints
from fairbound.algorithms import DescentAscent

NAMES = ("A", "B", "C")
MEMORY = 0.9


class Losses(nn.Module):
    """One parameter a group, which is the loss of its examples: gradients can be read off."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))

    def forward(self, groups: Tensor, noise: Tensor) -> Tensor:
        return self.level[groups] + noise


def loop(
    names: tuple[str, ...] = NAMES, bound: float = 0.1, eta: float = 0.5
) -> tuple[Losses, Constrained]:
    model = Losses()
    limit = constraints.loss_parity(names, bound=bound)
    return model, Constrained(model, limit, DescentAscent(eta=eta))


def batches(*present: str) -> list[tuple[Tensor, Tensor]]:
    """Groups and noise of mini-batches that have these groups: "AB", "ABC", ..."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for some in present:
        groups = torch.tensor([NAMES.index(name) for name in some for _ in range(2)])
        made.append((groups, torch.randn(len(groups), generator=generator, dtype=torch.float64)))
    return made


PRESENT = ("ABC", "AB", "BC", "AB", "A", "ABC", "C", "AB")


def test_running_means_stand_for_absent_groups() -> None:
    """Every step against a transcription in numpy: c, multipliers, gradient, and how old the values
    are."""
    bound, eta = 0.1, 0.5
    model, fair = loop(bound=bound, eta=eta)
    level = model.level.detach().numpy().copy()
    y, means, weights, last = np.zeros(6), np.zeros(3), np.zeros(3), np.zeros(3, int)
    for k, (groups, noise) in enumerate(batches(*PRESENT), 1):
        model.zero_grad()
        info = fair.backward(model(groups, noise), groups)
        here = sorted(set(groups.tolist()))
        now = {g: level[g] + noise.numpy()[groups.numpy() == g].mean() for g in here}
        known = {g: now.get(g, means[g]) for g in range(3) if g in now or weights[g] > 0}
        mean = np.mean([*known.values()])
        gradient = np.bincount(groups.numpy(), minlength=3) / len(groups)
        for g in here:
            net = y[2 * g] - y[2 * g + 1]
            gradient[g] += net
            for other in here:
                gradient[other] -= net / len(known)
        assert np.allclose(model.level.grad.numpy(), gradient, atol=1e-12), k  # type: ignore[union-attr]
        for g in here:
            for row, sign in ((2 * g, 1), (2 * g + 1, -1)):
                c = sign * (now[g] - mean) - bound
                assert info.c[row].item() == pytest.approx(c, abs=1e-12)
                y[row] = max(0.0, y[row] + eta * c)
            # Running means begin with the last mini-batch that had all groups.
            first = k == 1
            total = 2 if first else MEMORY * weights[g] + 2
            means[g] = now[g] if first else (MEMORY * weights[g] * means[g] + 2 * now[g]) / total
            weights[g], last[g] = total, k
        assert [*fair.multipliers.values()] == pytest.approx(y.tolist(), abs=1e-12)
    assert [*fair.ages.values()] == [int(len(PRESENT) - last[g // 2]) for g in range(6)]
    assert [*fair.observed.values()] == [
        sum(NAMES[g // 2] in some for some in PRESENT) for g in range(6)
    ]


def test_pairs_act_where_both_are_there() -> None:
    model = Losses()
    fair = Constrained(
        model, constraints.pairwise_loss_parity(NAMES, bound=0.1), DescentAscent(eta=0.5)
    )
    for groups, noise in batches("ABC", "AB", "A"):
        fair.backward(model(groups, noise), groups)
    assert fair.observed == {"A - B": 2, "B - A": 2, "A - C": 1, "C - A": 1, "B - C": 1, "C - B": 1}


def rare(share: float) -> tuple[Constrained, list[warnings.WarningMessage]]:
    """600 steps; the third group is in this share of the mini-batches."""
    model, fair = loop(eta=0.01)
    every = round(1 / share)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for k in range(600):
            ((groups, noise),) = batches("ABC" if k % every == 0 else "AB")
            model.zero_grad()
            fair.backward(model(groups, noise), groups)
    return fair, said


def test_a_group_that_is_hardly_ever_seen_is_warned_of() -> None:
    fair, said = rare(1 / 50)
    (warning,) = said
    assert "only 10 of 500 mini-batches had the examples that 'C - mean' is about" in str(
        warning.message
    )
    assert "BalancedBatchSampler" in str(warning.message)
    assert warning.filename == __file__
    assert fair.ages["C - mean"] == 49
    assert fair.ages["A - mean"] == 0


def test_a_group_that_is_seen_often_enough_is_not() -> None:
    assert rare(1 / 5)[1] == []


@pytest.mark.parametrize("stop", [0, 3])
def test_a_resumed_loop_knows_the_absent_groups(stop: int) -> None:
    results = []
    for resumed in (False, True):
        model, fair = loop()
        for k, (groups, noise) in enumerate(batches(*PRESENT)):
            model.zero_grad()
            fair.backward(model(groups, noise), groups)
            if resumed and k == stop:
                kept, (other, fair) = fair.state_dict(), loop()
                other.load_state_dict(model.state_dict())
                model = other
                fair.load_state_dict(kept)
        results.append((fair.multipliers, fair.ages, fair.observed, model.level.grad.tolist()))  # type: ignore[union-attr]
    assert results[0] == results[1]


def test_groups_in_another_order_are_found_by_name() -> None:
    """Multipliers and observations go with their names; running means begin anew."""
    model, fair = loop()
    for groups, noise in batches("ABC", "AB"):
        fair.backward(model(groups, noise), groups)
    _, other = loop(NAMES[::-1])
    other.load_state_dict(fair.state_dict())
    assert other.multipliers == fair.multipliers
    assert other.ages == fair.ages
    assert other.ages["C - mean"] == 1


def test_a_mini_batch_that_is_not_finite_leaves_the_running_means_alone() -> None:
    def after(*noises: Any) -> dict[str, float]:
        model, fair = loop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for (groups, noise), extra in zip(
                batches("ABC", "AB", "AB", "AB"), noises, strict=True
            ):
                if extra is not None:
                    fair.backward(model(groups, noise + extra), groups)
        return fair.multipliers

    assert after(0.0, 0.0, float("nan"), 0.0) == after(0.0, 0.0, None, 0.0)


# few: one matrix; many: the cells of a mini-batch alone
@pytest.mark.parametrize("groups", [4, 200])
def test_the_mean_is_that_of_the_groups_seen_so_far(groups: int) -> None:
    """Groups 0 and 1 have losses of 1 and 3, group 2 of 5; no mini-batch ever shows the others."""
    model = torch.nn.Linear(1, 1).double()
    fair = Constrained(model, constraints.loss_parity(groups, bound=0.5), DescentAscent())
    for shown, mean in (([0, 1], 2.0), ([2, 0, 1], 3.0), ([0, 1], 3.0)):
        who = torch.tensor(shown)
        info = fair.backward(1.0 + 2 * who + 0 * model.weight.sum(), who)
        rows = list(range(len(info.c))) if info.rows is None else info.rows.tolist()
        assert info.c[rows.index(0)] == pytest.approx(1 - mean - 0.5)  # of group 0, less the mean
