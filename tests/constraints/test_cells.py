"""Cells: which examples of a mini-batch and of a dataset they have."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairbound.constraints._cells import Cell, Cells

CPU = torch.device("cpu")


def members_in(cells: Cells, groups: Tensor, labels: Tensor | None = None) -> list[list[int]]:
    """The examples of every cell, from what `assign` says of a mini-batch."""
    layers = cells.assign(len(groups), groups, labels, CPU)
    return [
        sorted({int(i) for layer in layers for i in (layer == k).nonzero()})
        for k in range(len(cells))
    ]


def cells_of(draw: st.DrawFn) -> Cells:
    groups = st.one_of(st.none(), st.integers(0, 2))
    labels = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 7.0]))
    chosen = draw(st.lists(st.tuples(groups, labels), min_size=1, max_size=6, unique=True))
    return Cells(tuple(Cell(f"{group} {label}", group, label) for group, label in chosen), groups=3)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.composite(cells_of)(),
    st.lists(st.tuples(st.integers(-1, 2), st.sampled_from([0, 1, 7, 9])), min_size=1),
)
def test_a_mini_batch_and_a_dataset_are_told_apart_alike(
    cells: Cells, examples: list[tuple[int, int]]
) -> None:
    """Groups, labels, both or neither, overlapping or not: `assign`, `bind` and `layers_of` follow
    the definition."""
    groups, labels = (torch.tensor(column) for column in zip(*examples, strict=True))
    expected = [
        [
            i
            for i, (g, y) in enumerate(examples)
            if cell.group in (None, g) and cell.label in (None, y)
        ]
        for cell in cells.items
    ]
    bound = cells.bind(groups, labels)
    assert members_in(cells, groups, labels) == expected
    assert [member.tolist() for member in bound.examples] == expected
    layers = bound.layers_of(torch.arange(len(groups)), len(groups))
    found = [
        sorted({int(i) for layer in layers for i in (layer == k).nonzero()})
        for k in range(len(cells))
    ]
    assert found == expected


def test_cells_without_overlap_take_one_layer() -> None:
    groups = torch.arange(4) % 2
    assert len(Cells.of_groups(["A", "B"]).assign(4, groups, None, CPU)) == 1
    both = Cells.of_groups(["A", "B"], 1) + Cells.of_groups(["A", "B"], 0)
    assert len(both.assign(4, groups, torch.ones(4), CPU)) == 1
    assert len((Cells.of_groups(["A"]) + Cells((Cell("all"),))).assign(4, groups, None, CPU)) == 2


def test_an_unknown_group_is_no_cell_of_its_own() -> None:
    """It is told from no group, -1, so that a driver can refuse it."""
    cells = Cells.of_groups(["A", "B"])
    (layer,) = cells.assign(5, torch.tensor([0, 1, -1, 2, -2]), None, CPU)
    assert layer.tolist() == [0, 1, cells.none, cells.none + 1, cells.none + 1]


def test_names_and_parts() -> None:
    cells = Cells.of_groups(["A", "B"], 1) + Cells.of_groups(["A", "B"])
    assert cells.names == ("A, y=1", "B, y=1", "A", "B")
    assert [cell.group_name for cell in cells.items] == ["A", "B", "A", "B"]
    assert cells.needs_groups
    assert cells.needs_labels
    assert not Cells((Cell("all"),)).needs_groups
    assert len(cells) == 4


def test_members_within_a_pool() -> None:
    cells = Cells.of_groups(["A", "B"]).bind(torch.tensor([0, 1, 1, 0, -1]))
    assert [m.tolist() for m in cells.examples] == [[0, 3], [1, 2]]
    inside = cells.within(torch.tensor([0, 2, 4]), 5)
    assert [m.tolist() for m in inside.examples] == [[0], [2]]
    assert not cells.same(inside)
    assert cells.same(Cells.of_groups(["x", "y"]).bind(torch.tensor([0, 1, 1, 0, -1])))
    assert cells.bind(torch.tensor([1, 1])) is cells  # bound cells stay what they are


@pytest.mark.parametrize(
    ("groups", "labels", "sentence"),
    [
        (torch.tensor([0.0, 1.0]), None, "whole numbers"),
        (torch.zeros(2, 2, dtype=torch.long), None, "must be a vector"),
        (torch.tensor([-2, 1]), None, "numbered 0, 1, ..., or -1 for none; found -2"),
        (torch.tensor([0, 2]), None, "groups go up to 2 but there are 2 of them"),
        (torch.zeros(0, dtype=torch.long), None, "groups are empty"),
        (torch.tensor([0, 1]), torch.ones(3), "labels"),
    ],
)
def test_what_cannot_be_bound_is_a_sentence(
    groups: Tensor, labels: Tensor | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Cells.of_groups(["A", "B"]).bind(groups, labels)


def test_cells_that_are_not_bound_have_no_examples() -> None:
    with pytest.raises(ValueError, match=r"not bound.*constraint.bind"):
        _ = Cells.of_groups(["A", "B"]).examples
    with pytest.raises(ValueError, match="give labels="):
        Cells.of_groups(["A", "B"], 1).bind(torch.tensor([0, 1]))
