"""Checks of the fields of a settings dataclass, called in its `__post_init__`."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple


class Bounds(NamedTuple):
    """A range that a hyper-parameter must lie in, and how to say so."""

    wording: str
    holds: Callable[[float], bool]


POSITIVE = Bounds("a finite number > 0", lambda v: 0 < v < math.inf)
NONNEGATIVE = Bounds("a finite number >= 0", lambda v: 0 <= v < math.inf)
CAP = Bounds("a number > 0 (infinity switches it off)", lambda v: v > 0)
OPEN_UNIT = Bounds("strictly between 0 and 1", lambda v: 0 < v < 1)
UNIT = Bounds("between 0 and 1", lambda v: 0 <= v <= 1)
BELOW_ONE = Bounds("at least 0 and below 1", lambda v: 0 <= v < 1)
SHARE = Bounds("above 0 and at most 1", lambda v: 0 < v <= 1)


def require(
    owner: Any,
    bounds: Bounds,
    *names: str,
    also: tuple[type, ...] = (),
    for_each_constraint: bool = False,
) -> None:
    """Check numeric fields of a settings dataclass; `also` names the types (schedules) that may
    replace a number.

    Whole numbers become floats, so that `tau=1` and `tau=1.0` are the same setting. Tensors are
    refused: in a stack of runs they take the numbers' place without passing here
    (`hyperparams.with_hyperparams`). With `for_each_constraint` a tuple with one number or schedule
    for every constraint may be in the place of one for all.
    """

    def checked(value: Any, name: str) -> Any:
        if isinstance(value, also):
            return value
        where = f"{type(owner).__name__}: {name} must be {bounds.wording}"
        if isinstance(value, bool) or not isinstance(value, Real):
            tuples = (
                ", or a tuple with one for each constraint"
                if for_each_constraint and "[" not in name
                else ""
            )
            raise TypeError(f"{where}{' or a schedule' if also else ''}{tuples}, got {value!r}")
        if not bounds.holds(float(value)):
            raise ValueError(f"{where}, got {value}")
        return float(value)

    for name in names:
        value = getattr(owner, name)
        if for_each_constraint and isinstance(value, tuple):
            value = tuple(checked(entry, f"{name}[{i}]") for i, entry in enumerate(value))
        else:
            value = checked(value, name)
        object.__setattr__(owner, name, value)


def require_whole(owner: Any, low: int, high: int | None, *names: str) -> None:
    """Check integer fields; they decide the structure of a run and never stack."""
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or value < low or (high is not None and value > high):
            limit = f">= {low}" if high is None else f"from {low} to {high}"
            raise ValueError(
                f"{type(owner).__name__}: {name} must be a whole number {limit}, got {value!r}"
            )
        object.__setattr__(owner, name, int(value))


def require_switch(owner: Any, *names: str) -> None:
    """Check fields that are True or False."""
    for name in names:
        if not isinstance(getattr(owner, name), bool):
            raise TypeError(
                f"{type(owner).__name__}: {name} must be True or False, got"
                f" {getattr(owner, name)!r}"
            )
