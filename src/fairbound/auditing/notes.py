"""What a reader must know before trusting an audit's numbers, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fairbound.metrics.counts import Counts
from fairbound.metrics.group_losses import FEWEST

SMALL = 50  # rows: below, the intervals of a group's rates are rough (fairness/intervals.py)


def small(counts: Counts) -> list[str]:
    """Groups that are absent, or too small to judge."""
    sizes = counts.sizes().tolist()
    notes = []
    empty = [name for name, size in zip(counts.names, sizes, strict=True) if size == 0]
    single = [name for name, size in zip(counts.names, sizes, strict=True) if size == 1]
    few = [name for name, size in zip(counts.names, sizes, strict=True) if 1 < size < SMALL]
    if empty:
        notes.append(f"{_listed(empty)} no rows: undefined, and left out of every metric")
    if single:
        notes.append(
            f"{_listed(single)} one row: rates of 0 or 1 by chance; a minimum size (--min-size) merges such groups"
        )
    if few:
        notes.append(f"{_listed(few)} fewer than {SMALL} rows: the intervals are wide, and rough")
    return notes


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{'group' if len(names) == 1 else 'groups'} {shown} {'has' if len(names) == 1 else 'have'}"


def one_sided(labels: Tensor, predictions: Tensor) -> list[str]:
    """Whether all labels, or all predictions, are alike."""
    notes = []
    for values, what in ((labels, "label"), (predictions, "prediction")):
        seen = values.unique().tolist()
        if len(seen) == 1:
            notes.append(f"every {what} is {seen[0]}: rates among the others are undefined")
    return notes


def no_probabilities(score: Tensor) -> str:
    """Why the scores have no cross-entropy; empty where they have."""
    if not bool(((score >= 0) & (score <= 1)).all()):
        return "scores are not all between 0 and 1, so they are no probabilities: losses are left out"
    if bool(((score == 0) | (score == 1)).all()):
        return "scores are all 0 or 1, so they are no probabilities: losses are left out"
    return ""


def not_compared(counts: Counts) -> list[str]:
    """Which groups the gaps of losses and the distances of scores leave out."""
    few = [name for name, size in zip(counts.names, counts.sizes().tolist(), strict=True) if 0 < size < FEWEST]
    if not few:
        return []
    return [f"{_listed(few)} fewer than {FEWEST} rows: left out of w1, wd and the largest gaps of losses"]
