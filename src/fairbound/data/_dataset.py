"""A dataset as tensors, and a split of its examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.sentences import listing


@dataclass(frozen=True)
class Dataset:
    """Inputs, labels and group columns, with one row for each example.

    >>> Dataset(torch.zeros(4, 2), torch.ones(4), {"sex": torch.tensor([0, 1, 0, 1])}).rows
    4
    """

    X: Tensor  # (rows, ...) inputs of the model
    y: Tensor  # (rows, ...) labels
    groups: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (rows,) whole numbers >= 0
    names: Sequence[str] = ()  # of the columns of X
    source: str = ""  # where the data come from
    # name -> names of the groups 0, 1, ...
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows == 0:
            raise ValueError("the dataset has no rows")
        if len(self.y) != self.rows:
            raise ValueError(f"X has {self.rows} rows but y has {len(self.y)}")
        for name, column in self.groups.items():
            if column.shape != (self.rows,):
                raise ValueError(
                    f"group column {name!r} has shape {tuple(column.shape)}, expected"
                    f" ({self.rows},)"
                )
            if column.is_floating_point() or int(column.min()) < 0:
                raise ValueError(
                    f"group column {name!r} must hold whole numbers 0, 1, ..., found"
                    f" {column.min().item()} ({column.dtype})"
                )
        for name, named in self.levels.items():
            if name not in self.groups:
                raise ValueError(
                    f"levels are given for {name!r}, but the group columns are"
                    f" {', '.join(self.groups)}"
                )
            highest = int(self.groups[name].max())
            if highest >= len(named):
                raise ValueError(
                    f"group column {name!r} goes up to {highest} but has {len(named)} level names"
                )
        if self.names and self.X.ndim == 2 and len(self.names) != self.X.shape[1]:
            raise ValueError(f"X has {self.X.shape[1]} columns but {len(self.names)} names")
        for what, values in (("X", self.X), ("y", self.y)):
            bad = ~torch.isfinite(values).reshape(self.rows, -1)
            if bad.any():
                columns = bad.any(0).nonzero().flatten().tolist()
                named = self.names if what == "X" and self.X.ndim == 2 else ()
                shown = listing([named[j] if named else j for j in columns])
                raise ValueError(
                    f"{what} has {int(bad.sum())} NaN or infinite entries (columns {shown}; first"
                    f" in row {int(bad.any(1).nonzero()[0])}); fill or drop those rows first"
                )

    @property
    def rows(self) -> int:
        return self.X.shape[0]

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Dataset:
        """The same data on another device, or floating-point columns in another precision."""
        return replace(
            self,
            X=self.X.to(device=device, dtype=dtype if self.X.is_floating_point() else None),
            y=self.y.to(device=device, dtype=dtype if self.y.is_floating_point() else None),
            groups={name: column.to(device) for name, column in self.groups.items()},
        )


def _empty() -> Tensor:
    return torch.zeros(0, dtype=torch.long)


class Split(NamedTuple):
    """Example numbers by purpose; all but `train` may be empty. No choice ever reads `test`.

    >>> Split(train=torch.arange(80), test=torch.arange(80, 100)).pool("test").shape
    torch.Size([20])
    """

    train: Tensor  # for the model
    dual: Tensor = _empty()  # for the multipliers
    validation: Tensor = _empty()  # for choices
    calibration: Tensor = _empty()  # for certificates
    test: Tensor = _empty()  # for reports

    @staticmethod
    def all_train(rows: int) -> Split:
        """Every example for training: for problems with a known solution and simulations."""
        return Split(torch.arange(rows))

    def pool(self, name: str) -> Tensor:
        """The examples of a pool by its name."""
        if name not in self._fields:
            raise ValueError(f"no pool is called {name!r}; there are {', '.join(self._fields)}")
        examples: Tensor = getattr(self, name)
        return examples


def check_rows(numbers: Tensor, what: str, rows: int) -> None:
    """Refuse masks, no rows at all, and numbers of rows that are not there."""
    if numbers.dtype == torch.bool or numbers.is_floating_point():
        raise ValueError(
            f"{what} must hold row numbers, got {numbers.dtype}; use mask.nonzero().flatten()"
        )
    if numbers.numel() == 0:
        raise ValueError(f"{what} is empty; it needs rows")
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= rows:
        raise ValueError(f"{what} goes from {low} to {high}, but the rows are 0 to {rows - 1}")
