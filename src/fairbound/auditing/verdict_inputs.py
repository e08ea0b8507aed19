"""The border of a verdict: columns of any kind (arrays, tensors, pandas, polars) as what limits are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairbound.constraints.constraint import Constraint
from fairbound.constraints.statistics import HardClass, PerExample, positive
from fairbound.constraints.subgroups import is_missing
from fairbound.metrics.counts import as_binary, as_numbers, as_vector, as_weights


class Columns(NamedTuple):
    """What is known of the rows; None where it was not given."""

    groups: Any  # (n,) numbers or text, or a mapping of such columns
    losses: Tensor | None  # (n,)
    predictions: Tensor | None  # (n,) decisions
    outputs: Tensor | None  # (n, ...) logits
    labels: Tensor | None  # (n,)
    weight: Tensor  # (n,)

    @staticmethod
    def of(groups: Any, losses: Any, predictions: Any, outputs: Any, labels: Any, weight: Any) -> Columns:
        given = {
            "losses": None if losses is None else _finite(losses, "losses"),
            "predictions": None if predictions is None else as_vector(predictions).cpu(),
            "outputs": None if outputs is None else _logits(outputs),
            "labels": None if labels is None else as_vector(labels).cpu(),
            "weight": None if weight is None else as_weights(weight).cpu(),
        }
        if given["losses"] is None and given["predictions"] is None and given["outputs"] is None:
            raise ValueError("a verdict needs numbers to judge; give losses=, predictions= (decisions) or outputs=")
        columns = dict(groups) if isinstance(groups, Mapping) else {} if groups is None else {"groups": groups}
        lengths = {name: len(column) for name, column in (given | columns).items() if column is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError("lengths differ: " + ", ".join(f"{name} {length}" for name, length in lengths.items()))
        n = next(iter(lengths.values()))
        if given["weight"] is None:
            given["weight"] = torch.ones(n, dtype=torch.float64)
        return Columns(groups, **given)  # type: ignore[arg-type]

    @property
    def rows(self) -> int:
        return len(self.weight)

    def values(self, limit: Constraint) -> Tensor:
        """(n,) what the limit takes means of: the losses, or decisions; never the stand-in that training uses."""
        meant = None if limit.statistic is None else limit.statistic.reported
        if meant is None:
            return _needed(self.losses, "losses", "one for every row (reduction='none')", limit)
        if self.predictions is not None and (meant is positive or isinstance(meant, HardClass)):
            return _decided(self.predictions, meant)
        outputs = _needed(self.outputs, "outputs", "logits; or predictions=, the decisions", limit)
        if outputs.numel() and bool(((outputs >= 0) & (outputs <= 1)).all()) and meant is positive:
            raise ValueError(
                f"outputs lie between {float(outputs.min()):g} and {float(outputs.max()):g} like probabilities, "
                "and as logits all of them would be positive decisions; give predictions=, e.g. p > 0.5"
            )
        found = meant(outputs, torch.zeros(self.rows) if self.labels is None else self.labels)
        if found.numel() != self.rows:
            raise ValueError(f"the value of {limit.names[0]!r} must be one number per row, got {tuple(found.shape)}")
        return _finite(found, f"values of {limit.names[0]!r}")

    def codes(self, limit: Constraint) -> Tensor:
        """(n,) the group 0, 1, ... of every row in the limit's column, -1 for none."""
        if not limit.cells.needs_groups:
            return torch.zeros(self.rows, dtype=torch.int64)
        column = self._column(limit)
        array = column.detach().cpu().numpy() if isinstance(column, Tensor) else np.asarray(column)
        if array.dtype.kind in "OUS":
            return _from_text(array, limit)
        codes = as_numbers(array.astype(np.int64) if array.dtype.kind == "b" else array)
        if limit.cells.groups is not None and codes.numel() and int(codes.max()) >= limit.cells.groups:
            raise ValueError(
                f"groups must be 0 to {limit.cells.groups - 1}, or -1 for none, found {int(codes.max())} for the limit "
                f"{limit.names[0]!r}"
            )
        return codes

    def _column(self, limit: Constraint) -> Any:
        if self.groups is None:
            raise ValueError(f"the limit {limit.names[0]!r} is about groups; give them, one for every row")
        if not isinstance(self.groups, Mapping):
            return self.groups
        if limit.by is None and len(self.groups) == 1:
            return next(iter(self.groups.values()))
        if limit.by not in self.groups:
            raise ValueError(
                f"groups has the columns {sorted(self.groups)}; a limit must name one of them with by=, "
                f"got by={limit.by!r}"
            )
        return self.groups[limit.by]


def _needed(column: Tensor | None, name: str, what: str, limit: Constraint) -> Tensor:
    if column is None:
        raise ValueError(f"the limit {limit.names[0]!r} needs {name}=, {what}")
    return column


def _finite(values: Any, what: str) -> Tensor:
    numbers = as_vector(values).double().cpu()
    bad = int((~torch.isfinite(numbers)).sum())
    if bad:
        raise ValueError(f"{bad} of {len(numbers)} {what} are NaN or infinite; a mean over them means nothing")
    return numbers


def _logits(outputs: Any) -> Tensor:
    tensor = outputs.detach().cpu() if isinstance(outputs, Tensor) else torch.from_numpy(np.array(outputs, dtype=float))
    if tensor.ndim == 0:
        raise ValueError("outputs must be one or several numbers per row, got a single number")
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(f"{bad} outputs are NaN or infinite; their decisions mean nothing")
    return tensor


def _decided(predictions: Tensor, meant: PerExample) -> Tensor:
    if isinstance(meant, HardClass):
        return (predictions == meant.outcome).double()
    return as_binary(predictions, "predictions").double()


def _from_text(array: np.ndarray[Any, Any], limit: Constraint) -> Tensor:
    """Groups by their names in the limit; a missing one is none."""
    names = {cell.group_name: cell.group for cell in limit.cells.items if cell.group is not None}
    text, codes = array.astype(str), np.full(len(array), -1, dtype=np.int64)
    for name, code in names.items():
        codes[text == name] = code
    unknown = text[(codes < 0) & ~is_missing(array)].tolist()
    # where the limit names some groups only (the recall of B), the others may be called anything
    if unknown and len(names) == limit.cells.groups:
        raise ValueError(
            f"{len(unknown)} rows belong to groups such as {unknown[0]!r}, and the limit {limit.names[0]!r} knows "
            f"{', '.join(list(names)[:6])}; name all groups in the limit, or mark rows of no group as missing"
        )
    if unknown and not (codes >= 0).any():
        raise ValueError(f"no row belongs to {', '.join(names)}; there is {', '.join(sorted(set(unknown))[:6])}")
    return torch.from_numpy(codes)
