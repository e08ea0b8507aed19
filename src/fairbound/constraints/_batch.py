"""A mini-batch after the model's forward pass: what constraints are computed from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class MiniBatch(NamedTuple):
    """The examples of one mini-batch, B of them.

    >>> MiniBatch(torch.tensor([0.3, 0.7]), groups=torch.tensor([0, 1])).losses.mean()
    tensor(0.5000)
    """

    losses: Tensor  # (B,) per-example losses, reduction="none"
    # (B,) 0, 1, ..., or -1 for no group; or several such columns
    groups: Tensor | Mapping[str, Tensor] | None = None
    labels: Tensor | None = None  # (B,), for constraints on examples with a certain label
    outputs: Tensor | None = None  # (B, ...) the model's outputs, for rates
    weight: Tensor | None = None  # (B,) what an example counts, in the objective and in its group
    objective: Tensor | None = None  # (B,) bool: the examples of the objective; None: all of them
    # of constraints that are handed over (`constraints.given`), by name
    values: Mapping[str, Tensor] | None = None
    # the model's trained ones, for functions of them; filled in by the driver
    parameters: Sequence[Tensor] = ()

    def column(self, by: str | None) -> Tensor:
        """The column of groups that a constraint is about."""
        if self.groups is None:
            raise ValueError(
                "the constraints are about groups; pass groups=, one number 0, 1, ... for every"
                " example"
            )
        if isinstance(self.groups, Tensor):
            return self.groups
        if by is None and len(self.groups) == 1:
            return next(iter(self.groups.values()))
        if by is None or by not in self.groups:
            raise ValueError(
                f"groups has the columns {sorted(self.groups)}; a constraint must name one of them"
                f" with by=, got by={by!r}"
            )
        return self.groups[by]

    def needed(self, name: str, why: str) -> Tensor:
        """A field that a constraint cannot do without."""
        field: Tensor | None = getattr(self, name)
        if field is None:
            raise ValueError(f"{why} needs {name}; pass {name}= with the mini-batch")
        return field

    def check(self, columns: Collection[str | None] = ()) -> None:
        """Check shapes, the columns that constraints are about, and numbers; a sentence for what is
        wrong."""
        self.check_form(columns)
        self.check_numbers()

    def check_numbers(self) -> None:
        """The part of it that looks at numbers, which waits for a GPU."""
        if self.weight is not None and self.weight.numel() and not float(self.weight.min()) >= 0:
            raise ValueError(f"weights must be >= 0, found {float(self.weight.min())}")
        if self.objective is not None and self.objective.numel() and not bool(self.objective.any()):
            raise ValueError(
                "objective is False for every example of the mini-batch, so there is no loss to"
                " minimize; leave the mini-batch out, or pass it without objective="
            )

    def check_form(self, columns: Collection[str | None] = ()) -> None:
        """The part of it that looks at shapes, precisions and devices alone."""
        if isinstance(self.groups, Tensor) and len(set(columns) - {None}) > 1:
            raise ValueError(
                f"the constraints are about the columns {sorted(str(by) for by in columns)} but"
                " groups is one vector; pass groups as a mapping of columns"
            )
        if not isinstance(self.losses, Tensor) or self.losses.ndim != 1:
            shape = (
                tuple(self.losses.shape)
                if isinstance(self.losses, Tensor)
                else type(self.losses).__name__
            )
            raise ValueError(
                f"losses must be per-example losses, (B,), got {shape}; use a loss with"
                " reduction='none', and outputs of the labels' shape: squeeze(1) the outputs of a"
                " layer with one unit"
            )
        size = self.losses.shape[0]
        for name, values in zip(
            ("labels", "outputs", "weight", "objective"), self[2:6], strict=True
        ):
            if values is not None:
                _check_size(name, values, size)
            if values is not None and name in ("weight", "objective") and values.ndim != 1:
                raise ValueError(
                    f"{name} must be a vector, one entry for every example, got shape"
                    f" {tuple(values.shape)}"
                )
        columns_of_groups = (
            self.groups if isinstance(self.groups, Mapping) else {"groups": self.groups}
        )
        for name, column in columns_of_groups.items():
            if column is not None:
                _check_size(name, column, size)
            if column is not None and (column.ndim != 1 or column.is_floating_point()):
                raise ValueError(
                    f"{name} must be a vector of whole numbers, got {column.dtype} of shape"
                    f" {tuple(column.shape)}"
                )
            if column is not None and column.device != self.losses.device:
                raise ValueError(
                    f"{name} are on {column.device} and the losses on {self.losses.device}; use "
                    f"{name}.to({str(self.losses.device)!r})"
                )
        if self.objective is not None and self.objective.dtype != torch.bool:
            raise ValueError(
                f"objective must be True or False for every example, got {self.objective.dtype}"
            )


def _check_size(name: str, values: Tensor, size: int) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(
            f"{name} must be a tensor, got {type(values).__name__}; use torch.as_tensor(...), for"
            " groups that are texts of their numbers in the order of the constraint's names"
        )
    if values.shape[:1] != (size,):
        raise ValueError(
            f"there are {size} losses but {name} has shape {tuple(values.shape)}; one for every"
            " example"
        )
