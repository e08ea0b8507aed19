"""The choice of a model: among the last looks at a run, and between what moves the multipliers.

Selection rows are few, and a gap on them is noisy. What is *not* noisy is what training within a bound changed, since
both models see the same people: the gaps that its multipliers moved on the training rows, and how much of that move is
there on the validation rows. Where at least half carried over, training rows are good enough to learn the bound from.
Where less did, the bound was met by learning rows by heart, and the multipliers get rows of their own. (Census, 12 and
16 splits: VA .61 to 1.03, OK -.16 to .37.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from fairbound.integrations.sklearn.evaluation import Seen, finite
from fairbound.integrations.sklearn.trainer import HELD_OUT_DUALS, TRAIN_DUALS, UNCONSTRAINED

# Violations within so many bounds of the smallest count as equal, and the loss decides: those of a run's last models
# differ by the noise of its steps, those on a line by how far it was gone.
AMONG_LOOKS, ON_A_LINE = 1.0, 0.1
ENOUGH = 0.5  # the share of a move on training rows that must be there on validation rows
HARDLY = 0.1  # bounds by which constraints must have moved gaps on training rows, for that share to mean something
DEAR = 0.03  # accuracy that rows of their own may cost


class Runs(NamedTuple):
    """What a choice may ask for."""

    best: Callable[[str], Seen]  # the best look of a mode's run on validation rows; runs it
    on_training_rows: Callable[[Seen], Tensor]  # (m,) constraints of a model
    breaks: Callable[[Seen], bool]  # whether a verdict on validation rows says "violated"
    why_no_held_out_duals: str  # empty where there are some
    scale: float  # the bound that violations are held against
    seen_on: str = "validation rows"  # where `best` looks


def chosen(mode: str, runs: Runs) -> tuple[Seen, str]:
    """The model to keep, and sentences that say why."""
    if mode != "auto":
        only = runs.best(mode)
        return only, f"{words(only, runs.seen_on)}, the best of its run."
    plain, trained = runs.best(UNCONSTRAINED), runs.best(TRAIN_DUALS)
    beside = f"Without a constraint: {_figures(plain)}."
    share = carried_over(plain, trained, runs)
    if share is None:
        return trained, f"{words(trained)}. The constraint hardly binds on training rows. {beside}"
    carried = f"Of what the multipliers moved on training rows, {100 * share:.0f} % carried over to validation rows"
    if share >= ENOUGH:
        return trained, f"{words(trained)}. {carried}: enough to learn the bound from. {beside}"
    if runs.why_no_held_out_duals:
        return trained, (
            f"{words(trained)}. {carried}: the bound was met by learning rows by heart. Multipliers cannot have rows "
            f"of their own: {runs.why_no_held_out_duals}. {beside}"
        )
    own = runs.best(HELD_OUT_DUALS)
    reason = f"{carried}: the bound was met there by learning rows by heart"
    if own.accuracy < trained.accuracy - DEAR:
        return trained, f"{words(trained)}. {reason}, but rows of their own cost too much: {_figures(own)}. {beside}"
    if own.violation > trained.violation and runs.breaks(own):
        return trained, f"{words(trained)}. {reason}, but rows of their own do worse: {_figures(own)}. {beside}"
    return own, f"{words(own)}. {reason}; with training rows: {_figures(trained)}. {beside}"


def carried_over(plain: Seen, trained: Seen, runs: Runs) -> float | None:
    """The share of the move in the constraints that have multipliers; None where there was hardly any."""
    if trained.multipliers is None:
        return None
    there = ~(plain.c.isnan() | trained.c.isnan())
    weight = trained.multipliers.double().clamp(min=0)[there]
    if float(weight.sum()) <= 0:
        return None
    weight = weight / weight.sum()
    on_training = (runs.on_training_rows(plain) - runs.on_training_rows(trained))[there]
    on_selection = (plain.c - trained.c)[there]
    move = float(weight @ on_training.double())
    return float(weight @ on_selection.double()) / move if move > HARDLY * runs.scale else None


def best_look(seen: Sequence[Seen], slack: float) -> Seen:
    """Of the late looks, the smallest loss among those that break the constraints least, give or take the slack."""
    whole = [one for one in seen if finite(one)]
    if not whole:
        raise ValueError(
            f"the loss of every model of the run with {seen[0].mode!r} is NaN or infinite; scale the columns of X, or "
            "lower learning_rate"
        )
    late = [one for one in whole if one.late] or whole[-1:]
    least = min(one.violation for one in late)
    return min((one for one in late if one.violation <= least + slack), key=lambda one: one.loss)


def words(one: Seen, seen_on: str = "validation rows") -> str:
    """A model in words."""
    if one.mode == HELD_OUT_DUALS:
        who = f"Multipliers moved by rows of their own, {100 * one.way:.0f} % of the way"
    else:
        where = "mean of the last steps" if one.averaged else f"step {one.step}"
        who = f"{'Unconstrained' if one.mode == UNCONSTRAINED else 'Multipliers moved by training rows'}, {where}"
    return f"{who}: {_figures(one)} on {seen_on}"


def _figures(one: Seen) -> str:
    return f"violation {one.violation:.3f}, accuracy {one.accuracy:.3f}"
