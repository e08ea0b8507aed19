"""The verdict: do constraints hold for the population that held-out examples were drawn from?

Decided as "holds", "violated" or "undecided"; printed as a table within 80 columns and a sentence
with the conclusion.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairbound.auditing._cell_summaries import HeldOut, summarize
from fairbound.auditing._decisions import Decision, Gap, decide_gaps
from fairbound.auditing._text import number
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._constraint_set import ConstraintSet, Given
from fairbound.metrics._intervals import check_level

WIDTH = 80
MAX_SHOWN = 24  # gaps in the table; of more, those nearest to their bounds
# one violated constraint is enough, and all must hold
BY_WEIGHT: tuple[Decision, ...] = ("violated", "undecided", "holds")
BILLION = 1e9  # examples: so many are taken for no limit
_HEADINGS = ("constraint", "value", "all at once", "alone", "bound", "", "needed")


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
            return max((gap for gap in self.gaps if gap.decision == self.decision), key=_nearness)
        undecided = [gap for gap in self.gaps if gap.decision == "undecided"]
        known = [(gap.needed, gap) for gap in undecided if gap.needed is not None]
        over = [
            (needed, gap)
            for needed, gap in known
            if gap.estimate is not None and gap.estimate > gap.bound
        ]
        if over:  # one violation is enough, so the one that needs the fewest examples
            return min(over, key=lambda pair: pair[0])[1]
        unknown = [gap for gap in undecided if gap.needed is None]
        return unknown[0] if unknown else max(known, key=lambda pair: pair[0])[1]

    @property
    def sentence(self) -> str:
        """The conclusion."""
        return _sentence(self.decisive, self.decision, self.level)

    def __str__(self) -> str:
        return "\n".join([*_table(self.gaps, self.level), *textwrap.wrap(self.sentence, WIDTH)])


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
    >>> found = verdict(parity, ["A", "B"] * 500, predictions=[1, 0, 0, 1] * 250)
    >>> print(found)
    constraint value     all at once    alone bound       needed
    A - B      0.000 [-0.062, 0.062] <= 0.052 0.200 holds
    B - A      0.000 [-0.062, 0.062] <= 0.052 0.200 holds
    95 % limits, all at once and alone; needed: the scarcer group's
    examples in all, if the truth is within a standard error of the value
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


# Text ---------------------------------------------------------------------------------------------


def _table(gaps: Sequence[Gap], level: float) -> list[str]:
    """A line for every gap that is shown."""
    shown = most_important(gaps)
    columns = [_HEADINGS, *(table_line(gap) for gap in shown)]
    widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - len(widths) + 1)
    lines = [_line(entries, widths) for entries in columns]
    if len(shown) < len(gaps):
        lines.append(f"and {len(gaps) - len(shown)} more, farther from their bounds")
    needed = (
        "needed: the scarcer group's\nexamples in all, if the truth is within a standard error of"
        " the value"
    )
    return [*lines, f"{100 * level:g} % limits, all at once and alone; {needed}"]


def most_important(gaps: Sequence[Gap]) -> Sequence[Gap]:
    """All gaps in their order, or where there are many those nearest to their bounds."""
    if len(gaps) <= MAX_SHOWN:
        return gaps
    kept = sorted(range(len(gaps)), key=lambda i: _importance(gaps[i]), reverse=True)[:MAX_SHOWN]
    return [gaps[i] for i in sorted(kept)]


def _sentence(gap: Gap, decision: Decision, level: float) -> str:
    """What follows from a verdict that depends on this gap."""
    sure, population = (
        f"at {100 * level:g} % confidence",
        "the population that these examples were drawn from",
    )
    asked = f"at least {_bound(gap)} is required" if gap.minimum else f"{_bound(gap)} is allowed"
    if decision == "holds":
        assert gap.at_most is not None
        end = f"at {'least' if gap.minimum else 'most'} {number(_sign(gap) * gap.at_most)}"
        every = f"Holds: {sure} every constraint holds for {population}"
        return f"{every}; nearest to its bound is {gap.name!r}, {end} where {asked}."
    low, high = _as_read(gap)
    if decision == "violated":
        end = f"at most {number(high)}" if gap.minimum else f"at least {number(low)}"
        return (
            f"Violated: {sure}, for all constraints together, {gap.name!r} is {end} for"
            f" {population}, and {asked}."
        )
    if gap.needed is None:
        return f"Undecided: {gap.reason} (for {gap.name!r}); collect more, or merge groups."
    return (
        f"Undecided: {gap.name!r} is between {number(low)} and {number(high)}, and {asked}."
        f" {_more(gap)}"
    )


def _more(gap: Gap) -> str:
    """How many more examples decide if the truth is within a standard error of the estimate."""
    assert gap.needed is not None
    assert gap.needed_between is not None
    counts = (gap.needed_between[0], gap.needed, gap.needed_between[1])
    fewest, likely, most = (_rough(count - gap.examples) for count in counts)
    more = f"more examples of {gap.cell!r}, and of the others in proportion"
    if gap.needed_between[1] < BILLION:
        return f"{fewest} to {most} {more}, would decide."
    at_bound = "if the true value is at the bound, no number of examples decides"
    return f"It takes at least {fewest}, perhaps more than {likely} {more}; {at_bound}."


def _nearness(gap: Gap) -> float:
    """How far the estimate lies above its bound, in units of its noise; those that are not known
    come last."""
    if gap.estimate is None or gap.at_most is None:
        return -math.inf
    return (gap.estimate - gap.bound) / max(gap.at_most - gap.estimate, 1e-300)


def _importance(gap: Gap) -> tuple[int, float]:
    return -BY_WEIGHT.index(gap.decision), _nearness(gap)


def _sign(gap: Gap) -> float:
    """A minimum is stored with its sign turned."""
    return -1.0 if gap.minimum else 1.0


def _bound(gap: Gap) -> str:
    return number(_sign(gap) * gap.bound)


def _as_read(gap: Gap) -> tuple[float | None, float | None]:
    """The joint interval with the sign of the constraint as written."""
    if not gap.minimum or gap.low is None or gap.high is None:
        return gap.low, gap.high
    return -gap.high, -gap.low


def _rough(count: float) -> str:
    """Rounded up to two digits, as it is an estimate.

    >>> _rough(12_345), _rough(87), _rough(math.inf)
    ('13,000', '87', 'a billion')
    """
    return "a billion" if count >= BILLION else f"{_two_digits(count):,}"


def _two_digits(count: float) -> int:
    """Rounded up."""
    unit: int = 10 ** max(0, len(str(int(count))) - 2)
    return math.ceil(count / unit) * unit


def _short(gap: Gap) -> str:
    """The examples that would decide, in a few characters; nothing where it is decided."""
    if gap.decision != "undecided":
        return ""
    if gap.needed_between is None:
        return "?"
    fewest, most = gap.needed_between
    return f"{_digits(fewest)}-{_digits(most)}" if most < BILLION else f"{_digits(fewest)}+"


def _digits(count: float) -> str:
    """Two digits: 1200, or 3e6."""
    return (
        f"{_two_digits(count)}"
        if count < 1e6
        else f"{count:.0e}".replace("e+0", "e").replace("e+", "e")
    )


def table_line(gap: Gap) -> tuple[str, ...]:
    """The texts under the headings of the table."""
    low, high = _as_read(gap)
    return (
        gap.name,
        "" if gap.estimate is None else number(_sign(gap) * gap.estimate),
        "" if low is None else f"[{number(low)}, {number(high)}]",
        (
            ""
            if gap.at_most is None
            else f"{'>=' if gap.minimum else '<='} {number(_sign(gap) * gap.at_most)}"
        ),
        _bound(gap),
        gap.decision,
        _short(gap),
    )


def _line(entries: Sequence[str], widths: Sequence[int]) -> str:
    name, decision, width = entries[0], entries[5], widths[0]
    if len(name) > width:  # cut in the middle: names differ at their ends
        name = f"{name[: (width - 1) // 2]}~{name[len(name) - width // 2 :]}"
    aligned = [f"{entry:>{w}}" for entry, w in zip(entries, widths, strict=True)]
    return " ".join(
        [f"{name:<{width}}", *aligned[1:5], f"{decision:<{widths[5]}}", aligned[6]]
    ).rstrip()
