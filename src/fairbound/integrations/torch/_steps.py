"""The steps of a loop: what both kinds of methods share, from a mini-batch to [f, c], and around a
step."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairbound._utils.frames import frames_of_ours
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import Constraint
from fairbound.constraints._constraint_set import ConstraintSet
from fairbound.constraints._dense import DenseConstraints
from fairbound.constraints._linear import SumsCounts
from fairbound.core import Algorithm, main_draw
from fairbound.integrations.torch import _state_dict as state_dict
from fairbound.integrations.torch._checks import check_first, check_same_parameters
from fairbound.integrations.torch._distributed import Processes
from fairbound.integrations.torch._estimate import (
    BatchEstimate,
    BatchStatistics,
    DenseEvaluation,
    ManyEvaluation,
    ShownCells,
)
from fairbound.integrations.torch._gradient_pass import loss_scale
from fairbound.integrations.torch._parameters import Parameters
from fairbound.integrations.torch._progress import Progress
from fairbound.training._contract import start_warning

MOST_TOGETHER = 10_000  # constraints that a method may treat together
CHECKED_EVERY = 100  # steps after which the model's parameters are compared with those to train
ONE_BATCH = (
    "SSLALM(samples=1) uses one for everything (its multipliers are biased),"
    " DescentAscent(second=False) too."
)


class StepInfo:
    """What one mini-batch showed."""

    def __init__(self, estimate: BatchEstimate, made: Tensor | None = None) -> None:
        self._estimate, self._made = estimate, made

    @property
    def loss(self) -> Tensor:
        """() the objective."""
        return self._estimate.f

    @property
    def c(self) -> Tensor:
        """(m,) the constraints, feasible where <= 0; NaN: the mini-batch does not show one, or the
        step is skipped."""
        absent = self._estimate.absent
        return (
            self._estimate.c.clone()
            if absent is None
            else self._estimate.c.masked_fill(absent, torch.nan)
        )

    @property
    def rows(self) -> Tensor | None:
        """Rows that `c` has, with very many constraints, m for none; else None: all."""
        return self._estimate.rows

    @property
    def skipped(self) -> bool:
        """Whether the step was skipped because something was not finite; reading it waits for a
        GPU."""
        return self._made is not None and not bool(self._made)


class Steps(ABC):
    """A method on a model's parameters, advanced by mini-batches."""

    kinds: list[str]  # what every leaf of the method's state belongs to (`state_dict`)
    # (m,) the multiplier at which a constraint pulls as hard as f, where it is measured
    unit: Tensor | None = None

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        constraints: ConstraintSet,
        method: Algorithm[Any],
        *,
        gathered: bool,
    ) -> None:
        if constraints.m > MOST_TOGETHER and not gathered:
            raise ValueError(
                f"{type(method).__name__} treats all constraints of a mini-batch together, and"
                f" there are {constraints.m}; use a method that treats each alone on one"
                " mini-batch: DescentAscent(), Penalty(), SSLALM(samples=1), with a constraint"
                " that compares each group with a bound or with the mean"
            )
        self.method, self.constraints, self.model = method, constraints, model
        self.parameters = Parameters(model)
        self.processes = Processes.of(model, self.parameters.tensors)
        # whether the rows that a mini-batch shows are gathered of very many
        self.gathered = gathered
        self.progress = Progress(constraints, method, gathered)
        self.state: Any = None  # the method's; None before the first mini-batch
        self.rows = constraints.m + gathered  # of the state: one more, for places of no cell
        self.main, self.draws = main_draw(method), method.draws
        self._handed_over = [
            name for _, part in constraints.functions if part.handed_over for name in part.names
        ]
        self._checked = False  # a first mini-batch
        self._place()

    def _place(self) -> None:
        """What is on the device of the model, where nothing has been observed."""
        device = self.parameters.device
        dense = DenseConstraints.suits(self.constraints) and not self.gathered
        self.evaluation = (DenseEvaluation if dense else ManyEvaluation)(self.constraints, device)
        # at the numbers of a step, which on a GPU waits for them
        self.look = not dense or device.type == "cpu"
        # (1+rows,) objective and constraints of the last step; NaN before the first
        self.last = torch.full((1 + self.rows,), torch.nan, dtype=torch.float64, device=device)

    @property
    def equality(self) -> Tensor | None:
        """(rows,) the rows of the state that are equalities."""
        equality = self.constraints.equality
        if equality is None:
            return None
        return torch.cat([equality, equality.new_zeros(self.rows - len(equality))]).to(
            self.parameters.device
        )

    def prepare(self, model: nn.Module) -> None:
        """The model as a trainer moved and wrapped it after this was built."""
        held = {id(p) for p in model.parameters()}
        named = zip(self.parameters.names, self.parameters.tensors, strict=True)
        lost = [name for name, p in named if id(p) not in held]
        if lost:
            raise ValueError(
                f"the trained model does not have the parameter {lost[0]!r} of Constrained: it is"
                " another model, or the trainer replaced its parameters; build Constrained with"
                " the model that is trained"
            )
        saved = self.state_dict()
        self._place()
        self.load_state_dict(saved)  # onto the device where the parameters are now
        self.processes = Processes.of(model, self.parameters.tensors)

    # From a mini-batch to [f, c] ------------------------------------------------------------------

    def batch(self, losses: Tensor | MiniBatch, *fields: Any) -> MiniBatch:
        """The mini-batch with all that was given of it, in the order of the fields of
        `MiniBatch`."""
        if isinstance(losses, Tensor):
            batch = MiniBatch(losses, *fields, self.parameters.tensors)  # type: ignore[call-arg]
        else:
            batch = self._complete(losses if isinstance(losses, MiniBatch) else MiniBatch(losses))
            if not isinstance(batch.losses, Tensor):
                batch.check()  # explains it
            doubled = [
                name
                for name, value in zip(MiniBatch._fields[1:-1], fields, strict=True)
                if value is not None
            ]
            if doubled:
                raise ValueError(
                    f"{doubled[0]}= was given beside MiniBatch, which has a field for it; put it"
                    " there"
                )
        self._check_form(batch)
        if batch.losses.shape[:1] == (0,) and self.processes.alone:
            raise ValueError(
                "the mini-batch is empty: it has no losses, and so no mean; leave it out"
            )
        if batch.losses.device != self.parameters.device:
            raise ValueError(
                f"the losses are on {batch.losses.device}, but the model is on"
                f" {self.parameters.device}; compute them from the model, on its device"
            )
        return batch

    def _check_form(self, batch: MiniBatch) -> None:
        """What shapes, precisions and names tell, of every mini-batch."""
        batch.check_form()
        unknown = (
            []
            if batch.values is None
            else [name for name in batch.values if name not in self._handed_over]
        )
        if unknown:
            known = ", ".join(map(repr, self._handed_over)) or "none"
            raise ValueError(
                f"values has {unknown[0]!r}, which is not the name of a constraint;"
                f" constraints.given() has: {known}"
            )

    def _complete(self, batch: MiniBatch) -> MiniBatch:
        if not isinstance(batch, MiniBatch):
            raise TypeError(
                "a mini-batch must be fairbound.MiniBatch(losses, groups, ...), got"
                f" {type(batch).__name__}"
            )
        return batch._replace(parameters=self.parameters.tensors)

    def in_order(self, batch: MiniBatch, extra_batches: Sequence[MiniBatch]) -> list[MiniBatch]:
        """One mini-batch for each that the method asks for: the main one where the objective is
        evaluated."""
        draws = self.draws
        if len(extra_batches) != draws - 1:
            raise ValueError(
                f"{type(self.method).__name__} needs {draws} independent mini-batches a step, got"
                f" {1 + len(extra_batches)}; pass the others as extra_batches=[MiniBatch(losses,"
                f" groups), ...], on newly drawn examples, under torch.no_grad(). {ONE_BATCH}"
            )
        rest = iter(extra_batches)
        return [batch if i == self.main else self._complete(next(rest)) for i in range(draws)]

    def drawn(
        self, evaluate: Callable[[int], MiniBatch], evaluates: str, size: int = 1
    ) -> BatchStatistics:
        """Newly drawn examples."""
        with torch.set_grad_enabled("f" in evaluates):
            return self.statistics(self._complete(evaluate(size)))

    def statistics(self, batch: MiniBatch) -> BatchStatistics:
        """Statistics of a mini-batch: per-example values and cells."""
        if not self._checked:
            check_first(self.constraints, batch)
        if self.progress.attempts % CHECKED_EVERY == 0:
            check_same_parameters(self.model, self.parameters)
        if (
            self._checked
            and self.look
            and (batch.weight is not None or batch.objective is not None)
        ):
            batch.check_numbers()
        self._checked = True
        return BatchStatistics.of(
            self.constraints, batch, processes=self.processes if self.gathered else None
        )

    def totals(self, batch: MiniBatch) -> SumsCounts:
        """Sums and counts of a mini-batch that is not differentiated."""
        with torch.no_grad(), torch.autocast(batch.losses.device.type, enabled=False):
            return self.statistics(batch).totals()

    def estimate(self, totals: SumsCounts, cells: ShownCells | None = None) -> BatchEstimate:
        """[f, c] of the sums and counts of all processes."""
        totals = totals if self.processes.size == 1 else self.processes.summed(totals)
        return self.evaluation.estimate(totals, self.last, cells, self.look)

    # Around a step --------------------------------------------------------------------------------

    @abstractmethod
    def backward(
        self,
        batch: MiniBatch,
        extra_batches: Sequence[MiniBatch],
        scaler: torch.amp.GradScaler | None,
        scale: float,
    ) -> StepInfo:
        """One step; the arguments are those of `Constrained.backward`."""

    @abstractmethod
    def backward_closure(self, evaluate: Callable[[int], MiniBatch], scale: float) -> StepInfo:
        """One step from a function that draws new examples."""

    @abstractmethod
    def initial_state(self, first: BatchEstimate | None) -> Any:
        """The method's state at the start; `first` is None where only its form is wanted."""

    def multipliers(self) -> Tensor | None:
        """(m,) of a method that has them."""
        y = None if self.state is None else self.method.multipliers(self.state)
        return None if y is None else y[: len(self.constraints.names)]

    def begun(self, first: BatchEstimate) -> Any:
        """The method's state, before the first step the one that it starts from."""
        if self.state is not None:
            return self.state
        sentence = start_warning(self.method, "the loop", first.c)
        if sentence is not None:
            warnings.warn(sentence, UserWarning, stacklevel=frames_of_ours())
        return self.initial_state(first)

    def start(self, batch: MiniBatch) -> None:
        """The method's initial state from a separate mini-batch."""
        if self.state is not None:
            raise ValueError(
                "the method has begun, and start() would discard its state; build a new Constrained"
            )
        first = self.estimate(self.totals(batch))
        if not bool(first.finite):
            raise ValueError(
                "the loss or a constraint is NaN or infinite on the mini-batch to start from"
            )
        self.state = self.begun(first)

    def advance(
        self,
        state: Any,
        estimates: Sequence[BatchEstimate],
        cells: Sequence[ShownCells | None],
        made: Tensor | None = None,
    ) -> None:
        """A step was made by these mini-batches, unless `made` () bool says otherwise; this is the
        state after it."""
        for estimate, shown in zip(estimates, cells, strict=True):
            self.evaluation.add(estimate, shown, made)
            if estimate.rows is not None:
                rows = 1 + estimate.rows
                self.last[rows] = torch.where(estimate.missing[1:], self.last[rows], estimate.c)  # type: ignore[index]
            else:
                self.last = (
                    estimate.values
                    if made is None
                    else torch.where(made, estimate.values, self.last)
                )
        self.state = state
        table = self.last if self.gathered else None
        self.progress.add(state, estimates[self.main].values, estimates[-1], made, table, self.unit)

    def skip(self, estimate: BatchEstimate, scaler: torch.amp.GradScaler | None = None) -> StepInfo:
        """A step that is not made, since something was not finite."""
        if scaler is not None and scaler.is_enabled():
            # a new one steps only after it has scaled something
            loss_scale(scaler, self.parameters.device)
            self.parameters.poison_grads()
        self.progress.skip()
        return StepInfo(estimate, torch.zeros((), dtype=torch.bool))

    # Saving ---------------------------------------------------------------------------------------

    @property
    def _cells(self) -> Sequence[str]:
        return self.constraints.mean_names if state_dict.CELL in self.kinds else ()

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers, by the names of constraints and parameters."""
        state, names = self.state, self.constraints.names
        if state is not None:
            state = state_dict.saved(state, self.kinds, names, self._cells, self.parameters)
        return {
            "method": type(self.method).__name__,
            "state": state,
            "bounds": self._bounds(),
            "running": self.evaluation.state_dict(),
        } | self.progress.state_dict()

    def _bounds(self) -> dict[str, float]:
        """The smallest bound of every constraint, by what it averages and one of its rows: its unit
        shows in it."""
        names, bounds, row = self.constraints.names, {}, 0
        for part in self.constraints.parts:
            if isinstance(part, Constraint):
                averaged = "losses" if part.statistic is None else "rates"
                first = min(names[row : row + min(part.m, MOST_TOGETHER)])  # in any order of groups
                bounds[f"{averaged}, {first!r}"] = float(part.bound.min())
            row += part.m
        return bounds

    def _check_bounds(self, saved: Mapping[str, float]) -> None:
        for name, now in self._bounds().items():
            if name not in saved:
                raise ValueError(
                    f"this loop constrains {name}, the saved state"
                    f" {'; '.join(saved) or 'no groups'}"
                )
            before = saved[name]
            if before and now and not 0.1 < now / before < 10:
                warnings.warn(
                    f"the saved state was trained with a bound of {before:g}, and this loop has"
                    f" {now:g}: if the unit of the constraint changed, its multipliers no longer"
                    " fit; start without the saved state",
                    UserWarning,
                    stacklevel=frames_of_ours(),
                )

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        name, names = type(self.method).__name__, self.constraints.names
        missing = {
            "method",
            "state",
            "bounds",
            "constraints",
            "running",
            "steps",
            "skipped",
            "history",
        } - set(saved)
        if missing:
            raise ValueError(f"this is not a state of Constrained: it has no {min(missing)!r}")
        if saved["method"] != name:
            raise ValueError(f"the saved state is of {saved['method']}, this loop runs {name}")
        state = saved["state"]
        if state is not None:
            form = self.initial_state(None)
            state = state_dict.loaded(state, form, self.kinds, names, self._cells, self.parameters)
        self._check_bounds(saved["bounds"])
        self.progress.load_state_dict(saved)
        self.evaluation.load_state_dict(saved["running"])
        self.state, self.last = (
            state,
            torch.cat([self.last[:1], self.progress.last_values().to(self.last)]),
        )
