"""The one evaluation of objective and constraints against a plain transcription, on random
mini-batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._cells import Cell, Cells
from fairbound.constraints._constraint import Constraint, FunctionConstraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._contrasts import Matrix
from fairbound.constraints._layouts import BlockedLayout, GroupedLayout, Term
from fairbound.constraints._linear import SumsCounts
from fairbound.constraints._statistics import Statistic, soft_positive

F64 = torch.float64
many = settings(max_examples=80, deadline=None, derandomize=True)


class Drawn(NamedTuple):
    """A random mini-batch, constraints on it, and a weight on every entry of [f, c]."""

    batch: MiniBatch
    own: ConstraintSet
    w: Tensor  # (1+m,)


def _constraint(rng: np.random.Generator, part: int, absolute: bool) -> Constraint:
    """Cells by group, by label, both or neither, often overlapping; any contrast; losses or
    rates."""
    K, m = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    items = [
        Cell(f"{part}.{k}", _some(rng, [None, 0, 1, 2]), _some(rng, [None, 0.0, 1.0]))
        for k in range(K)
    ]
    entries = torch.tensor(rng.integers(-2, 3, (m, K)) * 0.5)
    names = tuple(f"{part}: {i}" for i in range(m))
    bound = torch.tensor(rng.normal(size=m))
    statistic = Statistic(soft_positive) if rng.random() < 0.5 else None
    return Constraint(
        Cells(tuple(items), groups=3), Matrix(names, entries), bound, statistic, absolute=absolute
    )


def _some(rng: np.random.Generator, options: list) -> int | float | None:  # type: ignore[type-arg]
    return options[int(rng.integers(len(options)))]  # type: ignore[no-any-return]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    B = draw(st.integers(1, 40))
    parts = [_constraint(rng, i, draw(st.booleans())) for i in range(draw(st.integers(1, 3)))]
    weight = torch.tensor(rng.random(B) * (rng.random(B) < 0.8)) if draw(st.booleans()) else None
    objective = torch.tensor(rng.random(B) < 0.6) if draw(st.booleans()) else None
    batch = MiniBatch(
        torch.tensor(rng.normal(size=B)),
        torch.tensor(rng.integers(-1, 3, B)),
        torch.tensor(rng.integers(0, 2, B)).double(),
        torch.tensor(rng.normal(size=B)),
        weight,
        objective,
    )
    own = ConstraintSet(tuple(parts))
    return Drawn(batch, own, torch.tensor(rng.normal(size=1 + own.m)))


def transcribed(batch: MiniBatch, own: ConstraintSet) -> tuple[Tensor, Tensor]:
    """[f, c], with its graph, and which entries can be told: the formulas, cell by cell and row by
    row."""
    assert isinstance(batch.groups, Tensor)
    assert batch.labels is not None
    assert batch.outputs is not None
    weight = torch.ones_like(batch.losses) if batch.weight is None else batch.weight
    counted = weight if batch.objective is None else weight * batch.objective
    found, known = (
        [(counted * batch.losses).sum() / counted.sum().clamp(min=1e-300)],
        [bool(counted.sum() > 0)],
    )
    for part in own.parts:
        assert isinstance(part, Constraint)
        values = batch.losses if part.statistic is None else torch.sigmoid(batch.outputs)
        means, sizes = [], []
        for cell in part.cells.items:
            inside = (
                torch.ones_like(batch.groups).bool()
                if cell.group is None
                else batch.groups == cell.group
            )
            inside = inside if cell.label is None else inside & (batch.labels == cell.label)
            sizes.append(float(weight[inside].sum()))
            means.append((weight * values)[inside].sum() / max(sizes[-1], 1e-300))
        for i, row in enumerate(part.contrast.matrix()):
            gap = sum(
                (entry * mean for entry, mean in zip(row, means, strict=True)),
                torch.zeros((), dtype=F64),
            )
            found.append((gap.abs() if part.absolute else gap) - part.bound[i])
            known.append(
                all(size > 0 for entry, size in zip(row.tolist(), sizes, strict=True) if entry != 0)
            )
    return torch.stack(found), torch.tensor(known)


@many
@given(drawn())
def test_the_evaluation_is_its_transcription(case: Drawn) -> None:
    """Value and per-example weights, cells that overlap, are empty or of weight zero included."""
    batch, own, w = case
    found, (expected, known) = own.evaluate(batch), transcribed(batch, own)
    assert torch.equal(found.isfinite(), known)
    assert torch.allclose(found[known], expected[known], atol=1e-12)

    values, layout = own.example_values(batch), own.layout(batch)
    totals = own.sums_counts(values, (), layout)
    assert torch.equal(own.observed(totals.counts), known)
    w = torch.where(known, w, 0.0)
    by_mean = own.mean_weights(totals.filled().means, w)
    weights = own.example_weights(by_mean, totals.filled().counts, layout, values)

    losses, outputs = batch.losses.clone().requires_grad_(), batch.outputs.clone().requires_grad_()  # type: ignore[union-attr]
    formula = transcribed(batch._replace(losses=losses, outputs=outputs), own)[0]
    expected_gradients = torch.autograd.grad(
        (torch.where(known, formula, 0.0) * w).sum(), (losses, outputs), allow_unused=True
    )
    again = own.example_values(batch._replace(losses=losses, outputs=outputs))
    gradients = torch.autograd.grad(again, (losses, outputs), weights, allow_unused=True)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        zero = torch.zeros_like(batch.losses)
        a, b = (zero if one is None else one for one in (mine, theirs))
        assert torch.allclose(a, b, atol=1e-10)


@many
@given(drawn())
def test_the_jacobian_is_that_of_the_transcription(case: Drawn) -> None:
    batch, own, _ = case
    assert batch.outputs is not None
    losses, outputs = batch.losses.clone().requires_grad_(), batch.outputs.clone().requires_grad_()
    mine = batch._replace(losses=losses, outputs=outputs)
    formula, known = transcribed(mine, own)
    if not known.all():
        return
    values, layout = own.example_values(mine), own.layout(mine)
    # a cell with weight 0 in every row may be empty
    totals = own.sums_counts(values, (), layout).filled()
    rows = []
    for one in torch.eye(len(totals.means), dtype=F64):
        weights = own.example_weights(one, totals.counts, layout, values)
        parts = torch.autograd.grad(
            values, (losses, outputs), weights, retain_graph=True, allow_unused=True
        )
        rows.append(
            torch.cat([torch.zeros_like(losses) if part is None else part for part in parts])
        )
    found = own.jacobian(totals.means, torch.stack(rows[1:]))
    for i in range(own.m):
        parts = torch.autograd.grad(
            formula[1 + i], (losses, outputs), retain_graph=True, allow_unused=True
        )
        expected = torch.cat([torch.zeros_like(losses) if part is None else part for part in parts])
        assert torch.allclose(found[i], expected, atol=1e-10)


@many
@given(drawn(), st.integers(2, 5))
def test_sums_and_counts_add_over_chunks(case: Drawn, chunks: int) -> None:
    batch, own, _ = case

    def totals(part: MiniBatch) -> SumsCounts:
        return own.sums_counts(own.example_values(part), (), own.layout(part))

    def chunk(i: int) -> MiniBatch:
        return MiniBatch(*(None if field is None else field[i::chunks] for field in batch[:-1]))  # type: ignore[call-overload]

    whole, added = totals(batch), totals(chunk(0))
    for i in range(1, chunks):
        added = added.plus(totals(chunk(i)))
    for a, b in zip(whole, added, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


@many
@given(drawn())
def test_the_halves_of_a_mini_batch_add_up(case: Drawn) -> None:
    """Examples of every cell are dealt in turn: counts without weights differ by one at most."""
    batch, own, _ = case
    values, layout = own.example_values(batch), own.layout(batch)
    whole, odd, even = (own.sums_counts(values, (), part) for part in (layout, *layout.halves()))
    for a, b in zip(whole, odd.plus(even), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    if batch.weight is None:
        assert (odd.counts - even.counts).abs().max() <= 1


@many
@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from([0, 1, None]), st.integers(1, 3)), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def test_blocks_are_groups_in_order(
    objective: int, cell: int, shapes: list[tuple[int | None, int]], seed: int
) -> None:
    """A sampler's mini-batch, laid out as blocks and by the cells of its examples: the same means
    and weights."""
    rng = np.random.default_rng(seed)
    terms = [Term(statistic, cells) for statistic, cells in shapes]
    size = objective + cell * sum(term.cells for term in terms)
    values = [torch.tensor(rng.normal(size=size)) for _ in range(2)]
    blocked = BlockedLayout(terms, objective, cell)
    layers, start = [], objective
    for term in terms:
        layer = torch.full((size,), term.cells)
        layer[start : start + term.cells * cell] = torch.arange(term.cells).repeat_interleave(cell)
        layers.append((layer,) if term.statistic is not None else ())
        start += term.cells * cell
    grouped = GroupedLayout(terms, layers, values[0], torch.arange(size) < objective)
    sums, counts = grouped.table(values)[:, :-2]
    assert torch.allclose(torch.cat(blocked.means(values)), sums / counts, atol=1e-12)
    weights = [
        torch.tensor(rng.normal(size=1)),
        *(torch.tensor(rng.normal(size=term.means)) for term in terms),
    ]
    table = torch.cat([torch.cat(weights) / counts, torch.zeros(2, dtype=torch.float64)])
    for a, b in zip(
        blocked.spread_means(weights, values), grouped.spread(table, values), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-12)


def test_functions_count_once_each() -> None:
    """Their values are their own sums, and the mean over accumulated mini-batches is that of their
    values."""
    own = ConstraintSet(
        (FunctionConstraint(lambda batch: batch.losses.mean().reshape(1), ("own",)),)
    )
    batches = [MiniBatch(torch.tensor([1.0, 3.0])), MiniBatch(torch.tensor([6.0]))]
    totals = [
        own.sums_counts([b.losses], own.function_values(lambda _, b=b: b), own.layout(b))
        for b in batches
    ]
    assert [t.sums[1:].tolist() for t in totals] == [[2.0], [6.0]]
    assert float(totals[0].plus(totals[1]).means[1]) == 4.0


def test_one_empty_cell_does_not_poison_the_others() -> None:
    items = Cells.of_groups(["A", "B"])
    own = ConstraintSet((Constraint(items, Matrix(("a", "b"), torch.eye(2)), torch.zeros(2)),))
    found = own.evaluate(MiniBatch(torch.tensor([2.0, 4.0]), torch.tensor([0, 0])))
    assert found[:2].tolist() == [3.0, 3.0]
    assert found[2].isnan()
