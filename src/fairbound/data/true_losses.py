"""A model's true losses by group: expectations over a synthetic population, not averages over a test set.

P(label = 1 | columns) is known, so only the columns are drawn, as many rows as wanted and none of them seen
in training, and the labels are averaged over. The remaining sampling noise is stated as a standard error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbound.data.synthetic import Columns, Floats, Population
from fairbound.data.table import Table

Scores = NDArray[Any]  # (rows,) what a model returns


class GroupLosses(NamedTuple):
    """Expected losses by group, in ascending order of the groups' keys."""

    keys: NDArray[np.int64]  # (groups,) as the grouping numbers them
    losses: Floats  # (groups,)
    errors: Floats  # (groups,) standard errors of `losses`, independent of each other
    shares: Floats  # (groups,) of the rows that are in a group
    rates: Floats  # (groups,) of positive labels


def cross_entropy(scores: Scores, label: int) -> Floats:
    """(rows,) log(1 + exp(-score)) where the label is 1, log(1 + exp(score)) where it is 0."""
    losses: Floats = np.logaddexp(0.0, -scores if label else scores)
    return losses


def true_group_losses(
    population: Population,
    model: Callable[[Table], Any],
    groups: Callable[[Columns], Any],
    *,
    loss: Callable[[Scores, int], Floats] = cross_entropy,
    rows: int = 1_000_000,
    seed: int = 0,
) -> GroupLosses:
    """A model's expected loss in every group of the population, on newly drawn rows.

    The loss of a row is p loss(score, 1) + (1 - p) loss(score, 0), with the true p.

    model: table -> (rows,) scores, an array or a tensor (for the default loss: log-odds).
    groups: columns -> (rows,) keys, e.g. `Intersection.keys`; rows with a negative key are in no group.
    loss: (scores, label) -> (rows,) losses.

    >>> from fairbound.data.synthetic import population
    >>> by_sex = true_group_losses(population("OK"), lambda t: np.zeros(t.rows), lambda c: c["SEX"], rows=1000)
    >>> by_sex.keys.tolist(), by_sex.losses.round(4).tolist()
    ([1, 2], [0.6931, 0.6931])
    """
    if rows < 1:
        raise ValueError(f"expected losses need at least one row, got rows={rows}")
    chunk_keys, totals = [], []  # keys, and (keys, 4) sums of 1, p, loss and squared loss, by chunk
    for table in population.chunks(rows, seed):
        p = population.probability(table.columns)
        scores = _scores(model(table), table.rows)
        expected = p * loss(scores, 1) + (1 - p) * loss(scores, 0)
        keys, place = np.unique(_vector(groups(table.columns), table.rows, "the grouping"), return_inverse=True)
        moments = [np.bincount(place, weights=each) for each in (np.ones_like(p), p, expected, expected**2)]
        chunk_keys.append(keys)
        totals.append(np.stack(moments, axis=1))
    keys, place = np.unique(np.concatenate(chunk_keys), return_inverse=True)
    sums = np.zeros((len(keys), 4))
    np.add.at(sums, place, np.concatenate(totals))
    if not (keys >= 0).any():
        raise ValueError(f"none of the {rows} rows is in a group: every key is negative")
    return _group_losses(keys[keys >= 0], sums[keys >= 0])


def _scores(values: Any, rows: int) -> Floats:
    scores = _vector(values, rows, "the model").astype(np.float64)
    if not np.isfinite(scores).all():
        bad = int((~np.isfinite(scores)).sum())
        raise ValueError(f"the model returned {bad} NaN or infinite scores in {rows} rows; its losses have no mean")
    return scores


def _vector(values: Any, rows: int, what: str) -> NDArray[Any]:
    """An array or a tensor, (rows,) or (rows, 1), on any device, as a numpy array (rows,)."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.shape not in ((rows,), (rows, 1)):
        raise ValueError(f"{what} returned shape {array.shape} for {rows} rows; expected ({rows},)")
    return array.reshape(rows)


def _group_losses(keys: NDArray[Any], sums: Floats) -> GroupLosses:
    count, p, loss, square = sums.T
    mean = loss / count
    variance = np.maximum(square / count - mean**2, 0.0) * count / np.maximum(count - 1, 1)
    errors = np.where(count > 1, np.sqrt(variance / count), np.inf)  # one row says nothing about its spread
    return GroupLosses(keys.astype(np.int64), mean, errors, count / count.sum(), p / count)
