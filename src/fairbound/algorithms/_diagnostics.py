"""Signs that a run diverges, or solves a problem without a solution, read from what was recorded on
the way.

Each sign is a sentence about what the records show, not a proof: multipliers also grow while a run
is far from its end, and while one diverges. Where both signs are seen, both are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from statistics import median

from torch import Tensor

from fairbound.core import violations

# Multipliers at the end against the middle: linear growth, the mark of infeasibility, gives 2; with
# falling steps 1.3.
GROWTH = 1.1
STILL = 1e-3  # |d| at the end against its largest value on the way: the direction has died out
VIOLATED = 1e-3  # kappa above this is a violation that the direction no longer reduces
# A constraint's force this many times the objective's, and growing: constraints that contradict
# each other gain up to 1 in every 60 steps, without end; noise slows it down.
FORCE = 5.0
# of an exact penalty's weight, as a mean over steps: the constraint is violated for good
FULL = 0.99
WINDOW = 5  # records whose median is a level: one bad mini-batch is no divergence
LOSS_GROWTH = 10.0  # growth of the loss, in units of its size at the start, that is divergence
# ... if the violation has grown as well: from a start where the loss is small, it grows until the
# constraints hold.
VIOLATION_GROWTH = 1.5
# growth of the violation, in units of its size at the start, that is divergence by itself
EXPLODED = 100.0
SMALLEST = 0.01  # ... of a size that is at least this: constraints of less are near their bounds
STANDS = 0.1  # of the size of the constraints at the start: a violation below that is a small error
# smallest against median violation of the second half: it no longer falls, and is no noise around 0
STEADY = 0.9


def monitor_record(
    monitors: Mapping[str, Tensor],
    multipliers: Tensor | None = None,
    objective: Tensor | None = None,
    c: Tensor | None = None,
    equality: Tensor | None = None,
) -> dict[str, Tensor]:
    """What a history keeps of a step: scalars, or (R,) of R runs whose multipliers and constraints
    are (R, m)."""
    record = dict(monitors)
    if multipliers is not None and multipliers.shape[-1]:
        # Of the positive part: while slacks catch up, SSL-ALM's are negative.
        record["multiplier_norm"] = violations(multipliers, equality).clamp(min=0.0).norm(dim=-1)
        record["multiplier_sum"] = multipliers.abs().sum(-1)
    if objective is not None:
        record["objective"] = objective
    if c is not None and c.shape[-1]:
        record["violation"] = violations(c, equality).nan_to_num(nan=-float("inf")).amax(-1)
    return record


def sign_of_divergence(history: Mapping[str, Sequence[float]]) -> str | None:
    """A sentence if the loss of one run has grown far beyond its size at the start, and the
    violation with it."""
    if "objective" not in history:
        return None
    known = [i for i, f in enumerate(history["objective"]) if not isnan(f)]
    if len(known) < 2 * WINDOW:
        return None
    first, last = known[:WINDOW], known[-WINDOW:]
    f, before = history["objective"], median(history["objective"][i] for i in first)
    now = median(f[i] for i in last)
    loss_grew = now > before + LOSS_GROWTH * max(abs(f[i]) for i in first)
    grew = f"the loss grew from {before:.3g} to {now:.3g}"
    worst = history.get("violation")
    if worst is not None:
        start, violated = median(worst[i] for i in first), median(worst[i] for i in last)
        size = max(SMALLEST, *(abs(worst[i]) for i in first))
        loss_grew = loss_grew and violated > VIOLATION_GROWTH * abs(start)
        growth = f"from {max(start, 0.0):.3g} to {violated:.3g}"
        if not loss_grew and violated > EXPLODED * size:
            return (
                f"the largest violation grew {growth}: the run diverges; use a smaller step, or a"
                " larger eta or rho"
            )
        grew += f" and the largest violation {growth}"
    if not loss_grew:
        return None
    total = history["multiplier_sum"][last[-1]] if "multiplier_sum" in history else 0.0
    if total < 1:
        return f"{grew}: the run diverges; use a smaller step"
    return (
        f"{grew} while the multipliers sum to {total:.3g}: the run diverges, since the effective"
        " step is lr * (1 + sum of the multipliers); use a smaller step or a smaller eta"
    )


def signs_of_divergence(history: Mapping[str, Tensor]) -> list[str | None]:
    """One sentence or None for every run; `history` maps a name to its values (records, R)."""
    runs = next(iter(history.values())).shape[1] if history else 0
    lists = {name: values.T.tolist() for name, values in history.items()}
    return [
        sign_of_divergence({name: values[run] for name, values in lists.items()})
        for run in range(runs)
    ]


def signs_of_infeasibility(history: Mapping[str, Tensor], steps: Sequence[int]) -> list[str | None]:
    """One sentence or None for every run; `history` maps a name to its values (records, R)."""
    runs = next(iter(history.values())).shape[1] if history else 0
    signs: list[str | None] = [None] * runs
    if len(steps) < 8:
        return signs
    half = len(steps) // 2
    for run in range(runs):
        history_of_run = {name: values[:, run].double().cpu() for name, values in history.items()}
        for sign in SIGNS:
            signs[run] = signs[run] or sign(history_of_run, half, steps)
    return signs


def _no_feasible_step(history: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    count, saved = history.get("feasible_steps"), history.get("saved")
    if count is not None and count[-1] <= count[half]:
        return (
            f"no feasible step among the last {steps[-1] - steps[half]}: the constraints never met"
            " their tolerance"
        )
    if saved is not None and saved[-1] <= 0:
        return (
            "no iterate was saved for the output, so the last one is returned; k0 may be too large"
        )
    return None


def _resets(history: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    for name, event in (("resets", "met y_max"), ("capped", "stood at y_max")):
        count = history.get(name)
        if count is not None and count[-1] > count[half]:
            return (
                f"the multipliers {event} {int(count[-1])} times, {int(count[-1] - count[half])} of"
                " them in the second half: the problem is infeasible, or y_max is below the"
                " multipliers that solve it"
            )
    return None


def _full_weight(history: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    share = history.get("full_weight")
    if share is None or share[half:].min() < FULL:
        return None
    return (
        "the penalty of a constraint stands at its full weight: the problem is infeasible, or its"
        " multiplier is larger than the weight; raise it"
    )


def _growing_force(history: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    force, violation = history.get("force"), history.get("violation")
    if (
        force is None
        or violation is None
        or force[-1] < max(FORCE, GROWTH * float(force[half]))
        or force[half:].min() <= 0
    ):
        return None  # force is 0 while no constraint is violated by more than its noise
    early, late = violation[: 2 * WINDOW].median(), violation[half:].median()
    if not 0.5 * early < late < 2 * early:  # it is being met, or the run moves away
        return None
    return (
        f"a constraint pulls {force[-1]:.3g} times as hard as the objective at step {steps[-1]},"
        f" {force[half]:.3g} times at step {steps[half]}: no model may meet it, the constraints"
        " contradict each other, or the run is too short"
    )


def _growing_multipliers(
    history: Mapping[str, Tensor], half: int, steps: Sequence[int]
) -> str | None:
    # Ghost's are a subproblem's and do not accumulate; forces have no unit and say more
    if "multiplier_norm" not in history or "kappa" in history or "force" in history:
        return None
    norm = history["multiplier_norm"]
    norm = norm[norm.isfinite()]  # an overflow ends what is seen
    half, steps = len(norm) // 2, steps[: len(norm)]
    if len(norm) < 8:
        return None
    rises = (norm[half:].diff() >= 0).double().mean()
    if norm[half] <= 0 or norm[-1] < GROWTH * norm[half] or rises < 0.9:
        return None
    return (
        f"the multipliers still grow, from a norm of {norm[half]:.3g} at step {steps[half]} to"
        f" {norm[-1]:.3g} at step {steps[-1]}: the problem is infeasible, or the run too short"
    )


def _stuck_direction(history: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    if "kappa" not in history or "direction" not in history:
        return None
    kappa, length = history["kappa"], history["direction"]
    late = half + half // 2
    if kappa[late:].min() < VIOLATED or length[late:].max() > STILL * max(1.0, float(length.max())):
        return None
    return (
        f"kappa stays at {kappa[-1]:.3g} while the direction has died out: a stationary point of"
        " the violation"
    )


def _stuck_violation(history: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    """Describe a violation that stands; for any method."""
    if "violation" not in history:
        return None
    early, late = history["violation"][:WINDOW], history["violation"][half:]
    level, middle = float(late.median()), len(late) // 2
    least = max(VIOLATED, STEADY * level, STANDS * float(early.abs().max()))
    falls = bool(late[middle:].median() < STEADY * late[:middle].median())
    if not late.isfinite().all() or late.min() < least or falls:
        return None
    return (
        f"the largest violation stands at {level:.3g} since step {steps[half]}: the problem is"
        " infeasible, or the method gives the constraints too little weight"
    )


SIGNS = (
    _no_feasible_step,
    _resets,
    _full_weight,
    _growing_force,
    _growing_multipliers,
    _stuck_direction,
    _stuck_violation,
)
