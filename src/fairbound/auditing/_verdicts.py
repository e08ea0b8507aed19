"""The verdict: do constraints hold for the population that held-out examples were drawn from?

Decided as "holds", "violated" or "undecided"; printed as a table within 80 columns and a sentence
with the conclusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairbound.auditing._cell_summaries import HeldOut, summarize
from fairbound.auditing._decisions import Decision, Gap, decide_gaps
from fairbound.auditing._tables import conclusion, nearness, verdict_table
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._constraint_set import ConstraintSet, Given
from fairbound.metrics._intervals import check_level
from fairbound.reports._page import as_text

# one violated constraint is enough, and all must hold
BY_WEIGHT: tuple[Decision, ...] = ("violated", "undecided", "holds")


@dataclass(frozen=True)
class Verdict:
    """The decision on constraints from held-out examples; `print` shows a table. `verdict` has an
    example."""

    decision: Decision
    gaps: tuple[Gap, ...]  # one for every row of the constraints
    examples: int
    level: float

    @property
    def decisive(self) -> Gap:
        """The gap that decides: the clearest violation, the one nearest to its bound, the one to
        settle."""
        if self.decision != "undecided":
            return max((gap for gap in self.gaps if gap.decision == self.decision), key=nearness)
        undecided = [gap for gap in self.gaps if gap.decision == "undecided"]
        unknown = [gap for gap in undecided if gap.needed is None]
        known = sorted(undecided, key=lambda gap: gap.needed or 0.0)[len(unknown) :]
        # one violation is enough, so the one that needs the fewest examples
        over = [gap for gap in known if (gap.estimate or 0.0) > gap.bound]
        return (*over, *unknown, *known[::-1])[0]

    @property
    def sentence(self) -> str:
        """The conclusion."""
        return conclusion(self.decisive, self.decision, self.level)

    def __str__(self) -> str:
        return as_text([verdict_table(self.gaps, self.level), self.sentence])


def verdict(
    constraints: ConstraintSet | Given,
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
    """Decide whether constraints hold for the population that held-out examples, of any model, were
    drawn from.

    "holds" is the decision for constraints that do not hold in at most 1 - level of all samples,
    and so is "violated" for constraints that do; "undecided" is the rest. Columns are arrays,
    tensors, lists, pandas or polars columns.

    Args:
        constraints: one of `fairbound.constraints`, a list of them, or a mapping of names to them;
            not functions.
        groups: (n,) the number 0, 1, ... (-1: none) of every example's group or its name in the
            constraint; or several columns by name. None: no constraint is about groups.
        losses: (n,) per-example losses, for constraints on losses; None: there are none.
        predictions: (n,) decisions, for constraints on rates: 0 or 1, or the number of a class;
            None: they are made from `outputs`.
        outputs: (n,) logits in place of decisions, or (n, classes); None: `predictions` are given.
        labels: (n,) for constraints about examples with a certain label; None: no constraint is.
        weight: (n,) survey weights, how much of the population an example represents; None: 1.
        level: of confidence, between 0 and 1.
        seed: of the draws that give the simultaneous limits.

    Returns:
        The verdict; `decision` is "holds", "violated" or "undecided", `gaps` has every limit.

    >>> from fairbound import constraints
    >>> parity = constraints.demographic_parity(["A", "B"], bound=0.2)
    >>> print(verdict(parity, ["A", "B"] * 500, predictions=[1, 0, 0, 1] * 250))
                                     limit
    constraint                 value alone bound verdict
    A - B      0.000 [-0.062, 0.062] 0.052 0.200 holds
    95 % limits: intervals for all constraints at once, limits for one alone.
    Holds: at 95 % confidence every constraint holds for the population that these
    examples were drawn from; nearest to its bound is 'A - B', at most 0.052 where
    0.200 is allowed.
    """
    check_level(level)
    listed = ConstraintSet.of(constraints)
    tested: list[Constraint] = []
    for constraint in listed.parts:
        if not isinstance(constraint, Constraint):
            raise ValueError(
                f"{constraint.names[0]!r} is a function, whose sampling noise is not known; drop"
                " it: a verdict is about constraints on means (loss_parity, ...)"
            )
        tested.append(constraint)
    held_out = HeldOut.of(
        groups,
        losses=losses,
        predictions=predictions,
        outputs=outputs,
        labels=labels,
        weight=weight,
    )
    gaps = decide_gaps(tested, listed.names, summarize(tested, held_out), level, seed)
    decisions = {gap.decision for gap in gaps}
    decision = next(each for each in BY_WEIGHT if each in decisions)
    return Verdict(decision, gaps, held_out.size, level)
