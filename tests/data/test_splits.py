"""Splits and scaling: the paper's split row for row, exact partitions, and what only training rows
decide."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from census import extract, needs_extract
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from fairbound import BatchSpec, Dataset, Sampler, Split, initial_points
from fairbound.columns._attributes import Against, Attribute, Coded
from fairbound.constraints._cells import Cells
from fairbound.data._readers import read_table
from fairbound.data._samplers import SamplerStack
from fairbound.data._splits import paper_split, random_split, scaled

THREE = Dataset(torch.zeros(3, 2), torch.zeros(3))
GROUPS = torch.tensor([0] * 70 + [1] * 30)
WHITE = Against("RAC1P", 1, ("white", "non-white"))
MARRIED = Coded(
    "MAR", (1, 2, 3, 4, 5), ("married", "widowed", "divorced", "separated", "never married")
)
strata = st.lists(st.integers(0, 4), min_size=60, max_size=200).map(
    lambda rows: np.array([*rows, *np.repeat(np.unique(rows), 12)])
)


def parts(split: Split) -> list[int]:
    return torch.cat(tuple(split)).sort().values.tolist()


@needs_extract("VA")
@pytest.mark.parametrize(
    ("state", "group", "sizes"),
    [("OK", WHITE, [14333, 0, 1792, 0, 1792]), ("VA", MARRIED, [36915, 0, 4614, 0, 4615])],
)
def test_the_papers_split_of_the_papers_data(
    state: str, group: Attribute, sizes: list[int]
) -> None:
    data = read_table(extract(state), label="PINCP_GT_50K", drop="ST").dataset(group)
    column = data.groups[group.name].numpy()
    split = paper_split(column)
    assert [len(rows) for rows in split] == sizes

    rows = np.arange(len(column))
    train, held_out = train_test_split(rows, test_size=0.2, stratify=column, random_state=42)
    validation, test = train_test_split(
        held_out, test_size=0.5, stratify=column[held_out], random_state=42
    )
    assert split.train.tolist() == train.tolist()
    assert split.validation.tolist() == validation.tolist()
    assert split.test.tolist() == test.tolist()
    ours = scaled(data, split).X
    theirs = StandardScaler().fit(data.X[train].double().numpy()).transform(data.X.double().numpy())
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, torch.from_numpy(theirs).float(), rtol=0, atol=1e-6)


@given(strata, st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_papers_split_is_a_partition_with_every_group_in_every_part(
    groups: np.ndarray, seed: int
) -> None:
    split = paper_split(groups, seed)
    assert parts(split) == list(range(len(groups)))
    for rows in (split.train, split.validation, split.test):
        assert set(groups[rows]) == set(groups)


@given(
    strata,
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.permutations(["dual", "validation", "test"]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_a_random_split_is_a_stratified_partition(
    groups: np.ndarray, weights: list[int], names: list[str], seed: int
) -> None:
    shares = {name: w / sum(weights) for name, w in zip(["train", *names], weights, strict=False)}
    try:
        split = random_split(groups, shares, seed=seed)
    except ValueError as error:  # a share so small that some group has no row for it
        least = int(re.search(r"min_size=(\d+)", str(error)).group(1))  # type: ignore[union-attr]
        assert np.bincount(groups)[np.unique(groups)].min() < least
        return
    assert parts(split) == list(range(len(groups)))
    for name in Split._fields:
        rows = split.pool(name)
        assert rows.tolist() == sorted(rows.tolist())
        for group in np.unique(groups):
            exact = shares.get(name, 0) * (groups == group).sum()
            assert abs((groups[rows] == group).sum() - exact) < 1
    again = random_split(torch.from_numpy(groups), shares, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(split, again, strict=True))


def test_a_whole_share_is_given_whatever_is_owed() -> None:
    """0.29 * 100 is below 29 in floating point, and the first group gave train more than its
    share."""
    groups = np.repeat([0, 1], [60, 100])
    split = random_split(groups, {"train": 0.29, "validation": 0.355, "test": 0.355}, seed=0)
    assert np.bincount(groups[split.train]).tolist() == [18, 29]


def test_a_random_split_is_uniform_over_the_rows_of_a_group() -> None:
    """Each of a group's rows is in `test` with probability .2: the count over 2,000 seeds has
    deviation 17.9."""
    groups = np.array([0] * 10 + [1] * 20)
    count = np.zeros(30)
    for seed in range(2000):
        count[random_split(groups, seed=seed).test] += 1
    assert np.abs(count - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)


def test_many_small_groups_do_not_starve_a_part() -> None:
    """Rounding group by group alone would give every odd row to the same part."""
    split = random_split(np.repeat(np.arange(200), 3), {"train": 0.5, "test": 0.5}, seed=0)
    assert abs(len(split.train) - 300) <= 1


def test_scaling_is_learned_from_training_rows_and_leaves_constants_at_zero() -> None:
    X = (
        torch.randn(100, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 50
        + 1000
    )
    X[:, 2] = 0.1  # ten copies of 0.1 do not average to 0.1 in floating point
    data = Dataset(
        X,
        torch.zeros(100),
        {"g": GROUPS},
        names=("a", "b", "c", "d"),
        source="s",
        levels={"g": ("x", "y")},
    )
    split = random_split(GROUPS, seed=3)
    made = scaled(data, split)
    theirs = StandardScaler().fit(X[split.train].numpy()).transform(X.numpy())
    torch.testing.assert_close(made.X, torch.from_numpy(theirs), rtol=1e-12, atol=1e-12)
    assert (made.X[:, 2] == 0).all()
    assert (made.names, made.source, made.levels) == (data.names, "s", data.levels)
    assert torch.equal(data.X, X)

    moved = X.clone()
    moved[split.test] += 1e6
    other = scaled(Dataset(moved, data.y), split)
    assert torch.equal(other.X[split.train], made.X[split.train])


def test_float32_columns_are_scaled_in_float64() -> None:
    """A mean of numbers near ten million is off by 0.5 in float32."""
    X = (1e7 + torch.arange(1000.0, dtype=torch.float64)[:, None]).float()
    made = scaled(Dataset(X, torch.zeros(1000)), Split.all_train(1000))
    theirs = StandardScaler().fit_transform(X.double().numpy())
    torch.testing.assert_close(made.X, torch.from_numpy(theirs).float(), rtol=0, atol=1e-6)


def test_split_initial_point_and_sampling_have_seeds_of_their_own() -> None:
    cells = Cells.of_groups([str(group) for group in range(int(GROUPS.max()) + 1)]).bind(GROUPS)

    def choices(split: int, start: int, draws: int) -> tuple[torch.Tensor, ...]:
        """The training rows, the initial point, and the places within the pool that the steps
        take."""
        made = random_split(GROUPS, {"train": 0.6, "test": 0.4}, seed=split)
        point = initial_points(lambda: torch.nn.Linear(3, 1), [start])
        stack = SamplerStack(Sampler(made, cells, BatchSpec(4, 2)).seeded(draws), 1, None)
        rows = stack.block(0, 20)[0].objective
        return made.train, point, torch.searchsorted(made.train, rows.contiguous())

    kept = torch.random.get_rng_state(), np.random.get_state()[1]
    base = choices(0, 0, 0)
    for which, seeds in enumerate([(1, 0, 0), (0, 1, 0), (0, 0, 1)]):
        for number, (before, after) in enumerate(zip(base, choices(*seeds), strict=True)):
            assert torch.equal(before, after) == (number != which)
    paper_split(GROUPS)
    assert torch.equal(torch.random.get_rng_state(), kept[0])
    assert (np.random.get_state()[1] == kept[1]).all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: paper_split(np.array([0] * 50 + [7])),
            "group 7 has 1 of 51 examples .* min_size=10",
        ),
        (
            lambda: paper_split(np.array([0] * 50 + [7] * 5)),
            "group 7 has 1 of 11 examples",
        ),
        (
            lambda: paper_split(torch.zeros(5, 2)),
            r"one group for every example, got shape \(5, 2\)",
        ),
        (lambda: paper_split(torch.zeros(0)), "no examples to split"),
        (
            lambda: random_split(np.array([0] * 50 + [7]), seed=0),
            "7 has 1 examples, .* train, dual, test .*=5 ",
        ),
        (
            lambda: random_split(GROUPS, {"train": 0.5, "tset": 0.5}, seed=0),
            "others of .*; got train, tset",
        ),
        (
            lambda: random_split(GROUPS, {"train": 0.5, "test": 0.4}, seed=0),
            "add up to 1, got .*0.4",
        ),
        (
            lambda: random_split(GROUPS, {"train": 1.0, "test": 0.0}, seed=0),
            "above 0 .*'test': 0.0",
        ),
        (lambda: random_split(GROUPS, {"test": 1.0}, seed=0), "a share of train, .*; got test"),
        (lambda: scaled(THREE, Split.all_train(4)), "from 0 to 3, but the rows are 0 to 2"),
        (lambda: scaled(THREE, Split(torch.tensor([1, -1]))), "from -1 to 1, but"),
        (lambda: scaled(THREE, Split(torch.arange(0))), "train is empty"),
        (
            lambda: scaled(Dataset(THREE.X.long(), THREE.y), Split.all_train(3)),
            "floating-point X",
        ),
    ],
)
def test_refusals_are_sentences(call, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=sentence):
        call()
