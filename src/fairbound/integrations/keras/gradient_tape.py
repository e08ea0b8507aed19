"""`Constrained` for a training loop with `tf.GradientTape`: the user's model, optimizer and loop stay what they are.

    with tf.GradientTape() as tape:
        losses = loss(y, model(X, training=True))                    one number per row
    gradients = fair.gradients(tape, losses, groups)                 in place of tape.gradient(mean of losses, ...)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

The tape differentiates; constraints, absent groups, steps that are not finite and saved states are those of
`fairbound.Constrained`, which sees the weights as one flat parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import torch
from torch import Tensor, nn

from fairbound.constraints import batch as torch_batch
from fairbound.constraints.constraint_set import ConstraintSet, Given
from fairbound.core import Algorithm
from fairbound.integrations.keras.validation import check_weights, flat_weights, numpy_of, write_weights
from fairbound.integrations.torch.constrained import Constrained as TorchConstrained
from fairbound.integrations.torch.kkt_report import report_kkt
from fairbound.integrations.torch.step import StepInfo
from fairbound.metrics.kkt import KKT

NEITHER_WAY = {
    "torch": "on Keras' torch backend the model is a torch module: use fairbound.Constrained(model, ...) and its "
    "backward(), as in docs/loop.md",
    "jax": "on Keras' JAX backend there is no tape; use fairbound.integrations.keras.fit, or KERAS_BACKEND=tensorflow",
}


class MiniBatch(NamedTuple):
    """The rows of one mini-batch after the model's forward pass: TensorFlow tensors or numpy arrays, and their tape."""

    losses: Any  # (B,) one loss per row
    groups: Any = None  # (B,) 0, 1, ..., or -1 for a row of no group; or columns of it by name
    labels: Any = None  # (B,), for constraints about rows with a certain label
    outputs: Any = None  # (B, ...) the model's outputs (logits), for rates
    weight: Any = None  # (B,) what a row counts
    objective: Any = None  # (B,) bool: the rows of the objective; None: all of them
    tape: Any = None  # tf.GradientTape that saw losses and outputs; not needed where no gradient is asked for


class Constrained:
    """A constrained method in a `tf.GradientTape` loop; see `fairbound.Constrained` for constraints and algorithm."""

    def __init__(
        self,
        model: Any,
        constraints: ConstraintSet | Given,
        algorithm: Algorithm[Any],
        *,
        seed: int = 0,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            backend = keras.backend.backend()
            raise ValueError(NEITHER_WAY.get(backend, f"there is no tape on Keras' backend {backend!r}"))
        check_weights(model)
        self.model, self.algorithm, self._constraints = model, algorithm, constraints
        self._weights = _Weights(flat_weights(model))
        self._loop = TorchConstrained([self._weights.flat], constraints, algorithm, seed=seed)
        self.seen: StepInfo | None = None  # what the last mini-batch showed: loss, c, skipped

    def gradients(
        self,
        tape: Any,
        losses: Any,
        groups: Any = None,
        *,
        labels: Any = None,
        outputs: Any = None,
        weight: Any = None,
        objective: Any = None,
        extra_batches: Sequence[MiniBatch] = (),
        scale: float = 1.0,
    ) -> list[Any]:
        """The method's direction, one tensor for each of `model.trainable_variables`; its state moves on.

        A step that is left out (NaN) gives zeros, and is counted in `skipped`. `extra_batches` are the other
        mini-batches of a method that needs several, computed outside the tape. The rest is as in torch's.
        """
        self._begin()
        rows = self._converted(MiniBatch(losses, groups, labels, outputs, weight, objective, tape))
        others = [self._converted(other) for other in extra_batches]
        self.seen = self._loop.backward(rows, extra_batches=others, scale=scale)
        return self._direction()

    def gradients_from(self, evaluate: Callable[[int], MiniBatch], *, scale: float = 1.0) -> list[Any]:
        """The same from a function that passes `size` mini-batches' worth of fresh rows through the model.

        It serves every method, and is the way for those that take several gradients of one mini-batch (Ghost): the
        tape of the `MiniBatch` must be persistent.
        """
        self._begin()
        self.seen = self._loop.backward_closure(lambda size: self._converted(evaluate(size)), scale=scale)
        return self._direction()

    def _begin(self) -> None:
        from tensorflow import executing_eagerly  # here, as the class exists on other backends too

        if not executing_eagerly():
            raise RuntimeError(
                "the method runs in torch, outside of TensorFlow's graphs: put the forward pass into a tf.function, "
                "and call the method outside of it"
            )
        now, before = flat_weights(self.model), self._weights.flat
        if now.shape != before.shape:
            raise ValueError(
                f"the model had {before.numel():,} trainable weights when Constrained was built and has "
                f"{now.numel():,} now; freeze layers first, then build it"
            )
        before.grad = None
        with torch.no_grad():
            before.copy_(now)

    def _converted(self, rows: MiniBatch) -> torch_batch.MiniBatch:
        """The rows as torch sees them: losses and outputs are functions of the flat weights, by way of the tape."""
        if not isinstance(rows, MiniBatch):
            raise TypeError(
                "a mini-batch must be fairbound.integrations.keras.MiniBatch(losses, groups, ...), "
                f"got {type(rows).__name__}"
            )
        taped = [rows.losses] if rows.outputs is None else [rows.losses, rows.outputs]
        if rows.tape is None:
            values = [_to_torch(value) for value in taped]
        else:
            values = _FromTape.apply(self._weights.flat, rows.tape, self.model, taped)  # type: ignore[no-untyped-call]
        labels, weight, objective = (
            None if given is None else _to_torch(given) for given in (rows.labels, rows.weight, rows.objective)
        )
        outputs = None if rows.outputs is None else values[1]
        return torch_batch.MiniBatch(values[0], _numbered(rows.groups), labels, outputs, weight, objective)

    def _direction(self) -> list[Any]:
        flat = self._weights.flat.grad
        flat = torch.zeros_like(self._weights.flat) if flat is None else flat
        variables = self.model.trainable_variables
        parts = flat.split([int(np.prod(variable.shape)) for variable in variables])
        pairs = zip(parts, variables, strict=True)
        return [keras.ops.convert_to_tensor(part.numpy().reshape(v.shape), dtype=v.dtype) for part, v in pairs]

    # What the method knows --------------------------------------------------------------------------------------------

    @property
    def multipliers(self) -> dict[str, float]:
        """The multiplier of every constraint, by name; none for a method that has none."""
        return self._loop.multipliers

    @property
    def constraints(self) -> dict[str, float]:
        """The last mini-batch's value of every constraint, by name; feasible where <= 0. It is noisy."""
        return self._loop.constraints

    @property
    def steps(self) -> int:
        """Steps of the method so far."""
        return self._loop.steps

    @property
    def skipped(self) -> int:
        """Mini-batches left out because something was not finite."""
        return self._loop.skipped

    @property
    def infeasible(self) -> str | None:
        """A sign that no model meets the constraints, as a sentence, or None."""
        return self._loop.infeasible

    @property
    def primal_step(self) -> float:
        """The method's own step now: with `SGD(learning_rate=...)` at this value the loop is exactly the method."""
        return self._loop.primal_step

    def load_output(self) -> None:
        """Write what the method returns into the model: for switching a saved iterate, for others the last one."""
        self._begin()
        self._loop.load_output()
        write_weights(self.model, self._weights.flat)

    def report(self, batches: Iterable[Any], evaluate: Callable[[Any], MiniBatch]) -> KKT:
        """How near the model is to a solution, over all rows of some data: see `fairbound.kkt`.

        `evaluate(batch)` passes a batch through the model under a persistent tape.
        """
        self._begin()
        return report_kkt(
            self._weights,
            self._constraints,
            batches,
            lambda batch: self._converted(evaluate(batch)),
            multipliers=self.multipliers or None,
            warning=self.infeasible,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed loop needs beside model and optimizer; torch tensors and plain numbers."""
        return self._loop.state_dict()

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Go on from a saved state; constraints are told by their names."""
        self._begin()
        self._loop.load_state_dict(kept)


class _Weights(nn.Module):
    """The model's trained weights as one parameter."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.flat = nn.Parameter(x)


class _FromTape(torch.autograd.Function):
    """What a tape saw, as functions of the flat weights."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, tape: Any, model: Any, taped: list[Any]) -> Any:
        ctx.tape, ctx.model, ctx.taped = tape, model, taped
        return tuple(_to_torch(value) for value in taped)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        pairs = zip(cotangents, ctx.taped, strict=True)
        given = [keras.ops.convert_to_tensor(cotangent.numpy(), dtype=value.dtype) for cotangent, value in pairs]
        variables = [variable.value for variable in ctx.model.trainable_variables]
        try:
            found = ctx.tape.gradient(ctx.taped, variables, output_gradients=given)
        except RuntimeError as error:
            if "persistent" not in str(error):
                raise
            raise ValueError(
                "this mini-batch's gradient is asked for more than once, and its tape allows one; use "
                "tf.GradientTape(persistent=True)"
            ) from error
        if all(part is None for part in found):
            raise ValueError(
                "the tape saw no way from the model's weights to the losses; compute them inside "
                "`with tf.GradientTape() as tape:`, from the model's outputs, without .numpy()"
            )
        parts = [
            np.zeros(variable.shape, np.float32) if part is None else numpy_of(part)
            for part, variable in zip(found, ctx.model.trainable_variables, strict=True)
        ]
        dtype = cotangents[0].dtype
        return torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts])).to(dtype), None, None, None


def _numbered(groups: Any) -> Any:
    """A column of groups, or several by name, as torch has them."""
    if groups is None:
        return None
    if isinstance(groups, Mapping):
        return {name: _numbered(column) for name, column in groups.items()}
    column = numpy_of(groups)
    if column.dtype.kind not in "iub":
        raise ValueError(
            f"groups must be whole numbers 0, 1, ..., or -1 for none, got {column.dtype}; number names by "
            "np.unique(names, return_inverse=True)[1]"
        )
    return torch.from_numpy(column.astype(np.int64))


def _to_torch(values: Any) -> Tensor:
    """A copy as a torch tensor."""
    found = numpy_of(values)
    return torch.from_numpy(found.astype(np.float32 if found.dtype.name == "bfloat16" else found.dtype))
