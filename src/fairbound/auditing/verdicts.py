"""The verdict: do limits hold for the people that some rows were drawn from? holds / violated / undecided."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from fairbound.auditing.decisions import Decision, Gap, judged
from fairbound.auditing.verdict_inputs import Columns
from fairbound.auditing.verdict_samples import sampled
from fairbound.auditing.verdict_text import WIDTH, nearness, needed, sentence, table
from fairbound.constraints.constraint import Constraint
from fairbound.constraints.constraint_set import ConstraintSet, Given
from fairbound.metrics.intervals import check_level


@dataclass(frozen=True)
class Verdict:
    """What rows tell of limits; `print` shows a table and a sentence."""

    decision: Decision
    gaps: tuple[Gap, ...]  # one for every row of the limits
    rows: int
    level: float

    @property
    def decisive(self) -> Gap:
        """The gap that decides: the clearest violation, the one nearest to its bound, the one to settle."""
        if self.decision != "undecided":
            return max((gap for gap in self.gaps if gap.decision == self.decision), key=nearness)
        open_ = [gap for gap in self.gaps if gap.decision == "undecided"]
        told = [gap for gap in open_ if gap.needed is not None]
        over = [gap for gap in told if gap.estimate is not None and gap.estimate > gap.bound]
        if over:  # one violation is enough, so the one that needs the fewest rows
            return min(over, key=needed)
        silent = [gap for gap in open_ if gap.needed is None]
        return silent[0] if silent else max(told, key=needed)

    @property
    def sentence(self) -> str:
        """What to make of it, in plain words."""
        return sentence(self.decisive, self.decision, self.level)

    def __str__(self) -> str:
        return "\n".join([*table(self.gaps, self.level), *textwrap.wrap(self.sentence, WIDTH)])


def verdict(
    limits: ConstraintSet | Given,
    groups: Any = None,
    *,
    losses: Any = None,
    predictions: Any = None,
    outputs: Any = None,
    labels: Any = None,
    weight: Any = None,
    level: float = 0.95,
    seed: int = 0,
) -> Verdict:
    """Whether limits hold for the people that rows were drawn from; any model's rows, which it must not have seen.

    "holds" is said of limits that do not hold in at most 1 - level of all samples, and so is "violated" of limits
    that do; "undecided" is the rest. Columns are arrays, tensors, lists, pandas or polars columns.

    Args:
        limits: one of `fairbound.limits`, a list of them, or a mapping of names to them; not functions.
        groups: of every row, its number 0, 1, ... (-1: none) or its name in the limit; or several columns by name.
        losses: of every row, for limits on losses.
        predictions: decisions, for limits on rates: 0 or 1, or the number of a class.
        outputs: logits in place of decisions: one per row, or one per class.
        labels: for limits about rows with a certain label.
        weight: survey weights, how many people a row stands for.
        level: of confidence.
        seed: of the draws that give the simultaneous limits.

    >>> from fairbound import constraints
    >>> parity = constraints.demographic_parity(["A", "B"], bound=0.2)
    >>> found = verdict(parity, ["A", "B"] * 500, predictions=[1, 0, 0, 1] * 250)
    >>> print(found)
    limit value     all at once    alone bound       rows
    A - B 0.000 [-0.062, 0.062] <= 0.052 0.200 holds
    B - A 0.000 [-0.062, 0.062] <= 0.052 0.200 holds
    95 % limits, all at once and each alone; rows: of the scarcest cell, to decide
    Holds: at 95 % confidence every limit is kept for the people these rows were
    drawn from; nearest to its bound is 'A - B', at most 0.052 where 0.200 is
    allowed.
    """
    check_level(level)
    given = ConstraintSet.of(limits)
    listed, names = given.parts, given.names
    judgeable = [limit for limit in listed if isinstance(limit, Constraint)]
    if len(judgeable) < len(listed):
        other = next(limit for limit in listed if not isinstance(limit, Constraint))
        raise ValueError(
            f"{other.names[0]!r} is a function, whose sampling noise is not known; a verdict is about limits on means "
            "(loss_parity, demographic_parity, ...): leave it out"
        )
    columns = Columns.of(groups, losses, predictions, outputs, labels, weight)
    gaps = judged(judgeable, names, sampled(judgeable, columns), level, seed)
    words = {gap.decision for gap in gaps}
    decision: Decision = "violated" if "violated" in words else "undecided" if "undecided" in words else "holds"
    return Verdict(decision, gaps, columns.rows, level)
