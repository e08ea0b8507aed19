"""A table of examples as a problem of the benchmark, from a TOML file.

title = "Income in Oklahoma, losses of two races within 0.02"
state = "OK"                   # census data, real where they are found; or a table of your own:
source = "loans.csv"           #   a path from the folder of this file
label = "approved"             #   the column to predict
group = "RAC1P=1"              # the protected attribute; several with commas
notion = "pairwise"            # of `PAPER_NOTIONS` or `constraints.NOTIONS`
bound = 0.02
hidden = [64, 32]              # widths of the network; none: logistic regression
unit = 1.0                     # constraints are divided by it
batch = 128                    # examples of the objective, and of each group for the constraints

The keys are the fields of `TableSpec`. Every split scales the inputs by its own training examples;
the copies stand one below the other in one dataset, so the runs of all splits can be computed
together.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fairbound.benchmark._user_files import (
    KNOWN_KEYS_ONLY,
    Count,
    Size,
    Text,
    keyed_by,
    known_name,
    mistakes_in,
    read_toml,
)
from fairbound.benchmark.problems._catalog import BenchmarkProblem, Instance
from fairbound.benchmark.problems._scaled import scaled_constraint as scaled_constraint
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._contrasts import against_pooled
from fairbound.constraints._notions import NOTIONS, loss_parity, pairwise_loss_parity
from fairbound.constraints._regularizers import FairretNorm
from fairbound.data._dataset import Dataset, Split
from fairbound.data._samplers import BatchSpec
from fairbound.data._sources import best, load
from fairbound.data._splits import paper_split, random_split, scaled
from fairbound.data._table import Table, is_census
from fairbound.training._functional import initial_points, make_functional
from fairbound.training._problem import Problem

PAPER_NOTIONS = {  # the paper's, beside those of `constraints.NOTIONS`; l_i: mean loss of group i
    "pairwise": "l_i - l_j <= bound for every two groups, in both directions: Experiment 1",
    "against_mean": (
        "l_i - mean_j l_j <= bound and its negative, the mean unweighted: eq. (4) as printed"
    ),
    "absolute_against_pooled": (
        "|l_i - l| <= bound, l the loss of all examples, one nonsmooth constraint a group: the "
        "authors' form"
    ),
}
_SEED = 2026  # of the splits and of the examples that `rows` keeps
PAPERS_SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
# of results
DECIDING = (
    "group",
    "groups",
    "notion",
    "bound",
    "unit",
    "hidden",
    "rows",
    "min_size",
    "split",
    "primal",
)


def _add_up(shares: Mapping[str, float]) -> Mapping[str, float]:
    if abs(math.fsum(shares.values()) - 1) > 1e-9:
        raise ValueError(f"they must add up to 1, got {math.fsum(shares.values()):g}")
    return shares


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) == 1 or len(set(names)) < len(names):
        raise ValueError(f"they must be two or more different names, got {list(names)}")
    return names


NotionName = Annotated[
    str, AfterValidator(lambda name: known_name(name, (*PAPER_NOTIONS, *NOTIONS), "notion"))
]
SplitShares = Annotated[
    Mapping[str, Annotated[float, Field(strict=True, gt=0, le=1)]],
    keyed_by(*Split._fields, needed=("train", "test")),
    AfterValidator(_add_up),
]


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class SplitSpec:
    """Division into examples that train and examples that test.

    Without shares the first split is the paper's (80 / 10 / 10, `fairbound.data.paper_split`), and
    any others are random ones of its sizes.
    """

    seed: Annotated[int, Field(strict=True, ge=0)]
    shares: SplitShares | None = None

    def split(self, groups: Tensor, number: int) -> Split:
        """The paper's comes first unless shares are given; the others are random, each with another
        seed."""
        if self.shares is None and number == 0:
            return paper_split(groups, self.seed)
        return random_split(groups, self.shares or PAPERS_SHARES, seed=self.seed + number)

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(name for name in Split._fields if name in (self.shares or PAPERS_SHARES))


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class TableSpec:
    """The keys of a file."""

    title: Text
    group: Text
    notion: NotionName
    bound: Size
    name: str = ""  # of the file
    # constraints are divided by it; sqrt(m): many have the size of one
    unit: Annotated[float, Field(gt=0)] = 1.0
    state: Text | None = None  # whose census data: OK, VA
    # instead: a table of the user's own, or data named as in `fairbound.data.load`
    source: Text | None = None
    label: Text | None = None  # of that table: the column to predict
    positive: Any = None  # the label's value that counts as 1, where that is not evident
    folder: str | None = None  # with census data
    # their names, in the order of the data
    groups: Annotated[tuple[Text, ...], AfterValidator(_different)] = ()
    hidden: tuple[Count, ...] = ()
    batch: Count = 64
    cell: Count | None = None  # examples of each group, where that is not `batch`
    rows: Count | None = None  # of the table that are kept, drawn at random; None: all
    min_size: Annotated[int, Field(ge=0)] = 10  # smaller groups are merged
    split: SplitSpec = SplitSpec(seed=_SEED, shares={"train": 0.8, "test": 0.2})
    # how multiplier methods move x; empty: by their own step
    primal: Mapping[str, Any] = Field(default_factory=dict)
    on_board: bool = True
    changed: bool = False  # whether a board also runs it with single changes
    # whether a board also tests its bound on held-out data, on several splits
    held_out: bool = True
    steps: Count = (
        # of a run on a board by a method that draws one mini-batch a step; others have as many
        # examples
        2000
    )
    family: Text = "fairness"
    origin: str = ""
    license: str = ""

    @model_validator(mode="after")
    def _named_once(self) -> TableSpec:
        if (self.state is None) == (self.source is None):
            raise ValueError(
                'name the data: either state = "OK" (census data) or source = "my.csv" with its'
                " label"
            )
        return self

    def __hash__(self) -> int:
        return hash(json.dumps(asdict(self), sort_keys=True, default=str))

    def data_source(self) -> str:
        """Source of the data: acs:OK where they are found, else synthetic:OK; or a file."""
        return self.source or best(str(self.state), self.folder)

    def deciding(self) -> dict[str, Any]:
        """What decides results, beside the data, whose checksum does."""
        return {name: value for name, value in asdict(self).items() if name in DECIDING}


TABLE_MODELS: dict[tuple[str, ...], Any] = {(): TableSpec, ("split",): SplitSpec}  # of a file


def read_spec(path: Path) -> TableSpec:
    """The keys of a TOML file; nothing is loaded yet."""
    table = read_toml(path, "a problem")
    with mistakes_in(path, TABLE_MODELS, table):
        return table_spec(table, path)


def table_spec(table: Mapping[str, Any], path: Path) -> TableSpec:
    """Read a file's content; a source that is a file is a path from the folder of that file."""
    table = {"name": path.stem} | dict(table)
    if not is_census(str(table.get("source", "acs:"))):
        table["source"] = str(path.parent / table["source"])
    return TypeAdapter(TableSpec).validate_python(table)


def table_problem(spec: TableSpec) -> BenchmarkProblem:
    """The problem; nothing is loaded yet."""
    census = spec.source is None or is_census(spec.source)
    return BenchmarkProblem(
        name=spec.name,
        title=spec.title,
        family=spec.family,
        build=partial(_build, spec),
        noise="which examples a mini-batch draws, of all and of each group",
        kinds="<= nonlinear",
        convex=False,
        steps=spec.steps,
        scale=spec.bound or None,
        origin=spec.origin,
        license=spec.license
        or ("public domain, US Census Bureau" if census else "that of your file"),
        on_board=spec.on_board,
        changed=spec.changed,
        held_out=spec.held_out,
        primal=spec.primal,
        spec=spec,
    )


# Network and constraints --------------------------------------------------------------------------


def binary_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Per-example loss, from logits."""
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")


def fully_connected(inputs: int, *hidden: int) -> nn.Module:
    """ReLU, one output."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((inputs, *hidden)[-1], 1), nn.Flatten(0))


def named_constraint(
    notion: str, bound: float, groups: Tensor, labels: Tensor, names: Sequence[str]
) -> Constraint:
    """Make the constraint with the name of a notion, one of the paper's or of
    `constraints.NOTIONS`, over the examples."""
    if notion == "absolute_against_pooled":
        sizes = torch.bincount(groups, minlength=len(names)).double()
        pooled = against_pooled((sizes / sizes.sum()).tolist(), two_sided=False)
        return replace(loss_parity(names, bound=bound, contrast=pooled).bind(groups), absolute=True)
    build = {"pairwise": pairwise_loss_parity, "against_mean": loss_parity}.get(notion) or NOTIONS[
        notion
    ]
    return build(names, bound=bound).bind(groups, labels)


# Building -----------------------------------------------------------------------------------------


def _build(spec: TableSpec, splits: int = 1) -> Instance:
    source = spec.data_source()
    unscaled = _dataset(spec, source)
    ((column, names),) = unscaled.levels.items()
    groups = unscaled.groups[column]
    made = [spec.split.split(groups, i) for i in range(splits)]
    data = replace(
        unscaled,
        X=torch.cat([scaled(unscaled, split).X for split in made]),
        y=unscaled.y.repeat(splits),
        groups={column: groups.repeat(splits)},
    )

    def network() -> nn.Module:
        return fully_connected(data.X.shape[1], *spec.hidden)

    forward = make_functional(network())[0]

    def on(
        examples: Dataset,
        notion: str = spec.notion,
        bound: float = spec.bound,
        fairret: float = 0.0,
    ) -> Problem:
        constraint = named_constraint(notion, bound, examples.groups[column], examples.y, names)
        constraint = scaled_constraint(constraint, 1.0 / spec.unit, binary_cross_entropy)
        regularizer = (
            FairretNorm(column=column, levels=len(names), weight=fairret) if fairret else None
        )
        return Problem(forward, binary_cross_entropy, constraint, examples, regularizer)

    variant = cache(partial(on, data))
    return Instance(
        problem=variant(spec.notion, spec.bound, 0.0),
        starts=lambda seeds: initial_points(network, seeds),
        feasible_starts=lambda seeds: initial_points(network, seeds, feasible="zero-last-layer"),
        splits=tuple(
            Split(*(part + i * unscaled.rows for part in split)) for i, split in enumerate(made)
        ),
        batch=BatchSpec(objective=spec.batch, cell=spec.cell or spec.batch),
        variant=variant,
        source=source if is_census(source) else Path(source).name,
        data_words=unscaled.source,
        unscaled=unscaled,
        scale=1.0 / spec.unit,
    )


@cache
def _table(source: str, label: str | None, positive: Any, folder: str | None) -> Table:
    """Several problems read the same data. Rows of a user's table with missing values are skipped,
    and named."""
    table = load(source, label=label, positive=positive, folder=folder)
    return table if table.census else table.complete()


def _dataset(spec: TableSpec, source: str) -> Dataset:
    """Data of the source, with the groups' names and at most `rows` examples."""
    data = _table(
        source, None if is_census(source) else spec.label, spec.positive, spec.folder
    ).dataset(spec.group.split(",") if "," in spec.group else spec.group, min_size=spec.min_size)
    ((column, found),) = data.levels.items()
    if spec.groups and len(spec.groups) != len(found):
        raise ValueError(
            f"{spec.name} names {len(spec.groups)} groups, but {spec.group} gives {len(found)} in"
            f" {data.source}: {', '.join(found)}"
        )
    data = replace(data, levels={column: spec.groups or tuple(found)})
    if spec.rows is None or spec.rows >= data.rows:
        return data
    kept = torch.randperm(data.rows, generator=_generator(_SEED))[: spec.rows].sort().values
    return replace(data, X=data.X[kept], y=data.y[kept], groups={column: data.groups[column][kept]})


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
