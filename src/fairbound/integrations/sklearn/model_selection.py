"""Selection of a model: among the candidates of a run, and between what updates the multipliers.

**Within a run** the best of its last evaluations is taken. Held-out duals lead away from the unconstrained model, and
on the straight line through both the models' gaps and losses change smoothly: the best of these is taken, evaluated on
the validation and dual sets, which have trained none of them; and then one a quarter of the way further, since the dual
set, which has updated the multipliers, shows smaller gaps than other held-out data. The line extends beyond its end:
the dual set may have shown a small gap by chance, and a choice that could only turn back would leave gaps too large.
It stops where the loss has grown beyond `MAX_LOSS_RATIO`: there a gap is closed by raising losses, a few examples
decide it, and it does not generalize (one split on OK in 40: -.04 on these sets, -.20 on others).

**Between the modes** a gap on the validation set, which is small, is noisy. What is *not* noisy is what constrained
training changed, since both models are evaluated on the same examples: the gaps that the multipliers changed on the
training data, and how much of that change is there on the validation data. Where at least half of it generalizes,
train duals are good enough. Where less does, the bound was met by overfitting, and the multipliers get a held-out dual
set. (Census, 12 and 16 splits: VA .61 to 1.03, OK -.16 to .37.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairbound.algorithms.diagnostics import recorded
from fairbound.core import Algorithm
from fairbound.integrations.sklearn.evaluation import Candidate, Evaluator
from fairbound.integrations.sklearn.report import progress
from fairbound.integrations.sklearn.trainer import HELD_OUT_DUALS, TRAIN_DUALS, UNCONSTRAINED, Trainer
from fairbound.integrations.torch.state import MonitorHistory

EVALUATIONS_PER_RUN = 40
ELIGIBLE_STEP_SHARE = 0.9  # of the steps, after which a model may be selected: before, steps are long and gaps swing
STOPPING_STEP_SHARE = 0.5  # of the steps, before which no run is stopped: an untrained model treats all groups alike
# Violations within so many bounds of the smallest count as equal, and the loss decides: those of a run's last models
# differ by the noise of its steps, those on a line by the fraction of the way.
RUN_SLACK_BOUNDS, LINE_SLACK_BOUNDS = 1.0, 0.1
LINE_FRACTIONS = tuple(eighths / 8 for eighths in range(2, 11))  # of the way from the unconstrained model
EXTRA_FRACTIONS = (1 / 8, 2 / 8)  # of the way, beyond the best
MAX_LOSS_RATIO = 1.15  # of a model on the line to the unconstrained one
MIN_GENERALIZED_SHARE = 0.5  # of the change on training data that must be there on validation data for train duals
MIN_CHANGE_BOUNDS = 0.1  # bounds by which gaps must change on training data for that share to mean something
MAX_ACCURACY_DROP = 0.03  # that held-out duals may cost


class TrainedModes(NamedTuple):
    """What the choice of a mode is made from."""

    best: Callable[[str], Candidate]  # the best candidate of a mode; runs it where that was not done yet
    training_constraints: Callable[[Candidate], Tensor]  # (m,) of a model, on the training data
    violates: Callable[[Candidate], bool]  # whether a verdict on the validation data is "violated"
    no_held_out_duals_reason: str  # empty where there is a dual set
    scale: float  # the unit of violations: a bound
    evaluated_on: str = "validation data"  # what `best` is evaluated on


def select_model(mode: str, modes: TrainedModes) -> tuple[Candidate, str]:
    """The selected model, and sentences that say why."""
    if mode != "auto":
        only = modes.best(mode)
        return only, f"{_describe(only, modes.evaluated_on)}, the best of its run."
    plain, trained = modes.best(UNCONSTRAINED), modes.best(TRAIN_DUALS)
    baseline = f"Unconstrained training: {_numbers(plain)}."
    share = generalized_share(plain, trained, modes)
    if share is None:
        return trained, f"{_describe(trained)}. The constraint hardly binds on the training data. {baseline}"
    reason = f"{100 * share:.0f} % of the change that it makes on the training data generalizes to the validation data"
    if share >= MIN_GENERALIZED_SHARE:
        return trained, f"{_describe(trained)}. {reason}: enough. {baseline}"
    reason = f"{_describe(trained)}. Only {reason}: overfitted"
    if modes.no_held_out_duals_reason:
        return trained, f"{reason}. Held-out duals are not possible: {modes.no_held_out_duals_reason}. {baseline}"
    held_out = modes.best(HELD_OUT_DUALS)
    if held_out.accuracy < trained.accuracy - MAX_ACCURACY_DROP:
        return trained, f"{reason}, but held-out duals cost too much accuracy: {_numbers(held_out)}. {baseline}"
    if held_out.violation > trained.violation and modes.violates(held_out):
        return trained, f"{reason}, but held-out duals violate the bound more: {_numbers(held_out)}. {baseline}"
    return held_out, f"{_describe(held_out)}. {reason}. {baseline}"


def generalized_share(plain: Candidate, trained: Candidate, modes: TrainedModes) -> float | None:
    """Of the change in constraints with multipliers, the share on validation data; None where there is hardly any."""
    if trained.multipliers is None:
        return None
    observed = ~(plain.c.isnan() | trained.c.isnan())
    weight = trained.multipliers.double().clamp(min=0)[observed]
    if float(weight.sum()) <= 0:
        return None
    weight = weight / weight.sum()
    on_training = (modes.training_constraints(plain) - modes.training_constraints(trained))[observed]
    on_validation = (plain.c - trained.c)[observed]
    change = float(weight @ on_training.double())
    return float(weight @ on_validation.double()) / change if change > MIN_CHANGE_BOUNDS * modes.scale else None


def best_candidate(candidates: Sequence[Candidate], slack: float) -> Candidate:
    """Of the eligible ones the smallest loss among those that violate the constraints least, up to the slack."""
    finite = [one for one in candidates if one.finite]
    if not finite:
        raise ValueError(
            f"the loss of every model of the run with {candidates[0].mode!r} is NaN or infinite; scale the columns of "
            "X, or lower learning_rate"
        )
    eligible = [one for one in finite if one.eligible] or finite[-1:]
    least = min(one.violation for one in eligible)
    return min((one for one in eligible if one.violation <= least + slack), key=lambda one: one.loss)


def _describe(one: Candidate, evaluated_on: str = "validation data") -> str:
    name = {UNCONSTRAINED: "Unconstrained", TRAIN_DUALS: "Train duals", HELD_OUT_DUALS: "Held-out duals"}[one.mode]
    where = "mean of the last steps" if one.averaged else f"step {one.step}"
    if one.mode == HELD_OUT_DUALS:
        where = f"{100 * one.fraction:.0f} % of the way from the unconstrained model"
    return f"{name}, {where}: {_numbers(one)} on {evaluated_on}"


def _numbers(one: Candidate) -> str:
    return f"violation {one.violation:.3f}, accuracy {one.accuracy:.3f}"


class ModelSelector:
    """The runs of a fit, each started when it is first needed; a context manager, which closes the progress bar."""

    def __init__(
        self,
        trainer: Trainer,
        evaluator: Evaluator,
        line_evaluator: Evaluator,
        x0: Tensor,
        patience: int | None,
        verbose: bool,
    ) -> None:
        self._trainer, self._evaluator, self._line_evaluator, self._x0 = trainer, evaluator, line_evaluator, x0
        self._patience, self._verbose = patience, verbose
        self._candidates: dict[str, list[Candidate]] = {}
        self._problems: dict[str, list[str]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> ModelSelector:
        self._show = self._stack.enter_context(progress(self._verbose, self._trainer.steps))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def best(self, mode: str, method: Algorithm[Any] | None, scale: float) -> Candidate:
        """The best model of a mode."""
        if mode == HELD_OUT_DUALS:
            return self._best_on_line(self.best(UNCONSTRAINED, None, scale).x, scale)
        if mode not in self._candidates:
            self._candidates[mode] = self._run(mode, method, self._x0, scale)
        return best_candidate(self._candidates[mode], RUN_SLACK_BOUNDS * scale)

    def _best_on_line(self, start: Tensor, scale: float) -> Candidate:
        """Held-out duals: on the line from the unconstrained model to the end of the run, and beyond."""
        found = self._candidates[HELD_OUT_DUALS] = self._run(HELD_OUT_DUALS, None, start, scale)
        last = found[-1] if found[-1].averaged else best_candidate(found, RUN_SLACK_BOUNDS * scale)
        step, end, multipliers = last.step, last.x, last.multipliers

        def at(fraction: float) -> Candidate:
            one = self._line_evaluator.candidate(HELD_OUT_DUALS, step, torch.lerp(start, end, fraction), multipliers)
            return one._replace(eligible=True, fraction=fraction)

        max_loss = MAX_LOSS_RATIO * at(0.0).loss
        line = [at(fraction) for fraction in LINE_FRACTIONS]
        best = best_candidate([one for one in line if one.loss <= max_loss] or line[:1], LINE_SLACK_BOUNDS * scale)
        for further in [at(best.fraction + extra) for extra in EXTRA_FRACTIONS]:
            best = further if further.loss <= max_loss else best
        one = self._evaluator.candidate(HELD_OUT_DUALS, step, best.x, multipliers)
        return one._replace(eligible=True, fraction=best.fraction)

    def history(self) -> list[dict[str, Any]]:
        """Every evaluation, in order."""
        names = ("mode", "step", "loss", "accuracy", "violation", "averaged")
        return [{name: getattr(one, name) for name in names} for run in self._candidates.values() for one in run]

    def problems(self, mode: str) -> list[str]:
        """What went wrong in a run, as sentences."""
        return self._problems[mode]

    def _early_best(self, found: list[Candidate], mode: str, scale: float) -> Candidate | None:
        """The best of the run's second half so far, if `patience` evaluations came after it; else None."""
        later = [one for one in found if one.finite and one.step > STOPPING_STEP_SHARE * self._trainer.steps(mode)]
        if self._patience is None or not later:
            return None
        slack = float("inf") if mode == UNCONSTRAINED else RUN_SLACK_BOUNDS * scale  # unconstrained: the loss decides
        best = best_candidate([one._replace(eligible=True) for one in later], slack)
        after = sum(one.step > best.step for one in later)
        return next(one for one in later if one.step == best.step) if after >= max(1, self._patience) else None

    def _run(self, mode: str, method: Algorithm[Any] | None, x0: Tensor, scale: float) -> list[Candidate]:
        """The candidates of a run, and the mean of its last models where it has one."""
        run, steps = self._trainer.run(mode, x0, EVALUATIONS_PER_RUN, method), self._trainer.steps(mode)
        found: list[Candidate] = []
        monitors = MonitorHistory()
        for record in run:
            y = None if record.multipliers is None else record.multipliers[0].clone()
            own = {name: values[0] for name, values in record.monitors.items()}
            monitors.add(record.step, recorded(own, y))
            one = self._evaluator.candidate(mode, record.step, record.output[0], y)
            found.append(one._replace(eligible=record.step >= ELIGIBLE_STEP_SHARE * steps))
            self._show(one)
            best = self._early_best(found, mode, scale)
            if best is not None:
                self._problems[mode] = _problems(monitors.infeasible(), record.skipped)
                return [one._replace(eligible=one is best) for one in found]
        end = run.result()
        self._problems[mode] = _problems(end.diverging[0] or end.infeasible[0], end.skipped)
        if end.mean_x is not None:
            mean = self._evaluator.candidate(mode, found[-1].step, end.mean_x[0], found[-1].multipliers)
            found.append(mean._replace(eligible=True, averaged=True))
        return found


def _problems(sign: str | None, skipped: Tensor) -> list[str]:
    count = int(skipped[0])
    of_steps = [f"{count} steps were skipped because a value was NaN or infinite"] if count else []
    return [sign, *of_steps] if sign is not None else of_steps
