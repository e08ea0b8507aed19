"""Nothing is ever poisoned: groups that a mini-batch lacks, and numbers that are not finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from loops import (
    BOTH,
    F64,
    FIXED,
    GHOSTS,
    LR,
    MULTIPLIERS,
    flat,
    knowledge,
    network,
    numbers_for,
    people,
    rows_of,
    same,
    step,
    tensors,
)
from methods import IN_A_LOOP as METHODS
from processes import spoilt_gradient
from torch import Tensor, nn

from fairbound import Constrained, MiniBatch, constraints
from fairbound.algorithms import DescentAscent, StochasticGhost
from fairbound.core import Algorithm, MultiplierMethod
from fairbound.training._contract import trial_step

WHO = people()
GROUP_LOSS = constraints.bounded_group_loss(["A", "B", "C"], bound=0.4, by="race")
C = GROUP_LOSS.names[2]

fixed = pytest.mark.parametrize("method", FIXED.values(), ids=FIXED)


def without_limits_on_size(method: Algorithm[Any]) -> Algorithm[Any]:
    """A cap on the norm of all multipliers ties one group's to another's."""
    return replace(method, y_max=1e3) if hasattr(method, "y_max") else method  # type: ignore[type-var]


def balanced(size: int, generator: torch.Generator, *races: int) -> Tensor:
    """So many rows of every race that is named."""
    members = [WHO.of(race) for race in races]
    return torch.cat([m[torch.randint(m.numel(), (size,), generator=generator)] for m in members])


def by_constraint(fair: Constrained, name: str) -> list[Tensor]:
    """What the method knows of one constraint."""
    kept = fair.state_dict()
    own = [
        value[name] for value in kept["state"].values() if isinstance(value, dict) and name in value
    ]
    return [*own, kept["constraints"][name]]


def one_step(fair: Constrained, model: nn.Module, draw: Callable[[int], Tensor]) -> bool:
    """One backward pass of any method on rows that `draw(size)` chooses; races that no limit knows
    are of none."""

    def evaluate(size: int) -> MiniBatch:
        rows = rows_of(model, WHO, draw(size))
        assert isinstance(rows.groups, dict)
        race = rows.groups["race"]
        return rows._replace(groups=torch.where(race < len(fair.names), race, -1))

    if fair.method.batch_size_probs is not None:
        return fair.backward_closure(evaluate).skipped
    with torch.no_grad():
        further = [evaluate(1) for _ in range(fair.method.draws - 1)]
    return fair.backward(evaluate(1), extra_batches=further).skipped


# Groups that are not there ------------------------------------------------------------------------


def begun(
    method: Algorithm[Any], limit: Any = GROUP_LOSS
) -> tuple[Constrained, nn.Module, torch.optim.Optimizer]:
    """A loop after three steps with every group."""
    model, generator = network(), torch.Generator().manual_seed(0)
    fair = Constrained(model, limit, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(3):
        step(
            fair,
            optimizer,
            model,
            WHO,
            torch.stack([balanced(6, generator, 0, 1, 2) for _ in range(method.draws)]),
        )
    return fair, model, optimizer


@fixed
@pytest.mark.parametrize("bound", [0.4, 0.72, 5.0], ids=["broken", "near", "met"])
def test_a_group_that_is_absent_stays_as_it_was(method: Algorithm[Any], bound: float) -> None:
    """And the others move as if it were there: its rows count in no objective."""
    method = without_limits_on_size(method)
    limit = replace(GROUP_LOSS, bound=torch.full((3,), bound, dtype=F64))
    generator = torch.Generator().manual_seed(1)
    numbers = torch.stack([balanced(6, generator, 0, 1) for _ in range(method.draws)])
    extra = torch.stack([balanced(6, generator, 2) for _ in range(method.draws)])
    (lacking, model, optimizer), (whole, other, _) = begun(method, limit), begun(method, limit)
    before = by_constraint(lacking, C)
    step(lacking, optimizer, model, WHO, numbers)
    with torch.no_grad():
        further = [
            rows_of(other, WHO, torch.cat(both))
            for both in zip(numbers[1:], extra[1:], strict=True)
        ]
    rows = rows_of(other, WHO, torch.cat([numbers[0], extra[0]]))
    whole.backward(rows._replace(objective=torch.arange(18) < 12), extra_batches=further)
    assert same(by_constraint(lacking, C), before)
    for name in GROUP_LOSS.names[:2]:
        assert trial_step(method).several_gradients or all(  # a subproblem couples the constraints
            torch.allclose(a, b, atol=1e-12)
            for a, b in zip(by_constraint(lacking, name), by_constraint(whole, name), strict=True)
        )
    still = begun(method, limit)[0]
    assert not any(
        same(by_constraint(whole, name), by_constraint(still, name)) for name in GROUP_LOSS.names
    )


@pytest.mark.parametrize("method", [m for m in FIXED.values() if m.draws > 1])
def test_a_group_that_one_of_two_mini_batches_lacks_stays_as_it_was(method: Algorithm[Any]) -> None:
    """The first lacks C and the second A, so that only B can move."""
    fair, model, _ = begun(method)
    before, generator = fair.state_dict()["state"], torch.Generator().manual_seed(1)
    rows = [rows_of(model, WHO, balanced(6, generator, *races)) for races in ((0, 1), (1, 2))]
    fair.backward(rows[0], extra_batches=[rows[1]._replace(losses=rows[1].losses.detach())])
    after = fair.state_dict()["state"]
    for leaf, values in before.items():
        if isinstance(values, dict) and set(values) == set(GROUP_LOSS.names):
            assert [
                torch.equal(values[name], after[leaf][name]) for name in GROUP_LOSS.names[::2]
            ] == [True, True]
    assert fair.multipliers[GROUP_LOSS.names[1]] != float(before["y"][GROUP_LOSS.names[1]])


def means_of(rows: MiniBatch, races: int) -> list[Tensor]:
    assert isinstance(rows.groups, dict)
    return [rows.losses[rows.groups["race"] == race].mean() for race in range(races)]


ABSENT: dict[str, tuple[Any, Callable[[list[float], list[Tensor]], Tensor]]] = {
    "loss of each": (GROUP_LOSS, lambda y, mean: y[0] * mean[0] + y[1] * mean[1]),
    "pairs": (  # A - B, B - A, then those with C, which cannot be told
        constraints.pairwise_loss_parity(["A", "B", "C"], bound=0.0, by="race"),
        lambda y, mean: (y[0] - y[1]) * (mean[0] - mean[1]),
    ),
    "from the mean": (  # of A and of B from the mean; C's part of it is a number
        constraints.loss_parity(["A", "B", "C"], bound=0.0, by="race"),
        lambda y, mean: (
            (y[0] - y[1]) * mean[0]
            + (y[2] - y[3]) * mean[1]
            - (y[0] - y[1] + y[2] - y[3]) * (mean[0] + mean[1]) / 3
        ),
    ),
}


@pytest.mark.parametrize("case", ABSENT)
def test_the_direction_without_a_group_is_that_of_the_others(case: str) -> None:
    """A constraint on a group that is absent pulls at nobody, also not at the groups that are
    there."""
    limit, priced = ABSENT[case]
    fair, model, optimizer = begun(DescentAscent(eta=1.0), limit)
    optimizer.zero_grad()
    rows = rows_of(model, WHO, balanced(6, torch.Generator().manual_seed(1), 0, 1))
    y = [*fair.multipliers.values()]
    assert sum(price > 0.01 for price in y) >= 3
    lagrangian = rows.losses.mean() + priced(y, means_of(rows, 2))
    expected = torch.autograd.grad(lagrangian, [*model.parameters()], retain_graph=True)
    fair.backward(rows)
    for p, own in zip(model.parameters(), expected, strict=True):
        assert p.grad is not None
        assert torch.allclose(p.grad, own, atol=1e-12)


BOUNDS = {"the others are met": (5.0, 5.0, 0.01), "the others are broken": (0.4, 0.4, 0.01)}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_an_absent_group_that_was_violated_does_not_hold_up_the_others(
    method: Algorithm[Any], bounds: tuple[float, ...]
) -> None:
    """The direction is that of a loop which never knew it, though its last value was the worst."""
    method = without_limits_on_size(method)
    three = replace(GROUP_LOSS, bound=torch.tensor(bounds, dtype=F64))
    two = replace(
        constraints.bounded_group_loss(["A", "B"], bound=0.4, by="race"), bound=three.bound[:2]
    )
    directions, kappas = [], []
    for limit in (three, two):
        model, generator = network(), torch.Generator().manual_seed(0)
        fair = Constrained(model, limit, method)
        for races in ((0, 1, 2), (0, 1)):
            model.zero_grad()
            one_step(fair, model, lambda size, races=races: balanced(4 * size, generator, *races))  # type: ignore[misc] # noqa: B023
        if limit is three:
            assert fair.constraints[C] > 0.3
        directions.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
        # what Ghost relaxes all limits to
        kappas.append(fair.state_dict()["state"].get("kappa", torch.zeros(())))
    assert torch.allclose(directions[0], directions[1], atol=1e-9)
    assert torch.allclose(kappas[0], kappas[1], atol=1e-9)
    assert directions[0].norm() > 1e-3


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
# of some methods, with this bound and rate
@pytest.mark.filterwarnings("ignore:by step .* the run diverges")
def test_a_group_that_is_missing_half_of_the_time_poisons_nothing(method: Algorithm[Any]) -> None:
    """500 steps; the last group comes at every other step at most."""
    steps = 500 if method.batch_size_probs is None else 100  # of Ghost, whose steps take longer
    model, generator = network(), torch.Generator().manual_seed(0)
    fair = Constrained(model, GROUP_LOSS, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for k in range(steps):
        races = (0, 1) if k % 2 else (0, 1, 2)
        optimizer.zero_grad()
        assert not one_step(
            fair, model, lambda size, races=races: balanced(2 * size, generator, *races)
        )  # type: ignore[misc]
        optimizer.step()
    assert fair.steps == steps
    assert all(part.isfinite().all() for part in (flat(model), *knowledge(fair)))


@fixed
def test_a_mini_batch_without_any_group_is_plain_descent(method: Algorithm[Any]) -> None:
    """Rows of no group move the objective, and nothing of the constraints."""
    fair, model, optimizer = begun(method)
    before = [by_constraint(fair, name) for name in GROUP_LOSS.names]
    rows = rows_of(model, WHO, torch.arange(8))._replace(groups=torch.full((8,), -1))
    gradient = torch.cat(
        [g.flatten() for g in torch.autograd.grad(rows.losses.mean(), [*model.parameters()])]
    )
    optimizer.zero_grad()
    rows = rows_of(model, WHO, torch.arange(8))._replace(groups=torch.full((8,), -1))
    seen = fair.backward(
        rows, extra_batches=[rows._replace(losses=rows.losses.detach())] * (method.draws - 1)
    )
    assert not seen.skipped
    assert all(
        same(by_constraint(fair, name), kept)
        for name, kept in zip(GROUP_LOSS.names, before, strict=True)
    )
    if isinstance(method, MultiplierMethod) and method.smoothing is None:
        written = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert torch.allclose(written, gradient, atol=1e-12)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_group_that_is_never_seen_has_no_say(method: Algorithm[Any]) -> None:
    """Its multiplier stays as it began, and the others' run is that of a loop without it."""
    method = without_limits_on_size(method)
    known = constraints.bounded_group_loss(["A", "B"], bound=0.4, by="race")
    ends = []
    for limit in (GROUP_LOSS, known):
        model, generator = network(), torch.Generator().manual_seed(0)
        fair = Constrained(model, limit, method)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for _ in range(5):
            optimizer.zero_grad()
            one_step(
                fair, model, lambda size, generator=generator: balanced(4 * size, generator, 0, 1)
            )  # type: ignore[misc]
            optimizer.step()
        assert fair.multipliers.get(C, 0.0) == 0.0
        assert math.isnan(fair.constraints.get(C, math.nan))  # unknown, not met
        ends.append(flat(model))
    assert torch.isfinite(ends[0]).all()
    assert torch.allclose(ends[0], ends[1], atol=1e-9)


# Numbers that are not finite ----------------------------------------------------------------------


def spoilt_loss(value: float) -> Callable[[MiniBatch], MiniBatch]:
    """One row's loss is not finite."""
    first = torch.arange(24) == 0
    return lambda rows: rows._replace(losses=torch.where(first, rows.losses * value, rows.losses))


def spoilt_constraint(rows: MiniBatch) -> MiniBatch:
    """The same, but the row counts in no objective."""
    return spoilt_loss(torch.nan)(rows)._replace(objective=torch.arange(24) > 0)


def spoilt_function(rows: MiniBatch) -> MiniBatch:
    """A function of the user's divides by 0 where the labels are all the same."""
    return rows._replace(labels=torch.zeros(24, dtype=F64))


SPOILT: dict[str, Callable[[MiniBatch], MiniBatch]] = {
    "NaN loss": spoilt_loss(torch.nan),
    "infinite loss": spoilt_loss(torch.inf),
    "NaN in a constraint": spoilt_constraint,
    "infinite function": spoilt_function,
    "NaN gradient": spoilt_gradient,
}


def over_deviation(rows: MiniBatch) -> Tensor:
    """Something of the user's that needs labels of both kinds."""
    assert rows.outputs is not None
    assert rows.labels is not None
    return (rows.outputs.mean() / rows.labels.std() - 1).reshape(1)


OWN = constraints.function(over_deviation, "mean over deviation")
TWO: dict[str, Any] = {"race": GROUP_LOSS, "own": OWN}


def held_by(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def train(
    method: Algorithm[Any], spoil: Callable[[MiniBatch], MiniBatch] | None
) -> tuple[nn.Module, Constrained, list[bool]]:
    """Six steps under Adam; in between, where it is asked for, two that are spoilt."""
    model = network()
    fair = Constrained(model, TWO, method)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    skipped = []
    for k, numbers in enumerate(numbers_for(method, 6, WHO)):
        step(fair, optimizer, model, WHO, numbers)
        if spoil is None or k not in (2, 3):
            continue
        optimizer.zero_grad()
        before = [flat(model), *knowledge(fair), *tensors(optimizer.state_dict()["state"])]
        with torch.no_grad():
            further = [rows_of(model, WHO, own) for own in numbers[1:]]
        skipped.append(
            fair.backward(spoil(rows_of(model, WHO, numbers[0])), extra_batches=further).skipped
        )
        assert all(p.grad is None for p in model.parameters())
        optimizer.step()
        assert same(
            before, [flat(model), *knowledge(fair), *tensors(optimizer.state_dict()["state"])]
        )
    return model, fair, skipped


@fixed
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_step_that_is_not_finite_changes_nothing(
    method: Algorithm[Any], spoil: Callable[[MiniBatch], MiniBatch]
) -> None:
    """It is counted, warned about once, and the run goes on as if it had never been."""
    with pytest.warns(RuntimeWarning, match=r"step 4.*skipped.*nothing") as seen:
        model, fair, skipped = train(method, spoil)
    assert len([w for w in seen if w.category is RuntimeWarning]) == 1
    assert skipped == [True, True]
    assert fair.skipped == 2
    clean, never, _ = train(method, None)
    assert never.skipped == 0
    assert same([flat(model), *knowledge(fair)], [flat(clean), *knowledge(never)])


@pytest.mark.parametrize("method", [m for m in FIXED.values() if m.draws > 1])
def test_a_further_mini_batch_may_be_spoilt_as_well(method: Algorithm[Any]) -> None:
    fair, model, optimizer = begun(method)
    before = [flat(model), *knowledge(fair)]
    optimizer.zero_grad()
    with torch.no_grad():
        further = [rows_of(model, WHO, torch.arange(24)) for _ in range(method.draws - 1)]
    further[-1] = spoilt_loss(torch.nan)(further[-1])
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert fair.backward(rows_of(model, WHO, torch.arange(24)), extra_batches=further).skipped
    optimizer.step()
    assert same(before, [flat(model), *knowledge(fair)])


@pytest.mark.parametrize("method", GHOSTS.values(), ids=GHOSTS)
@pytest.mark.parametrize(
    "spoil", [spoilt_loss(torch.nan), spoilt_gradient], ids=["loss", "gradient"]
)
def test_ghost_leaves_out_a_spoilt_step(
    method: StochasticGhost, spoil: Callable[[MiniBatch], MiniBatch]
) -> None:
    model = network()
    fair = Constrained(model, GROUP_LOSS, method)
    fair.backward_closure(lambda size: rows_of(model, WHO, torch.arange(24 * size) % 120))
    held, before = [p.grad for p in model.parameters()], knowledge(fair)
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert fair.backward_closure(
            lambda size: spoil(rows_of(model, WHO, torch.arange(24)))
        ).skipped
    assert all(p.grad is grad for p, grad in zip(model.parameters(), held, strict=True))
    assert same(before, knowledge(fair))


def as_a_share(fair: Constrained, parts: list[MiniBatch]) -> bool:
    return fair.backward(parts[-1], scale=0.5).skipped


def accumulated(fair: Constrained, parts: list[MiniBatch]) -> bool:
    for rows in parts:
        fair.accumulate(rows._replace(losses=rows.losses.detach()))
    return [fair.backward(rows).skipped for rows in parts][-1]


WAYS = [
    pytest.param(way, method, id=f"{way.__name__}, {name}")
    for way, methods in ((as_a_share, BOTH), (accumulated, MULTIPLIERS))
    for name, method in methods.items()
]


@pytest.mark.parametrize(("way", "method"), WAYS)
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_spoilt_mini_batch_adds_nothing_to_those_before_it(
    way: Callable[[Constrained, list[MiniBatch]], bool],
    method: Algorithm[Any],
    spoil: Callable[[MiniBatch], MiniBatch],
) -> None:
    """All of an accumulated step is skipped, and the gradient that was there before is kept."""
    model = network()
    fair = Constrained(model, TWO, method)
    fair.backward(rows_of(model, WHO, torch.arange(24)), scale=0.5)
    held, before = held_by(model), knowledge(fair)
    assert len(held) == 4
    parts = [rows_of(model, WHO, torch.arange(24) + start) for start in (24, 48)]
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert way(fair, [parts[0], spoil(parts[1])])
    assert same(before, knowledge(fair))
    assert same(held, held_by(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fair.backward(rows_of(model, WHO, torch.arange(24))).skipped
