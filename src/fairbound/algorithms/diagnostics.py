"""Signs that a run is solving a problem without a solution, read from what its method recorded on the way.

Each sign is a sentence about what was seen. It is no proof: multipliers also grow while a run is far from its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

# Multipliers at the end against the middle: linear growth, the mark of infeasibility, gives 2; with falling steps 1.3.
GROWTH = 1.1
STILL = 1e-3  # |d| at the end against its largest value on the way: the direction has died out
VIOLATED = 1e-3  # kappa above this is a violation that the direction no longer reduces


def signs_of_infeasibility(history: Mapping[str, Tensor], steps: Sequence[int]) -> list[str | None]:
    """One sentence or None for every run; `history` maps a monitor's name to its values (records, R, ...)."""
    runs = next(iter(history.values())).shape[1] if history else 0
    found: list[str | None] = [None] * runs
    if len(steps) < 8:
        return found
    half = len(steps) // 2
    for run in range(runs):
        own = {name: values[:, run].double().cpu() for name, values in history.items()}
        for sign in (_no_feasible_step, _resets, _growing_multipliers, _stuck_direction):
            found[run] = found[run] or sign(own, half, steps)
    return found


def _no_feasible_step(own: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    count, saved = own.get("feasible_steps"), own.get("saved")
    if count is not None and count[-1] <= count[half]:
        return f"no feasible step among the last {steps[-1] - steps[half]}: the constraints never met their tolerance"
    if saved is not None and saved[-1] <= 0:
        return "no iterate was saved for the output, so the last one is returned; k0 may be too large"
    return None


def _resets(own: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    for name, event in (("resets", "met y_max"), ("capped", "stood at y_max")):
        count = own.get(name)
        if count is not None and count[-1] > count[half]:
            return (
                f"the multipliers {event} {int(count[-1])} times, {int(count[-1] - count[half])} of them in the second "
                "half: the problem is infeasible, or y_max is below the multipliers that solve it"
            )
    return None


def _growing_multipliers(own: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    if "multipliers" not in own or "kappa" in own:  # Ghost's are those of a subproblem and do not accumulate
        return None
    norm = own["multipliers"].clamp(min=0.0).norm(dim=-1)  # while slacks catch up, SSL-ALM's are negative
    rises = (norm[half:].diff() > 0).double().mean()
    if not norm.isfinite().all() or norm[half] <= 0 or norm[-1] < GROWTH * norm[half] or rises < 0.9:
        return None
    return (
        f"the multipliers still grow, from a norm of {norm[half]:.3g} at step {steps[half]} to {norm[-1]:.3g} "
        f"at step {steps[-1]}: the problem is infeasible, or the run too short"
    )


def _stuck_direction(own: Mapping[str, Tensor], half: int, steps: Sequence[int]) -> str | None:
    if "kappa" not in own or "direction" not in own:
        return None
    kappa, length = own["kappa"], own["direction"]
    late = half + half // 2
    if kappa[late:].min() < VIOLATED or length[late:].max() > STILL * max(1.0, float(length.max())):
        return None
    return f"kappa stays at {kappa[-1]:.3g} while the direction has died out: a stationary point of the violation"
