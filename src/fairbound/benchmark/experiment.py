"""An experiment's data, network and constraints: everything that its runs share.

Every split scales the inputs by its own training examples. The copies stand one below the other in one dataset, and a
run reads the examples of its split: so the runs of all splits can be batched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fairbound.benchmark.config import Experiment, Row
from fairbound.benchmark.evaluation import Evaluator
from fairbound.benchmark.fingerprint import checksum
from fairbound.constraints.constraint import Constraint
from fairbound.constraints.contrasts import against_pooled
from fairbound.constraints.notions import NOTIONS, loss_parity, pairwise_loss_parity
from fairbound.constraints.regularizers import FairretNorm
from fairbound.data.dataset import Dataset, Split
from fairbound.data.samplers import BatchSpec, Sampler
from fairbound.data.splits import paper_split, random_split, scaled
from fairbound.data.table import Table
from fairbound.training.functional import make_functional
from fairbound.training.problem import Problem

PAPERS_SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Per-example loss, from logits."""
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")


def fully_connected(inputs: int, *hidden: int) -> nn.Module:
    """ReLU, one output."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((inputs, *hidden)[-1], 1), nn.Flatten(0))


def named_constraint(notion: str, bound: float, groups: Tensor, labels: Tensor, names: Sequence[str]) -> Constraint:
    """By the name of a notion, one of the paper's or of `constraints.NOTIONS`, over the examples.

    With very many groups it is not bound to them: a mini-batch then has examples of any groups.
    """
    if notion == "absolute_against_pooled":
        sizes = torch.bincount(groups, minlength=len(names)).double()
        pooled = against_pooled((sizes / sizes.sum()).tolist(), two_sided=False)
        return replace(loss_parity(names, bound=bound, contrast=pooled).bind(groups), absolute=True)
    build = {"pairwise": pairwise_loss_parity, "against_mean": loss_parity}.get(notion) or NOTIONS[notion]
    made = build(names, bound=bound)
    return made if made.cells.are_many else made.bind(groups, labels)


@dataclass(frozen=True, eq=False)
class PreparedExperiment:
    """What the runs of an experiment share on one source of data."""

    experiment: Experiment
    source: str  # of the data
    unscaled: Dataset
    splits: tuple[Split, ...]  # of its examples
    device: str = "cpu"

    @staticmethod
    def of(experiment: Experiment, table: Table, splits: int | None = None, device: str = "cpu") -> PreparedExperiment:
        """From a table; `splits` instead of as many as the experiment has."""
        unscaled = table.dataset(experiment.group)
        ((name, groups),) = unscaled.groups.items()
        found = unscaled.levels[name]
        if experiment.groups and len(experiment.groups) != len(found):
            raise ValueError(
                f"{experiment.name} names {len(experiment.groups)} groups, but {experiment.group} gives "
                f"{len(found)} in {table.source}: {', '.join(found)}"
            )
        experiment = replace(experiment, groups=experiment.groups or tuple(found))
        unscaled = replace(unscaled, levels={name: experiment.groups})
        count = experiment.split.splits if splits is None else splits
        made = tuple(_split(experiment, groups, i) for i in range(count))
        return PreparedExperiment(experiment, unscaled.source, unscaled, made, device)

    @cached_property
    def data(self) -> Dataset:
        """The scaled copies, one below the other."""
        copies = [scaled(self.unscaled, split).X for split in self.splits]
        groups = {name: column.repeat(len(copies)) for name, column in self.unscaled.groups.items()}
        return replace(self.unscaled, X=torch.cat(copies), y=self.unscaled.y.repeat(len(copies)), groups=groups).to(
            self.device
        )

    @property
    def synthetic(self) -> bool:
        """Whether the data are generated: everything made from them must say so."""
        return self.source.partition(":")[0] == "synthetic"

    @property
    def column(self) -> str:
        """The name of the group column."""
        return next(iter(self.unscaled.groups))

    @cached_property
    def data_checksum(self) -> str:
        """Of everything that the runs read."""
        parts = {"X": self.unscaled.X.numpy(), "y": self.unscaled.y.numpy()}
        return checksum(parts | {"groups": self.unscaled.groups[self.column].numpy()})

    def split_of(self, split: int) -> Split:
        """A split as indices into the stacked dataset."""
        offset = split * self.unscaled.rows
        return Split(*(indices + offset for indices in self.splits[split]))

    def network(self) -> nn.Module:
        return fully_connected(self.data.X.shape[1], *self.experiment.hidden)

    @cached_property
    def forward(self) -> Callable[[Tensor, Tensor], Tensor]:
        return make_functional(self.network().to(self.device))[0]

    def constraint(self, notion: str, bound: float) -> Constraint:
        return named_constraint(notion, bound, self.data.groups[self.column], self.data.y, self.experiment.groups)

    def problem(self, row: Row) -> Problem:
        """What a row trains on; one object for all rows that train on the same, which share what is compiled for it."""
        same = (row.notion, row.bound, row.fairret)
        if same not in self._problems:
            fairret = FairretNorm(column=self.column, levels=len(self.experiment.groups), weight=row.fairret)
            constraint = self.constraint(row.notion, row.bound)
            self._problems[same] = Problem(
                self.forward, cross_entropy, constraint, self.data, fairret if row.fairret else None
            )
        return self._problems[same]

    @cached_property
    def _problems(self) -> dict[tuple[str, float, float], Problem]:
        return {}

    def sampler(self, row: Row, problem: Problem, draws: int, split: int, seed: int) -> Sampler:
        """The sampling of one run."""
        pools = row.pools or ("train",) * draws
        specs = [BatchSpec(objective=row.batch, cell=row.batch, pool=pool) for pool in pools]
        assert problem.constraint is not None
        return Sampler(self.split_of(split), problem.constraint.cells, specs, seed=seed)

    def evaluator(self, split: int, parts: Sequence[str], compiled: bool = False) -> Evaluator:
        chosen = self.split_of(split)
        return Evaluator(self.forward, cross_entropy, self.data, self.column, chosen, tuple(parts), compiled)

    def parts(self) -> tuple[str, ...]:
        """The parts that the splits have."""
        return tuple(name for name in Split._fields if len(self.splits[0].pool(name)))

    def measured(self) -> tuple[str, ...]:
        """The parts that are measured."""
        asked = self.experiment.measured
        return tuple(part for part in self.parts() if not asked or part in asked)


def _split(experiment: Experiment, groups: Tensor, number: int) -> Split:
    """The paper's split comes first unless shares are given; the others are random, each with another seed."""
    if experiment.split.shares is None and number == 0:
        return paper_split(groups, experiment.split.seed)
    shares = experiment.split.shares or PAPERS_SHARES
    return random_split(groups, shares, seed=experiment.split.seed + number)
