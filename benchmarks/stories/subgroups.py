"""Story 3: a table with 200 subgroups, the smallest of 20 people; the loss of each is bounded.

The groups are the intersections of ten regions, five ages and four origins. Those below 60 people
follow labeling rules of their own, and the network sees the three columns beside eight others.
Mini-batches are shuffled, so about one in seven of 256 rows shows a group of 20, and then one
person of it as a rule.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch
from story import Draw, Loss, Practice, Problem, Run, generator, seeded
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from fairbound import constraints

SHAPE, GROUPS, BOUND = (10, 5, 4), 200, 0.5


class Table(NamedTuple):
    X: Tensor  # (n, 8 + 19)
    y: Tensor  # (n,)
    group: Tensor  # (n,)


@cache
def rules() -> tuple[Tensor, Tensor]:
    """(GROUPS,) sizes, 20 to about 600, and (GROUPS, 8) the labeling rule of each."""
    rng = generator(4)
    sizes = (20 * 30 ** torch.rand(GROUPS, generator=rng)).long()
    sizes[:20] = 20
    rule = 1.5 * torch.randn(8, generator=rng) / 8**0.5
    own = torch.randn(GROUPS, 8, generator=rng) * (sizes[:, None] < 60) * 2 / 8**0.5
    return sizes, 2 * (rule + own)


def table(sizes: Tensor, seed: int) -> Table:
    rng = generator(seed)
    group = torch.arange(GROUPS).repeat_interleave(sizes)
    X = torch.randn(len(group), 8, generator=rng)
    logit = (X * rules()[1][group]).sum(1)
    y = (torch.rand(len(group), generator=rng) < torch.sigmoid(2 * logit)).float()
    columns = torch.unravel_index(group, SHAPE)
    hot = [one_hot(column, size) for column, size in zip(columns, SHAPE, strict=True)]
    return Table(torch.cat([X, *hot], 1).float(), y, group)


@cache
def tables() -> tuple[Table, Table]:
    """To train, and 500 people of every group to test; the latter weigh as in the former."""
    return table(rules()[0], 5), table(torch.full((GROUPS,), 500), 6)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(27, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
    )


def subgroups(seed: int, batch: int = 256) -> Run:
    (train, test), rng = tables(), generator(seed)
    with seeded(seed):
        model = network()
    order: list[Tensor] = []

    def draw() -> Draw:
        if not order:
            order.extend(torch.randperm(len(train.y), generator=rng).split(batch)[:-1])
        some = order.pop()
        losses = binary_cross_entropy_with_logits(
            model(train.X[some]), train.y[some], reduction="none"
        )
        group = train.group[some]
        counts = torch.bincount(group, minlength=GROUPS)
        # NaN for a group that is absent
        means = torch.zeros(GROUPS).index_add(0, group, losses) / counts
        return Draw(losses.mean(), means, {"losses": losses, "groups": group})

    def judged(data: Table) -> tuple[float, Tensor]:
        losses = binary_cross_entropy_with_logits(model(data.X), data.y, reduction="none")
        means = torch.zeros(GROUPS).index_add(0, data.group, losses) / torch.bincount(data.group)
        return float((means * rules()[0]).sum() / rules()[0].sum()), means / BOUND - 1

    def new_people() -> list[float]:
        objective, c = judged(test)
        return [objective, float(c.max())]

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    constraint = constraints.bounded_group_loss(GROUPS, bound=BOUND)
    return Run(model, optimizer, draw, constraint, lambda: judged(train), new_people)


def group_dro(run: Run, eta: float) -> Loss:
    """Sagawa et al. (2020): weights of groups grow with their losses, exponentially; absent groups
    keep theirs."""
    q = torch.full((GROUPS,), 1 / GROUPS)

    def loss(draw: Draw) -> Tensor:
        shown = draw.terms.isfinite()
        terms = torch.where(shown, draw.terms, 0.0)
        q.mul_(torch.exp(eta * terms.detach()))
        q.div_(q.sum())
        return (q * terms).sum() / (q * shown).sum()

    return loss


def reweighting(run: Run, power: float) -> Loss:
    """Every example counts as n_g to the power of minus `power`; 1 makes all groups count alike."""
    weights = (rules()[0].sum() / GROUPS / rules()[0]) ** power

    def loss(draw: Draw) -> Tensor:
        own = weights[draw.fair["groups"]]
        return (own * draw.fair["losses"]).sum() / own.sum()

    return loss


PRACTICES = (
    Practice("group DRO", "eta", 0.01, (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0), group_dro),
    Practice(
        "re-weighting", "power", 1.0, (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0), reweighting
    ),
)
PROBLEMS = tuple(
    Problem(
        name,
        "mean loss",
        "loss of every group at most 0.5",
        steps,
        partial(subgroups, batch=batch),
        PRACTICES,
        ("mean loss on new people", "violation on new people"),
    )
    for name, batch, steps in (
        ("200 subgroups", 256, 4000),
        ("200 subgroups, large mini-batches", 1024, 2000),
    )
)
