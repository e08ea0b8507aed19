"""Notions of fairness by name, as users give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairbound.fairness import limits
from fairbound.fairness.limits import Limit

NOTIONS: dict[str, Callable[..., Limit]] = {
    name: getattr(limits, name)
    for name in (
        "accuracy_equality",
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
        return constraint
    if callable(constraint):
        return constraint(names, bound=bound)
    if constraint not in NOTIONS:
        raise ValueError(f"constraint must be one of {', '.join(sorted(NOTIONS))}, got {constraint!r}")
    return NOTIONS[constraint](names, bound=bound)
