"""Carrying out the runs that a choice asks for: looks, early stopping, what was seen on the way.

Of a run the best of its last looks is taken. Rows of their own lead away from the model without a constraint, and on the
straight line through both there are models whose gaps and losses change smoothly: the best of these is taken, as the
validation rows and the multipliers' rows see it, which have trained none of them; and then one a quarter of the way
further, since rows that have moved the multipliers see smaller gaps than other people's. The line goes beyond its end:
the multipliers' rows alone may have been lucky, and a choice that could only turn back would leave gaps too large. It
stops where the loss has grown beyond `DEAREST`: there a gap is closed by raising losses, a few rows decide it, and the
gap of other people is somewhere else (one split on OK in 40: -.04 seen, -.20 on new rows).
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from fairbound.algorithms.diagnostics import signs_of_infeasibility
from fairbound.core import Algorithm
from fairbound.integrations.sklearn.evaluation import Evaluator, Seen, finite
from fairbound.integrations.sklearn.mode_selection import AMONG_LOOKS, ON_A_LINE, best_look
from fairbound.integrations.sklearn.progress import progress
from fairbound.integrations.sklearn.trainer import HELD_OUT_DUALS, UNCONSTRAINED, Training
from fairbound.training.records import Record

LOOKS = 40  # at the validation rows, in a run
DEAREST = 1.15  # loss on the line, in losses of the model without a constraint
WAYS = tuple(eighths / 8 for eighths in range(2, 11))  # along the line
FURTHER = (1 / 8, 2 / 8)  # than the one that looks best
PATIENT = 0.5  # the share of the steps from which early stopping may: an untrained model treats everybody alike
LATE = 0.9  # the share of the steps after which a model may be chosen: before, steps are long and gaps swing


class ModelSelector:
    """The runs of a fit, each made when it is first asked for; a context, so that the bar of progress ends."""

    def __init__(
        self,
        training: Training,
        judge: Evaluator,
        own_judge: Evaluator,
        x0: Tensor,
        patience: int | None,
        verbose: bool,
    ) -> None:
        self._training, self._judge, self._own_judge, self._x0 = training, judge, own_judge, x0
        self._patience, self._verbose = patience, verbose
        self._seen: dict[str, list[Seen]] = {}
        self._troubles: dict[str, list[str]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> ModelSelector:
        self._show = self._stack.enter_context(progress(self._verbose, self._training.steps))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def best(self, mode: str, method: Algorithm[Any] | None, scale: float) -> Seen:
        """The best model of a mode, as the validation rows see it."""
        if mode == HELD_OUT_DUALS:
            return self._best_on_the_way(self.best(UNCONSTRAINED, None, scale).x, scale)
        if mode not in self._seen:
            self._seen[mode] = self._run(mode, method, self._x0, scale)
        return best_look(self._seen[mode], AMONG_LOOKS * scale)

    def _best_on_the_way(self, start: Tensor, scale: float) -> Seen:
        looks = self._seen[HELD_OUT_DUALS] = self._run(HELD_OUT_DUALS, None, start, scale)
        last = looks[-1] if looks[-1].averaged else best_look(looks, AMONG_LOOKS * scale)
        step, end, multipliers = last.step, last.x, last.multipliers

        def at(way: float) -> Seen:
            seen = self._own_judge.seen(HELD_OUT_DUALS, step, torch.lerp(start, end, way), multipliers)
            return seen._replace(late=True, way=way)

        dearest = DEAREST * at(0.0).loss
        line = [at(way) for way in WAYS]
        best = best_look([one for one in line if one.loss <= dearest] or line[:1], ON_A_LINE * scale)
        for further in [at(best.way + more) for more in FURTHER]:
            best = further if further.loss <= dearest else best
        return self._judge.seen(HELD_OUT_DUALS, step, best.x, multipliers)._replace(late=True, way=best.way)

    def history(self) -> list[dict[str, Any]]:
        """Every look, in order."""
        names = ("mode", "step", "loss", "accuracy", "violation", "averaged")
        return [{name: getattr(one, name) for name in names} for looks in self._seen.values() for one in looks]

    def troubles(self, mode: str) -> list[str]:
        """Sentences on what went wrong in a run."""
        return self._troubles[mode]

    def _waited_for(self, found: list[Seen], mode: str, scale: float) -> Seen | None:
        """The best look of the second half so far, if as many looks as asked for came after it; else None."""
        later = [one for one in found if finite(one) and one.step > PATIENT * self._training.steps(mode)]
        if self._patience is None or not later:
            return None
        slack = float("inf") if mode == UNCONSTRAINED else AMONG_LOOKS * scale  # without a constraint the loss decides
        best = best_look([one._replace(late=True) for one in later], slack)
        after = sum(one.step > best.step for one in later)
        return next(one for one in later if one.step == best.step) if after >= max(1, self._patience) else None

    def _run(self, mode: str, method: Algorithm[Any] | None, x0: Tensor, scale: float) -> list[Seen]:
        """The looks at a run, and one at the mean of its last models where it has one."""
        run, steps = self._training.run(mode, x0, LOOKS, method), self._training.steps(mode)
        found: list[Seen] = []
        signs = Signs()
        for record in run:
            signs.add(record)
            y = None if record.multipliers is None else record.multipliers[0].clone()
            one = self._judge.seen(mode, record.step, record.output[0], y)._replace(late=record.step >= LATE * steps)
            found.append(one)
            self._show(one)
            best = self._waited_for(found, mode, scale) if record.step > PATIENT * steps else None
            if best is not None:
                self._troubles[mode] = _troubles(signs.found(), record.skipped)
                return [look._replace(late=look is best) for look in found]
        end = run.result()
        self._troubles[mode] = _troubles(end.infeasible[0], end.skipped)
        if end.mean_x is not None:
            mean = self._judge.seen(mode, found[-1].step, end.mean_x[0], found[-1].multipliers)
            found.append(mean._replace(late=True, averaged=True))
        return found


def _troubles(sign: str | None, skipped: Tensor) -> list[str]:
    count = int(skipped[0])
    left_out = [f"{count} steps were left out because something was not finite"] if count else []
    return [sign, *left_out] if sign is not None else left_out


class Signs:
    """Of an infeasible problem, in a run that is stopped: what `Run.result` tells of one that is not."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._history: list[dict[str, Tensor]] = []

    def add(self, record: Record) -> None:
        multipliers = {} if record.multipliers is None else {"multipliers": record.multipliers}
        self._steps.append(record.step)
        self._history.append(record.monitors | multipliers)

    def found(self) -> str | None:
        values = {name: torch.stack([entry[name] for entry in self._history]) for name in self._history[0]}
        return (signs_of_infeasibility(values, self._steps) or [None])[0]
