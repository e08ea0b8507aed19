"""The sampler: pools, balance, epochs, blocks, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fairbound import BatchSpec, Sampler, Split
from fairbound.constraints._cells import Cell, Cells
from fairbound.data._samplers import SamplerStack

CELLS = Cells((Cell("a"), Cell("b")), (torch.arange(0, 60), torch.arange(60, 100)))
# even: training, odd: multipliers
SPLIT = Split(torch.arange(0, 100, 2), dual=torch.arange(1, 100, 2))


def sampler(**changes: object) -> Sampler:
    return Sampler(
        **{"split": SPLIT, "cells": CELLS, "sizes": BatchSpec(4, 3), "seed": 0} | changes
    )  # type: ignore[arg-type]


def stack(*samplers: Sampler, draws: int = 2) -> SamplerStack:
    return SamplerStack(samplers, draws, None)


def test_what_is_not_read_is_not_drawn_and_changes_nothing() -> None:
    runs = stack(*sampler(sizes=(BatchSpec(4, 3), BatchSpec(2, 5))).seeded(0, 1))
    (first, second), (test, step) = runs.block(0, 20), runs.block(0, 20, ("c", "f"))
    assert test.objective.shape == (20, 2, 0)
    assert step.cells.shape == (20, 2, 2, 0)
    assert torch.equal(test.cells, first.cells)
    assert torch.equal(step.objective, second.objective)


def test_rows_come_from_the_pool_and_the_cell() -> None:
    sizes = (BatchSpec(4, 3), BatchSpec(2, 5, pool="dual"))
    first, second = stack(*sampler(sizes=sizes).seeded(0, 1, 2)).block(0, 50)
    assert first.objective.shape == (50, 3, 4)
    assert second.cells.shape == (50, 3, 2, 5)
    assert (first.objective % 2 == 0).all()
    assert (second.objective % 2 == 0).all()
    assert (first.cells % 2 == 0).all()
    assert (second.cells % 2 == 1).all()  # the multipliers' own rows
    for batch in (first, second):
        assert (batch.cells[..., 0, :] < 60).all()
        assert (batch.cells[..., 1, :] >= 60).all()


def test_every_row_is_seen_equally() -> None:
    """A chi-square test, level 1e-4."""
    batch = stack(sampler(), draws=1).block(0, 500)[0]
    for rows, members in (
        (batch.objective, 50),
        (batch.cells[..., 0, :], 30),
        (batch.cells[..., 1, :], 20),
    ):
        counts = np.unique(rows.flatten(), return_counts=True)[1]
        assert len(counts) == members
        assert stats.chisquare(counts).pvalue > 1e-4


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=4, unique=True),
)
def test_blocks_and_stacks_do_not_matter(cuts: list[int], seeds: list[int]) -> None:
    """The rows of a run at a step are the same in any block and beside any other run."""
    samplers = sampler().seeded(*seeds)
    whole = stack(*samplers).block(0, sum(cuts))
    again, first = stack(*samplers), 0
    for size in cuts:
        for draw, batch in enumerate(again.block(first, size)):
            assert torch.equal(batch.objective, whole[draw].objective[first : first + size])
            assert torch.equal(batch.cells, whole[draw].cells[first : first + size])
        first += size
    alone = stack(samplers[-1]).block(0, sum(cuts))
    assert all(
        torch.equal(a.cells[:, 0], w.cells[:, -1]) for a, w in zip(alone, whole, strict=True)
    )


def test_draws_are_independent_of_each_other() -> None:
    first, second = stack(sampler()).block(0, 300)
    assert not torch.equal(first.objective, second.objective)
    a, b = first.cells.double().flatten(), second.cells.double().flatten()
    # remove the cells' own means
    within = torch.tensor([0, 60]).repeat_interleave(3).repeat(300).double()
    assert abs(np.corrcoef(a - within, b - within)[0, 1]) < 4 / len(a) ** 0.5 + 0.05


def test_seeds_give_other_rows_and_the_same_seed_the_same() -> None:
    batch = stack(*sampler().seeded(7, 8, 7)).block(0, 20)[0]
    assert torch.equal(batch.objective[:, 0], batch.objective[:, 2])
    assert not torch.equal(batch.objective[:, 0], batch.objective[:, 1])


def test_runs_may_have_splits_of_their_own() -> None:
    other = Split(torch.arange(1, 100, 2))
    batch = stack(sampler(), sampler(split=other), draws=1).block(0, 30)[0]
    assert (batch.objective[:, 0] % 2 == 0).all()
    assert (batch.objective[:, 1] % 2 == 1).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"cells": Cells((Cell("a"), Cell("empty")), (torch.arange(60), torch.arange(0)))},
            "cell 'empty' has 0 examples in pool 'train', .* of 3; .*merge",
        ),
        (
            {"sizes": BatchSpec(4, 21)},
            "cell 'b' has 20 examples in pool 'train', .* of 21",
        ),
        (
            {"sizes": BatchSpec(51, 3)},
            "objective has 50 examples in pool 'train', .* of 51",
        ),
        (
            {"sizes": BatchSpec(4, 3, pool="validation")},
            "cell 'a' has 0 examples in pool 'validation'",
        ),
        ({"sizes": BatchSpec(4, 3, pool="duals")}, "no pool is called 'duals'"),
        (
            {"split": Split(torch.arange(100) % 2 == 0)},
            "pool 'train' must hold row numbers, got torch.bool",
        ),
        ({"split": Split(torch.arange(-1, 50))}, "from -1 to 49"),
        ({"seed": 2**63}, "a seed must fit in 64 bits"),
    ],
)
def test_bad_samplers_are_sentences(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        sampler(**changes)


def test_bad_sizes_are_sentences() -> None:
    with pytest.raises(ValueError, match="BatchSpec: cell must be a whole number >= 1, got 0"):
        BatchSpec(4, 0)
    with pytest.raises(ValueError, match="makes 3 draws a step but the sampler has 2 sizes"):
        stack(sampler(sizes=(BatchSpec(4, 3), BatchSpec(4, 3))), draws=3)


def test_random_sizes_refuse_unequal_draws() -> None:
    with pytest.raises(ValueError, match="needs equal sizes in every draw"):
        SamplerStack([sampler(sizes=(BatchSpec(4, 3), BatchSpec(2, 3)))], 2, (0.5, 0.5))


def test_a_batch_may_be_as_large_as_its_pool() -> None:
    """50 examples to train on, 30 of cell a and 20 of cell b."""
    assert sampler(sizes=BatchSpec(50, 20)).pools(BatchSpec(50, 20))[2].tolist() == list(
        range(60, 100, 2)
    )
