"""Two audits side by side: two models on the same examples, or one model at two dates.

The interval of a change a2 - a1 comes from the intervals of both (Newcombe's rule, also called
MOVER): from a2 - a1 - sqrt((a2 - low2)^2 + (high1 - a1)^2) to a2 - a1 + sqrt((high2 - a2)^2 + (a1 -
low1)^2). It is meant for independent samples, as two dates are; two models on the same examples
vary together: there it is wider than need be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairbound._utils.sentences import listing
from fairbound.auditing._audits import Audit, as_plain
from fairbound.metrics._intervals import UNDEFINED, IntervalEstimate


@dataclass(frozen=True)
class Comparison:
    """What changes from the first audit to the second."""

    first: Audit
    second: Audit
    names: tuple[str, str]  # of the models, columns or files
    metrics: Mapping[str, IntervalEstimate]  # second minus first
    # group in both -> rate, auc, ... -> second minus first
    groups: Mapping[str, Mapping[str, IntervalEstimate]]
    only_first: tuple[str, ...] = ()  # groups
    only_second: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # shown on top of the page

    def __str__(self) -> str:
        from fairbound.auditing._tables import report_comparison
        from fairbound.reports._page import as_text

        return as_text(report_comparison(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return dict(as_plain(self))


def compare(
    first: Audit,
    second: Audit,
    names: tuple[str, str] = ("first", "second"),
    notes: Sequence[str] = (),
) -> Comparison:
    """The change of every metric, and of every rate of the groups that both audits have.

    Args:
        first: the audit of the first model or date.
        second: an audit by the same attributes and with the same level.
        names: of the two models, columns or files.
        notes: sentences that are shown on top of the page.

    >>> from fairbound.auditing import audit
    >>> labels, groups = [1, 0, 1, 0] * 50, ["a", "a", "b", "b"] * 50
    >>> old = audit(labels, groups, predictions=[1, 1, 0, 0] * 50, draws=500)
    >>> new = audit(labels, groups, predictions=[1, 0, 1, 0] * 50, draws=500)
    >>> compare(old, new).metrics["demographic_parity_difference"].value
    -1.0
    """
    if first.attributes != second.attributes:
        raise ValueError(
            f"the audits are by {' x '.join(first.attributes)} and by"
            f" {' x '.join(second.attributes)}; compare audits of the same attributes"
        )
    if first.level != second.level:
        raise ValueError(
            f"the audits have intervals of level {first.level:g} and {second.level:g}; give both"
            " the same"
        )
    if len(set(names)) < 2:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    mine, others = ({group.name: group for group in audit.groups} for audit in (first, second))
    shared = [name for name in mine if name in others]
    if not shared:
        raise ValueError(
            f"no group is in both: {names[0]} has {listing(map(repr, mine), 3)}, {names[1]}"
            f" {listing(map(repr, others), 3)}; groups are matched by name"
        )
    return Comparison(
        first,
        second,
        names,
        _changes(first.metrics, second.metrics),
        {name: _changes(mine[name].measured, others[name].measured) for name in shared},
        tuple(name for name in mine if name not in others),
        tuple(name for name in others if name not in mine),
        tuple(notes),
    )


def _changes(
    first: Mapping[str, IntervalEstimate], second: Mapping[str, IntervalEstimate]
) -> dict[str, IntervalEstimate]:
    return {name: change(first[name], second[name]) for name in first if name in second}


def change(first: IntervalEstimate, second: IntervalEstimate) -> IntervalEstimate:
    """Second minus first.

    >>> change(IntervalEstimate(1.0, 0.0, 1.5), IntervalEstimate(2.0, 1.625, 2.75))
    IntervalEstimate(value=1.0, low=0.375, high=2.25)
    """
    if first.value is None or second.value is None:
        return UNDEFINED
    value = second.value - first.value
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return IntervalEstimate(value)
    down = math.hypot(second.value - second.low, first.high - first.value)
    up = math.hypot(second.high - second.value, first.value - first.low)
    return IntervalEstimate(value, value - down, value + up)
