"""A table of examples as a problem of the benchmark, from a TOML file.

title = "Income in Oklahoma, losses of two races within .02"
state = "OK"                   # census data, real where they are found; or a table of your own:
source = "loans.csv"           #   a path from the folder of this file
label = "approved"             #   the column to predict
group = "RAC1P=1"              # the protected attribute; several with commas
notion = "pairwise"            # of `config.PAPER_NOTIONS` or `constraints.NOTIONS`
bound = 0.02
hidden = [64, 32]              # widths of the network; none: logistic regression
unit = 1.0                     # constraints are divided by it
batch = 128                    # examples of the objective, and of each group for the constraints

The keys are the fields of `TableSpec`. Instances other than 0 scale the constraints and split the examples anew.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from fairbound.benchmark.collection.catalog import TRACKS, BenchmarkProblem, Instance
from fairbound.benchmark.collection.scaled import scaled
from fairbound.benchmark.config import KNOWN_KEYS_ONLY, Count, Notion, Size, Text, first_mistake, one_of
from fairbound.benchmark.experiment import cross_entropy, fully_connected, named_constraint
from fairbound.data.dataset import Dataset, Split
from fairbound.data.samplers import BatchSpec
from fairbound.data.sources import best, load
from fairbound.data.splits import random_split
from fairbound.data.table import Table, is_census
from fairbound.training.functional import initial_points, make_functional
from fairbound.training.problem import Problem

SHARES = {"train": 0.8, "test": 0.2}
SEED = 2026  # of the splits and of the examples that `rows` keeps


@dataclass(frozen=True, config=KNOWN_KEYS_ONLY)
class TableSpec:
    """The keys of a file."""

    title: Text
    group: Text
    notion: Notion
    bound: Size
    unit: Annotated[float, Field(gt=0)] = 1.0  # constraints are divided by it; sqrt(m): many have the size of one
    state: Text | None = None
    source: Text | None = None
    label: Text | None = None
    positive: Any = None
    groups: tuple[Text, ...] = ()  # names of the groups, in the order of the data; empty: the data's
    hidden: tuple[Count, ...] = ()
    batch: Count = 64
    cell: Count | None = None  # examples of each group, where that is not `batch`
    rows: Count | None = None  # of the table that are kept, drawn at random; None: all
    min_size: Annotated[int, Field(ge=0)] = 10  # smaller groups are merged
    tracks: tuple[Annotated[str, one_of("track", TRACKS)], ...] = ("solve", "heldout")
    states: tuple[Text, ...] = ()  # of the shift track: where the model is audited
    epochs: Annotated[float, Field(gt=1)] = 100.0
    family: Text = "fairness"
    origin: str = ""
    license: str = ""

    @model_validator(mode="after")
    def _named_once(self) -> TableSpec:
        if (self.state is None) == (self.source is None):
            raise ValueError('name the data: either state = "OK" (census data) or source = "my.csv" with its label')
        return self


def read_table_problem(path: Path) -> BenchmarkProblem:
    """The problem of a TOML file; nothing is loaded yet."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        spec = TypeAdapter(TableSpec).validate_python(table)
    except ValidationError as error:
        raise ValueError(f"{path}{first_mistake(error, TableSpec)}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no valid TOML: {error}") from error
    except OSError as error:
        raise OSError(f"{path} cannot be read as a problem: {error.strerror}") from error
    census = spec.source is None or is_census(spec.source)
    return BenchmarkProblem(
        name=path.stem,
        title=spec.title,
        family=spec.family,
        tracks=spec.tracks,
        build=partial(_build, spec, path.parent),
        noise="which examples a mini-batch draws, of all and of each group",
        kinds="<= nonlinear",
        convex=False,
        epochs=spec.epochs,
        scale=spec.bound or None,
        origin=spec.origin,
        license=spec.license or ("public domain, US Census Bureau" if census else "that of your file"),
        transformations=("another split", "constraints scaled by 10^u, u in [-1, 1]"),
        file=path,
    )


def _build(spec: TableSpec, home: Path, instance: int = 0, splits: int = 1) -> Instance:
    source = spec.source if spec.source and is_census(spec.source) else None
    source = source or (best(spec.state) if spec.state else str(home / str(spec.source)))
    unscaled = _dataset(spec, source)
    column, names = next(iter(unscaled.levels.items()))
    groups = unscaled.groups[column]
    made = [random_split(groups, SHARES, seed=SEED + 1000 * instance + i) for i in range(splits)]
    scales = [_moments(unscaled.X[split.train]) for split in made]
    data = replace(
        unscaled,
        X=torch.cat([(unscaled.X - mean) / deviation for mean, deviation in scales]),
        y=unscaled.y.repeat(splits),
        groups={column: groups.repeat(splits)},
    )

    def network() -> torch.nn.Module:
        return fully_connected(data.X.shape[1], *spec.hidden)

    scale = 1.0 if instance == 0 else float(10 ** torch.empty(1).uniform_(-1, 1, generator=_generator(instance)))
    forward = make_functional(network())[0]
    constraint = scaled(
        named_constraint(spec.notion, spec.bound, data.groups[column], data.y, names), scale / spec.unit, cross_entropy
    )
    elsewhere = {}
    for state in spec.states if source.startswith("acs:") and splits == 1 else ():
        other = _dataset(replace(spec, rows=None), f"acs:{state}")
        own = named_constraint(spec.notion, spec.bound, other.groups[column], other.y, names)
        moved = replace(other, X=(other.X - scales[0][0]) / scales[0][1])
        elsewhere[f"acs:{state}"] = Problem(
            forward, cross_entropy, scaled(own, scale / spec.unit, cross_entropy), moved
        )
    return Instance(
        problem=Problem(forward, cross_entropy, constraint, data),
        starts=lambda seeds: initial_points(network, seeds),
        splits=tuple(Split(*(part + i * unscaled.rows for part in split)) for i, split in enumerate(made)),
        batch=BatchSpec(objective=spec.batch, cell=spec.cell or spec.batch),
        elsewhere=elsewhere,
        source=source if is_census(source) else Path(source).name,
        scale=scale / spec.unit,
    )


@cache
def _table(source: str, label: str | None, positive: Any) -> Table:
    table = load(source, label=label, positive=positive)
    return table if table.census else table.complete()


def _dataset(spec: TableSpec, source: str) -> Dataset:
    """Of the source, with the groups' names and at most `rows` examples."""
    data = _table(source, None if is_census(source) else spec.label, spec.positive).dataset(
        spec.group.split(",") if "," in spec.group else spec.group, min_size=spec.min_size
    )
    ((column, found),) = data.levels.items()
    if spec.groups and len(spec.groups) != len(found):
        raise ValueError(f"{len(spec.groups)} groups are named, but {spec.group} has {', '.join(found)} in {source}")
    data = replace(data, levels={column: spec.groups or found})
    if spec.rows is None or spec.rows >= data.rows:
        return data
    kept = torch.randperm(data.rows, generator=_generator(SEED))[: spec.rows].sort().values
    return replace(data, X=data.X[kept], y=data.y[kept], groups={column: data.groups[column][kept]})


def _moments(train: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation; 1 in place of 0."""
    deviation, mean = torch.std_mean(train.double(), 0, correction=0)
    return mean.to(train), torch.where(deviation > 0, deviation, 1.0).to(train)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
