"""`Constrained`: add a bound to your PyTorch loop by changing two lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairbound.algorithms._adaptive_pi import AdaptivePI
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint_set import ConstraintSet, Given
from fairbound.core import Algorithm, MultiplierMethod
from fairbound.integrations.torch._checks import check_tau
from fairbound.integrations.torch._general_steps import GeneralSteps
from fairbound.integrations.torch._kkt import KKT
from fairbound.integrations.torch._kkt_report import report_kkt
from fairbound.integrations.torch._loss import TrainerSteps
from fairbound.integrations.torch._multiplier_steps import MultiplierSteps
from fairbound.integrations.torch._plotting import drawn
from fairbound.integrations.torch._progress import MOST_NAMED, forces
from fairbound.integrations.torch._steps import StepInfo, Steps
from fairbound.training._contract import check_contract

_Groups = Tensor | Mapping[str, Tensor]


class Constrained:
    """A bound in your own training loop: call `fair.backward(losses, groups)` in place of
    `losses.mean().backward()`.

    Model, optimizer, schedule and clipping stay as they are. `.grad` receives the method's step d
    divided by minus its own primal step, so that the optimizer's learning rate takes its place, and
    `SGD(lr=tau)` is exactly the method.

    Args:
        model: a module, or the parameters to train; frozen ones stay as they are. A
            `DistributedDataParallel` model, or one after `fully_shard`, is recognized: sums and
            counts are added up over its processes.
        constraints: one of `fairbound.constraints`, a list of them, or a mapping of names to them.
        method: how the constraints are met; `AdaptivePI()`, which needs no tuning, if not given. A
            multiplier method (AdaptivePI, DescentAscent, SSLALM, ...) costs one backward pass;
            the others (Stochastic Ghost, switching, the SQP methods) run on flat vectors in one
            process.
        seed: of the method's own random numbers (the output of switching, the batch sizes of
            Ghost).

    >>> from fairbound import constraints
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    >>> fair = Constrained(model, constraints.pairwise_loss_parity(["A", "B"], bound=0.02))
    >>> X, y, group = torch.randn(8, 3), torch.ones(8), torch.arange(8) % 2
    >>> losses = torch.nn.functional.binary_cross_entropy_with_logits(
    ...     model(X)[:, 0], y, reduction="none"
    ... )
    >>> info = fair.backward(losses, group)
    >>> optimizer.step()
    >>> list(fair.multipliers)
    ['A - B', 'B - A']
    """

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor],
        constraints: ConstraintSet | Given,
        method: Algorithm[Any] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        listed = ConstraintSet.of(constraints)
        method = AdaptivePI() if method is None else method
        facts = check_contract(method, "Constrained", listed.m)
        self.method, self.model = method, model
        self._steps: Steps
        self._trainer_steps: TrainerSteps | None = None
        if isinstance(method, MultiplierMethod):
            check_tau(method)
            self._steps = MultiplierSteps(model, listed, method)
            self._trainer_steps = TrainerSteps(self._steps)
        else:
            self._steps = GeneralSteps(model, listed, method, seed, facts.several_gradients)

    def __repr__(self) -> str:
        return f"Constrained({len(self.names)} constraints, {self.method!r})"

    @property
    def names(self) -> Sequence[str]:
        """Names of the constraints, in the order of `info.c`."""
        return self._steps.constraints.names

    # Steps ----------------------------------------------------------------------------------------

    def backward(
        self,
        losses: Tensor | MiniBatch,
        groups: _Groups | None = None,
        *,
        labels: Tensor | None = None,
        outputs: Tensor | None = None,
        weight: Tensor | None = None,
        objective: Tensor | None = None,
        values: Mapping[str, Tensor] | None = None,
        extra_batches: Sequence[MiniBatch] = (),
        scaler: torch.amp.GradScaler | None = None,
        scale: float = 1.0,
    ) -> StepInfo:
        """Take the place of `losses.mean().backward()`: the method's direction is added to `.grad`,
        its state moves on.

        Args:
            losses: (B,) per-example losses (`reduction="none"`), with the graph of the forward
                pass; or the whole mini-batch as `MiniBatch`.
            groups: (B,) the group 0, 1, ... of every example, -1 for none; or several columns by
                name.
            labels, outputs: of the examples, if a constraint reads them.
            weight: (B,) what an example counts; 1 each if not given.
            objective: (B,) bool, the examples that the objective is the mean of; all if not given.
            values: of constraints that are handed over (`constraints.given`), by name; those left
                out are not observed.
            extra_batches: the other mini-batches of a method that needs more than one, for the
                constraints alone.
            scaler: the GradScaler of mixed precision; `.grad` is scaled by it, as
                `scaler.scale(loss).backward()` does.
            scale: what the direction counts, 1/k for the mean over k mini-batches before one
                optimizer step.
        """
        batch = self._steps.batch(losses, groups, labels, outputs, weight, objective, values)
        kind, backward = batch.losses.device.type, self._steps.backward
        # the training step is compiled around it: counters would recompile it
        if torch.compiler.is_compiling():
            backward = torch.compiler.disable(backward)
        if not torch.is_autocast_enabled(kind):
            return backward(batch, extra_batches, scaler, scale)
        with torch.autocast(kind, enabled=False):  # sums and constraints in full precision
            return backward(batch, extra_batches, scaler, scale)

    def backward_closure(
        self, evaluate: Callable[[int], MiniBatch], *, scale: float = 1.0
    ) -> StepInfo:
        """The same from a function that draws new examples, passes them through the model and gives
        a `MiniBatch`.

        `evaluate(size)` gives the examples of `size` mini-batches. It serves every method, and is
        the way for those that draw mini-batches of random size (Ghost) or take several gradients of
        one.
        """
        return self._steps.backward_closure(evaluate, scale)

    def start(
        self, losses: Tensor | MiniBatch, groups: _Groups | None = None, **of_batch: Any
    ) -> None:
        """Initialize from a separate mini-batch, before the first step; else from that of the first
        step."""
        self._steps.start(self._shown(losses, groups, of_batch))

    def _shown(
        self, losses: Tensor | MiniBatch, groups: _Groups | None, of_batch: dict[str, Any]
    ) -> MiniBatch:
        # `MiniBatch` puts what was given by name in order, and refuses other names
        return self._steps.batch(losses, *MiniBatch(losses, groups, **of_batch)[1:-1])  # type: ignore[arg-type]

    # A loss for a trainer -------------------------------------------------------------------------

    def loss(
        self,
        losses: Tensor | MiniBatch,
        groups: _Groups | None = None,
        *,
        labels: Tensor | None = None,
        outputs: Tensor | None = None,
        weight: Tensor | None = None,
        objective: Tensor | None = None,
        values: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Take the place of `losses.mean()`, where a trainer calls backward: the mean loss; its
        gradient is the direction.

        The method's state moves at the next step of the model's optimizer, once for all
        mini-batches that were passed backward before it. Under `torch.no_grad()` and in evaluation
        mode it is the mean loss, and nothing moves. It is for multiplier methods without smoothing
        (SGD, Penalty, DescentAscent), with the arguments of `backward`.
        """
        if self._trainer_steps is None:
            raise ValueError(
                f"the direction of {type(self.method).__name__} is not the gradient of a loss; use"
                " fair.backward(losses, groups), which writes it into .grad (in a trainer: with"
                " manual optimization), or DescentAscent()"
            )
        batch = self._steps.batch(losses, groups, labels, outputs, weight, objective, values)
        training = torch.is_grad_enabled() and (
            not isinstance(self.model, nn.Module) or self.model.training
        )
        # sums and constraints in full precision
        with torch.autocast(batch.losses.device.type, enabled=False):
            return (
                self._trainer_steps.loss(batch)
                if training
                else self._trainer_steps.evaluation(batch)
            )

    def prepare(self, model: nn.Module, scaler: torch.amp.GradScaler | None = None) -> None:
        """Take over what a trainer did after this was built: call it when training begins, before
        the first `loss`.

        Args:
            model: the model as it is trained: moved to a device, wrapped in
                DistributedDataParallel.
            scaler: the trainer's GradScaler, which a loss that is not finite makes skip its step.
        """
        self._steps.prepare(model)
        if self._trainer_steps is not None:
            self._trainer_steps.scaler = scaler

    def log_values(self, most: int = MOST_NAMED) -> dict[str, float]:
        """Constraints, multipliers and forces by name, for a logger; the largest alone of more than
        `most`."""
        m, logged, c = len(self.names), {}, self._steps.progress.last_values()
        for kind, values in (
            ("constraint", c),
            ("multiplier", self._steps.multipliers()),
            ("force", self._forces()),
        ):
            if values is not None and m > most:
                logged[f"{kind}/largest"] = float(values[:m].nan_to_num(nan=-torch.inf).max())
            elif values is not None:
                logged |= {
                    f"{kind}/{name}": v
                    for name, v in zip(self.names, values[:m].tolist(), strict=True)
                }
        return logged

    def plot(self) -> Any:
        """A matplotlib figure: loss, constraints with their bound, and forces over the steps; see
        `plotting`."""
        return drawn(self._steps.progress.history)

    # Several mini-batches for one step ------------------------------------------------------------

    def accumulate(
        self, losses: Tensor | MiniBatch, groups: _Groups | None = None, **of_batch: Any
    ) -> None:
        """Count a mini-batch of an accumulated step, forward pass only; then call `backward` on
        each of them.

        A step over k mini-batches is one over all their examples, groups of any size: what the
        constraints are must be known before the first backward pass. (`backward(..., scale=1/k)`
        without `accumulate` saves the forward passes; every mini-batch then is a step of the
        multipliers.)
        """
        if not isinstance(self._steps, MultiplierSteps):
            raise ValueError(
                f"{type(self.method).__name__} wants the gradients of whole mini-batches, which"
                " accumulate() takes apart; use backward(..., scale=1/k)"
            )
        self._steps.accumulate(self._shown(losses, groups, of_batch))

    # State of the method --------------------------------------------------------------------------

    @property
    def multipliers(self) -> dict[str, float]:
        """The multiplier of every constraint, by name; none for a method that has none."""
        y = self._steps.multipliers()
        return {} if y is None else dict(zip(self.names, y.tolist(), strict=True))

    @property
    def forces(self) -> dict[str, float]:
        """How many times as hard as the objective each constraint pulls, by name: 0 for one that
        does not bind.

        Forces have no unit. They are known where the method measures sizes, as `AdaptivePI` does.
        """
        forces = self._forces()
        return {} if forces is None else dict(zip(self.names, forces.tolist(), strict=True))

    def _forces(self) -> Tensor | None:
        y, probes = self._steps.multipliers(), getattr(self._steps, "probes", None)
        if y is None or probes is None:
            return None
        return forces(y, probes.measured.sizes(len(y)).unit)

    @property
    def too_noisy(self) -> str | None:
        """A sentence if mini-batches show a constraint with more noise than the method can act on,
        else None.

        `AdaptivePI` then acts more slowly. The cure is larger mini-batches, or more examples of the
        group in each.
        """
        method, state, probes = self.method, self._steps.state, getattr(self._steps, "probes", None)
        if not isinstance(method, AdaptivePI) or state is None or probes is None:
            return None
        m = len(self.names)
        noise = method.noise(state, probes.measured.sizes(len(state.y)))[:m]
        worst = int(noise.argmax())
        if state.n[worst] < 50 or noise[worst] <= 1:
            return None
        return (
            f"mini-batches show {self.names[worst]!r} with a standard deviation of"
            f" {float(state.v[worst]) ** 0.5:.2g}; its noise is {float(noise[worst]):.2g} times as"
            f" large as what {method.horizon:g} steps can change; use mini-batches with about"
            f" {math.ceil(float(noise[worst]) ** 2)} times as many examples that it reads"
        )

    @property
    def steps(self) -> int:
        """Steps of the method so far."""
        return self._steps.progress.steps

    @property
    def skipped(self) -> int:
        """Mini-batches skipped because something was not finite."""
        return self._steps.progress.skipped

    @property
    def constraints(self) -> dict[str, float]:
        """The last mini-batch's value of every constraint, by name; feasible where <= 0. It is
        noisy: see `report`."""
        return dict(
            zip(
                self.names,
                self._steps.progress.last_values()[: len(self.names)].tolist(),
                strict=True,
            )
        )

    @property
    def observed(self) -> dict[str, int]:
        """Number of steps in which every constraint was observed, by name; with very many
        constraints see `ages`."""
        if self._steps.gathered:
            raise ValueError(
                f"observations of {len(self.names)} constraints are not counted one by one; use"
                " ages"
            )
        return dict(zip(self.names, self._steps.progress.observations()[0].tolist(), strict=True))

    @property
    def ages(self) -> dict[str, int]:
        """Steps since every constraint was last observed, by name: the age of its value and of its
        running mean."""
        return dict(zip(self.names, self._steps.progress.observations()[1].tolist(), strict=True))

    @property
    def primal_step(self) -> float:
        """The method's own step now: with `SGD(lr=...)` at this value the loop is exactly the
        method."""
        if self._steps.state is None:
            raise ValueError("the method has not begun; call backward() or start() first")
        return float(self.method.primal_step(self._steps.state))

    @property
    def infeasible(self) -> str | None:
        """A sign that no model meets the constraints, as a sentence, or None: see
        `algorithms.diagnostics`."""
        return self._steps.progress.history.infeasible()

    @property
    def diverging(self) -> str | None:
        """A sign that the loop diverges, as a sentence, or None; the loop warned when it
        occurred."""
        return self._steps.progress.history.diverging()

    def load_output(self) -> None:
        """Write what the method returns into the model: for switching a saved iterate, for others
        the last one."""
        parameters, state = self._steps.parameters, self._steps.state
        if state is not None and not isinstance(self.method, MultiplierMethod):
            parameters.assign(self.method.output(parameters.flat(), state))

    def report(self, batches: Iterable[Any], evaluate: Callable[[Any], MiniBatch]) -> KKT:
        """How near the model is to a solution, over all examples of some data: see `report_kkt`."""
        if not isinstance(self.model, nn.Module):
            raise TypeError(
                "a report needs the model itself; build Constrained with it instead of its"
                " parameters"
            )
        return report_kkt(
            self.model,
            self._steps.constraints,
            batches,
            evaluate,
            multipliers=self._steps.multipliers(),
            warning="; ".join(s for s in (self.diverging, self.infeasible, self.too_noisy) if s)
            or None,
        )

    # Saving ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed loop needs beside model and optimizer, by the names of
        constraints."""
        return self._steps.state_dict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a saved state; constraints are matched by their names."""
        self._steps.load_state_dict(saved)
