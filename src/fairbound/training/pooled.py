"""Constraints on very many groups in stacked runs: constraint examples come from the whole pool, in any groups.

A mini-batch shows some of the groups. Their rows of the method's state are gathered before a step and written back
after it (`PooledRows`), outside of what is vmapped and compiled: a step costs O(examples), whatever the number of
groups. Inside, the same `update` sees the constraints of the groups that are there (`pooled_sample`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fairbound.constraints.batch import MiniBatch
from fairbound.constraints.cells import present_cells
from fairbound.constraints.constraint import Constraint
from fairbound.constraints.contrasts import Others
from fairbound.constraints.layouts import GroupedLayout
from fairbound.core import Algorithm, Estimate, MultiplierMethod, Sample
from fairbound.training.problem import Gathered, Problem, group_columns

Shown = dict[str, Tensor]  # by part: cells (S,), the place of every example, what is known of the other cells


def check_pooled(problem: Problem, algorithm: Algorithm[Any]) -> None:
    """Refuse a method or constraints that cannot be restricted to the groups of a mini-batch."""
    if not isinstance(algorithm, MultiplierMethod) or not algorithm.row_wise or algorithm.draws > 1:
        raise ValueError(
            f"{type(algorithm).__name__} treats all constraints together, and a mini-batch of examples of any groups "
            "shows some of them; use DescentAscent(), Penalty() or SSLALM(samples=1), or bind the constraint to the "
            "groups of the data: constraint.bind(groups)"
        )
    if problem.regularizer is not None:
        raise ValueError("a regularizer needs constraints that are bound to the data: constraint.bind(groups)")
    for part in problem.constraints.parts:
        if not isinstance(part, Constraint) or not part.cells.by_group or part.cells.members is not None:
            raise ValueError(
                f"the constraint {part.names[0]!r} cannot be evaluated on examples of any groups; beside a constraint "
                "that is bound to no dataset use those that compare every group with a bound or with the mean"
            )
        part.contrast.rows(torch.zeros(1, dtype=torch.long))  # says so where it compares all cells


class PooledRows:
    """The rows that the mini-batches of R runs show: of the method's state, and of the running means of groups."""

    def __init__(self, problem: Problem, runs: int) -> None:
        self.problem, self.constraints = problem, problem.constraints
        self.running = self.constraints.running_means((runs,))

    def show(self, part: dict[str, Tensor]) -> tuple[Shown, Tensor]:
        """For constraint examples (R, 1, B) what `pooled_sample` reads, and the rows (R, m)."""
        shown: Shown = vmap(self._cells)(part)
        for i, known in enumerate(self.running):
            if known is not None:
                others = known.others(shown[f"cells {i}"], shown[f"counts {i}"])
                shown |= {f"share {i}": others.share, f"part {i}": others.part}
        cells = [shown[f"cells {i}"] for i in range(len(self.running))]
        return shown, vmap(lambda cells: self.constraints.rows(cells))(cells)

    def _cells(self, part: dict[str, Tensor]) -> Shown:
        labels = part["labels"].flatten(0, 1)
        columns = {name: column.flatten(0, 1) for name, column in group_columns(part).items()}
        batch = MiniBatch(torch.zeros_like(labels, dtype=torch.float32), columns, labels)
        shown: Shown = {}
        for i, (layer,) in enumerate(self.constraints.layers(batch)):
            cells, places = present_cells(layer, self.constraints.parts[i].size)
            ones = torch.ones_like(places, dtype=self.problem.data.X.dtype)
            counts = ones.new_zeros(len(cells) + 2).index_add(0, places, ones)[:-2]
            shown |= {f"cells {i}": cells, f"places {i}": places, f"counts {i}": counts}
        return shown

    def padded(self, equality: Tensor | None) -> Tensor | None:
        """`equality` with one more entry, for the row of no cell."""
        return None if equality is None else torch.cat([equality, equality.new_zeros(1)])

    def add(self, shown: Shown, totals: Tensor, stepped: Tensor) -> None:
        """The sums (R, 1+q) of the cells of a step; of the runs that made it."""
        sizes = [1, *(shown[f"cells {i}"].shape[1] for i in range(len(self.running)))]
        for i, (known, sums) in enumerate(zip(self.running, totals.split(sizes, 1)[1:], strict=True)):
            if known is not None:
                known.add(shown[f"cells {i}"], sums, shown[f"counts {i}"] * stepped[:, None])


def pooled_sample(problem: Problem, parts: Gathered, sums: list[Tensor]) -> Sample:
    """The random function of objective examples and of constraint examples in any groups; `sums` notes what it adds."""
    constraints, shown, count = problem.constraints, parts["shown"], range(len(problem.constraints.parts))
    examples = {name: part for name, part in parts.items() if name != "shown"}
    objective = problem.layout(examples).objective
    cells = [shown[f"cells {i}"] for i in count]
    others = [
        Others(shown[f"counts {i}"] > 0, shown[f"share {i}"], shown[f"part {i}"]) if f"share {i}" in shown else None
        for i in count
    ]
    restricted = constraints.restricted(cells, others)
    terms = [term._replace(cells=present.shape[0]) for term, present in zip(constraints.terms, cells, strict=True)]
    places = [shown[f"places {i}"] for i in count]  # the objective's examples are in no cell
    layers = [
        (torch.cat([place.new_full((objective,), term.cells), place]),)
        for place, term in zip(places, terms, strict=True)
    ]

    def at(x: Tensor) -> Estimate:
        values, pull = problem.vjp(lambda point: problem.values(point, examples, problem.layout(examples)), x)
        inside = torch.arange(values[0].shape[0], device=x.device) < objective
        layout = GroupedLayout(terms, layers, values[0], inside)
        totals = constraints.sums_counts(values, [], layout)
        sums.append(totals.sums)
        return restricted.observed_estimate(
            totals, lambda by_sum: pull(layout.spread(torch.cat([by_sum, by_sum.new_zeros(2)]), values))
        )

    return Sample(at)
