"""Notions of fairness by name, as users give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fairbound.constraints import limits
from fairbound.constraints.limits import Limit

NOTIONS: dict[str, Callable[..., Limit]] = {
    name: getattr(limits, name)
    for name in (
        "pairwise_loss_parity",
        "bounded_group_loss",
        "demographic_parity",
        "equal_opportunity",
        "equalized_odds",
        "false_positive_parity",
        "loss_parity",
        "true_positive_parity",
    )
}


def limit_of(constraint: str | Limit | Callable[..., Limit], names: Sequence[str], bound: float) -> Limit:
    """A limit by its name, from a function of the groups' names, or as it is."""
    if isinstance(constraint, Limit):
        return _renumbered(constraint, names)
    if callable(constraint):
        made = constraint(names, bound=bound)
        if not isinstance(made, Limit):
            raise TypeError(f"the function given as constraint must return a limit, got {type(made).__name__}")
        return _renumbered(made, names)
    if not isinstance(constraint, str) or constraint not in NOTIONS:
        raise ValueError(
            f"constraint must be one of {', '.join(sorted(NOTIONS))}, a limit on losses or rates, or a function of "
            f"(names, bound=...) that gives one; got {constraint!r}"
        )
    return NOTIONS[constraint](names, bound=bound)


def _renumbered(limit: Limit, names: Sequence[str]) -> Limit:
    """The limit with its groups numbered as the data's are: by their names."""
    if limit.by is not None:
        raise ValueError(f"the limit names a column, by={limit.by!r}, and sensitive_features is one; leave by= out")
    own = {cell.group: cell.group_name for cell in limit.who if cell.group is not None}
    if all(name == str(code) for code, name in own.items()) and not set(own.values()) <= set(names):
        if limit.groups is not None and limit.groups != len(names):
            raise ValueError(f"the limit is about {limit.groups} groups, and the data has {len(names)}: {list(names)}")
        return limit  # it was given the number of groups, not their names
    unknown = [name for name in own.values() if name not in names]
    if unknown:
        raise ValueError(f"the limit is about {unknown[0]!r}, and the groups of the data are {list(names)}")
    who = tuple(
        cell if cell.group is None else cell._replace(group=list(names).index(cell.group_name)) for cell in limit.who
    )
    return limit if who == limit.who else replace(limit, who=who, groups=len(names))
