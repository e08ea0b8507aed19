"""Cells: the sets of examples over which a constraint takes means.

A cell is defined by a group, a label, or both. `assign` gives the cell of every example of a
mini-batch; `bind` lists the examples of each cell in a dataset, for a sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbound._utils.sequences import sequence

MANY = 256  # cells beyond which a mini-batch's own are gathered

# (B,) each: the cell of every example, `Cells.none` for no cell; several where cells overlap.
Layers = tuple[Tensor, ...]


class Cell(NamedTuple):
    """The examples of a group, of a label, or of a group within a label."""

    name: str
    group: int | None = None  # None: any group
    label: float | None = None  # None: whatever the label

    @property
    def group_name(self) -> str:
        """The group's own name, without the label."""
        return self.name if self.label is None else self.name.rsplit(", y=", 1)[0]

    def overlaps(self, other: Cell) -> bool:
        """Whether an example can be in both."""
        groups = self.group is None or other.group is None or self.group == other.group
        return groups and (self.label is None or other.label is None or self.label == other.label)


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells in their order; with `members`, the examples of each in a dataset.

    >>> Cells.of_groups(["white", "non-white"]).bind(torch.tensor([0, 1, 1])).members
    (tensor([0]), tensor([1, 2]))
    """

    items: Sequence[Cell]
    # example numbers of each cell, ascending, over the whole dataset
    members: tuple[Tensor, ...] | None = None
    groups: int | None = None  # how many groups there are: numbers beyond are refused
    by_group: bool = False  # whether they are the groups 0, 1, ... in order, of one label or of all

    @staticmethod
    def of_groups(names: Sequence[str], label: float | None = None) -> Cells:
        """One cell for each group 0, 1, ..., of the examples with that label."""
        suffix = "" if label is None else f", y={label:g}"
        items = sequence(len(names), lambda code: Cell(f"{names[code]}{suffix}", code, label))
        return Cells(items, groups=len(items), by_group=True)

    @property
    def names(self) -> Sequence[str]:
        return sequence(len(self.items), lambda k: self.items[k].name)

    @cached_property
    def needs_groups(self) -> bool:
        return any(cell.group is not None for cell in self._kinds)

    @cached_property
    def needs_labels(self) -> bool:
        return any(cell.label is not None for cell in self._kinds)

    @property
    def _kinds(self) -> Sequence[Cell]:
        """Cells that show what all are about: the first one where they differ in their groups
        alone."""
        return self.items[:1] if self.by_group else self.items

    @property
    def are_many(self) -> bool:
        """Whether a mini-batch shows few of them, so that its own cells alone are worth
        evaluating."""
        return self.by_group and len(self) > MANY

    def __len__(self) -> int:
        return len(self.items)

    def __add__(self, other: Cells) -> Cells:
        """Join both sets of cells, one after the other."""
        both = (
            None if self.members is None or other.members is None else self.members + other.members
        )
        known = [cells.groups for cells in (self, other) if cells.groups is not None]
        return Cells((*self.items, *other.items), both, max(known, default=None))

    # The examples of a dataset --------------------------------------------------------------------

    def bind(self, groups: Tensor, labels: Tensor | None = None) -> Cells:
        """The same cells with their members among these examples."""
        if self.members is not None:
            return self
        check_groups(groups)
        if self.needs_labels and labels is None:
            raise ValueError(
                f"{self.names[0]!r} is about examples with a certain label; give labels="
            )
        if labels is not None and labels.shape != groups.shape:
            raise ValueError(
                f"groups have shape {tuple(groups.shape)} but labels {tuple(labels.shape)}"
            )
        if self.groups is not None and groups.numel() and int(groups.max()) >= self.groups:
            raise ValueError(
                f"groups go up to {int(groups.max())} but there are {self.groups} of them"
            )
        members: dict[int, Tensor] = {}
        layers = self.assign(len(groups), groups, labels, groups.device)
        for cells, layer in zip(self._layers, layers, strict=True):
            counts = torch.bincount(layer, minlength=self.none + 2).tolist()
            parts = layer.argsort(stable=True).cpu().split(counts)
            members |= {k: parts[k] for k in cells}
        return replace(self, members=tuple(members[k] for k in range(len(self))))

    def same(self, other: Cells) -> bool:
        """Whether both have the same examples in the same order of cells."""
        mine, theirs = self.examples, other.examples
        return len(mine) == len(theirs) and all(
            a is b or torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)
        )

    @property
    def examples(self) -> tuple[Tensor, ...]:
        """The members, which a sampler needs."""
        if self.members is None:
            raise ValueError(
                "these cells are not bound to a dataset; use constraint.bind(groups, labels)"
            )
        return self.members

    def within(self, pool: Tensor, examples: int) -> Cells:
        """The members that lie in the pool; `examples` is the number of examples of the dataset."""
        inside = torch.zeros(examples, dtype=torch.bool)
        inside[pool.cpu()] = True
        return replace(self, members=tuple(member[inside[member]] for member in self.examples))

    # The examples of a mini-batch -----------------------------------------------------------------

    @property
    def none(self) -> int:
        """The index for no cell; the next one for an unknown group."""
        return len(self.items)

    @cached_property
    def _layers(self) -> Sequence[Sequence[int]]:
        """Cells in layers without overlaps: one layer for all named notions."""
        if self.by_group:
            return [range(len(self))]
        kinds = {(cell.group is None, cell.label is None) for cell in self.items}
        if len(kinds) == 1 and len({(cell.group, cell.label) for cell in self.items}) == len(
            self.items
        ):
            return [list(range(len(self.items)))]  # no need to check every pair
        layers: list[list[int]] = []
        for k, cell in enumerate(self.items):
            free = [
                layer for layer in layers if not any(cell.overlaps(self.items[j]) for j in layer)
            ]
            if not free:
                layers.append([])
            (free or layers[-1:])[0].append(k)
        return layers

    @cached_property
    def _labels(self) -> list[float]:
        return sorted({cell.label for cell in self._kinds if cell.label is not None})

    @cached_property
    def _labels_by_device(self) -> dict[torch.device, Tensor]:
        return {}

    @cached_property
    def _tables(self) -> dict[torch.device, list[Tensor]]:
        return {}

    def _table(self, device: torch.device) -> list[Tensor]:
        """Tables of each layer ((groups + 3) * (labels + 1),): the cell by group and label.

        The groups are: 0, 1, ..., a number above (not known), one below -1 (not known), -1 (no
        group): an index may be negative.
        """
        if device not in self._tables:
            count = self.groups
            if count is None:
                count = 1 + max(
                    (cell.group for cell in self.items if cell.group is not None), default=-1
                )
            self._tables[device] = []
            for layer in self._layers:
                # numpy writes single entries faster
                table = np.full((count + 3, len(self._labels) + 1), self.none)
                if self.by_group:
                    table[:-3, -1] = np.arange(len(self))
                for k in () if self.by_group else layer:
                    cell = self.items[k]
                    rows = slice(None) if cell.group is None else cell.group
                    columns = (
                        slice(None) if cell.label is None else 1 + self._labels.index(cell.label)
                    )
                    table[rows, columns] = k
                if self.groups is not None and self.needs_groups:
                    table[-3:-1] = self.none + 1
                self._tables[device].append(torch.from_numpy(table.flatten()).to(device))
        return self._tables[device]

    def _label_values(self, device: torch.device) -> Tensor:
        if device not in self._labels_by_device:
            self._labels_by_device[device] = torch.tensor(
                self._labels, dtype=torch.float64, device=device
            )
        return self._labels_by_device[device]

    def assign(
        self, size: int, groups: Tensor | None, labels: Tensor | None, device: torch.device
    ) -> Layers:
        """The cell of every example of a mini-batch of that size."""
        tables, width = self._table(device), len(self._labels) + 1
        if groups is not None and self.needs_groups:
            place = groups if groups.dtype == torch.long else groups.long()
            place = place.clamp(-2, len(tables[0]) // width - 3)
        else:
            place = torch.full((size,), -1, device=device)
        if width > 1:
            assert labels is not None
            equal = labels.reshape(-1, 1) == self._label_values(device)
            place = place * width + torch.where(equal.any(1), 1 + equal.long().argmax(1), 0)
        return tuple([table.take(place) for table in tables])

    def layers_of(self, examples: Tensor, count: int) -> Layers:
        """The cells of these examples of the dataset, from the members; `count` is the number of
        all examples."""
        free: list[Tensor] = []
        for k, member in enumerate(self.examples):
            layer = next(
                (layer for layer in free if bool((layer[member] == self.none).all())), None
            )
            if layer is None:
                layer = torch.full((count,), self.none)
                free.append(layer)
            layer[member] = k
        return tuple(layer[examples.cpu()].to(examples.device) for layer in free)


def check_groups(groups: Tensor) -> None:
    """Groups are a vector of whole numbers, 0, 1, ..., or -1 for none."""
    if groups.ndim != 1 or groups.is_floating_point():
        raise ValueError(
            f"groups must be a vector of whole numbers, got {groups.dtype} of shape"
            f" {tuple(groups.shape)}"
        )
    if groups.numel() == 0:
        raise ValueError("groups are empty")
    if int(groups.min()) < -1:
        raise ValueError(
            f"groups must be numbered 0, 1, ..., or -1 for none; found {int(groups.min())}"
        )
