"""`Constrained` for a training loop with `tf.GradientTape`: the user's model, optimizer and loop
stay what they are.

    with tf.GradientTape(persistent=True) as tape:
        losses = loss(y, model(X, training=True))                    per-example losses
    gradients = fair.gradients(tape, losses, groups)
            in place of tape.gradient(mean of losses, ...)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

The tape differentiates; constraints, absent groups, skipped steps and saved states are those of
`fairbound.Constrained`, which has the weights as one flat parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import torch
from torch import Tensor, nn

from fairbound.columns._vectors import as_numbers
from fairbound.constraints import _batch as torch_batch
from fairbound.constraints._constraint_set import ConstraintSet, Given
from fairbound.core import Algorithm
from fairbound.integrations.keras._validation import (
    check_weights,
    flat_weights,
    numpy_of,
    write_weights,
)
from fairbound.integrations.torch._constrained import Constrained as TorchConstrained
from fairbound.integrations.torch._kkt import KKT
from fairbound.integrations.torch._steps import StepInfo

OTHER_BACKENDS = {
    "torch": (
        "on Keras' torch backend the model is a torch module: use fairbound.Constrained(model, ...)"
        " and its backward(), as in docs/guides/loop.md"
    ),
    "jax": (
        "on Keras' JAX backend there is no tape; use fairbound.integrations.keras.fit, or"
        " KERAS_BACKEND=tensorflow"
    ),
}


class MiniBatch(NamedTuple):
    """The examples of one mini-batch after the forward pass: TensorFlow tensors or numpy arrays,
    and their tape."""

    losses: Any  # (B,) per-example losses
    groups: Any = None  # (B,) 0, 1, ..., or -1 for no group; or several such columns by name
    labels: Any = None  # (B,), for constraints on examples with a certain label
    outputs: Any = None  # (B, ...) the model's outputs (logits), for rates
    weight: Any = None  # (B,) what an example counts
    objective: Any = None  # (B,) bool: the examples of the objective; None: all of them
    # tf.GradientTape that recorded losses and outputs; not needed where no gradient is computed
    tape: Any = None


class Constrained:
    """A constrained method in a `tf.GradientTape` loop; see `fairbound.Constrained` for constraints
    and method.

    `AdaptivePI`, the default, measures two more gradients of a mini-batch now and then: use
    `tf.GradientTape(persistent=True)`.
    """

    def __init__(
        self,
        model: Any,
        constraints: ConstraintSet | Given,
        method: Algorithm[Any] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            backend = keras.backend.backend()
            raise ValueError(
                OTHER_BACKENDS.get(backend, f"there is no tape on Keras' backend {backend!r}")
            )
        check_weights(model)
        self.model = model
        self._weights = _Weights(flat_weights(model))
        self._loop = TorchConstrained(self._weights, constraints, method, seed=seed)
        self.method = self._loop.method
        self.last_step: StepInfo | None = None  # loss, c, skipped of the last mini-batch

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
        """The method's direction, one tensor for each of `model.trainable_variables`; its state is
        updated.

        A step that is skipped (NaN) gives zeros, and is counted in `skipped`. `extra_batches` are
        the other mini-batches of a method that needs several, computed outside the tape. The other
        arguments are those of `fairbound.Constrained.backward`.
        """
        self._read_weights()
        batch = self._to_torch(MiniBatch(losses, groups, labels, outputs, weight, objective, tape))
        extra = [self._to_torch(other) for other in extra_batches]
        self.last_step = self._loop.backward(batch, extra_batches=extra, scale=scale)
        return self._direction()

    def gradients_closure(
        self, evaluate: Callable[[int], MiniBatch], *, scale: float = 1.0
    ) -> list[Any]:
        """The same from a function that passes `size` mini-batches' worth of new examples through
        the model.

        It works for every method, and is needed for those that take several gradients of one
        mini-batch (Ghost): the tape of the `MiniBatch` must be persistent.
        """
        self._read_weights()
        self.last_step = self._loop.backward_closure(
            lambda size: self._to_torch(evaluate(size)), scale=scale
        )
        return self._direction()

    def _read_weights(self) -> None:
        from tensorflow import executing_eagerly  # here, as the class exists on other backends too

        if not executing_eagerly():
            raise RuntimeError(
                "the method runs in torch, outside of TensorFlow's graphs: put the forward pass"
                " into a tf.function, and call gradients() outside of it"
            )
        now, before = flat_weights(self.model), self._weights.flat
        if now.shape != before.shape:
            raise ValueError(
                f"the model had {before.numel():,} trainable weights when Constrained was built and"
                f" has {now.numel():,} now; freeze layers first, then build it"
            )
        before.grad = None
        with torch.no_grad():
            before.copy_(now)

    def _to_torch(self, batch: MiniBatch) -> torch_batch.MiniBatch:
        """The mini-batch in torch: losses and outputs are functions of the flat weights,
        differentiated by the tape."""
        if not isinstance(batch, MiniBatch):
            raise TypeError(
                "a mini-batch must be fairbound.integrations.keras.MiniBatch(losses, groups, ...),"
                f" got {type(batch).__module__}.{type(batch).__name__}"
            )
        taped = [batch.losses] if batch.outputs is None else [batch.losses, batch.outputs]
        if batch.tape is None:
            values = [_tensor(value) for value in taped]
        else:
            values = _FromTape.apply(self._weights.flat, batch.tape, self.model, taped)  # type: ignore[no-untyped-call]
        labels, weight, objective = (
            None if given is None else _tensor(given)
            for given in (batch.labels, batch.weight, batch.objective)
        )
        outputs = None if batch.outputs is None else values[1]
        return torch_batch.MiniBatch(
            values[0], _group_numbers(batch.groups), labels, outputs, weight, objective
        )

    def _direction(self) -> list[Any]:
        flat = self._weights.flat.grad
        flat = torch.zeros_like(self._weights.flat) if flat is None else flat
        variables = self.model.trainable_variables
        parts = flat.split([int(np.prod(variable.shape)) for variable in variables])
        pairs = zip(parts, variables, strict=True)
        return [
            keras.ops.convert_to_tensor(part.numpy().reshape(v.shape), dtype=v.dtype)
            for part, v in pairs
        ]

    # What the method knows ------------------------------------------------------------------------

    @property
    def multipliers(self) -> dict[str, float]:
        """The multiplier of every constraint, by name; none for a method that has none."""
        return self._loop.multipliers

    @property
    def forces(self) -> dict[str, float]:
        """How many times as hard as the objective each constraint pulls, by name."""
        return self._loop.forces

    @property
    def constraints(self) -> dict[str, float]:
        """The last mini-batch's value of every constraint, by name; feasible where <= 0. It is
        noisy."""
        return self._loop.constraints

    @property
    def steps(self) -> int:
        """Steps of the method so far."""
        return self._loop.steps

    @property
    def skipped(self) -> int:
        """Steps skipped because a value was NaN or infinite."""
        return self._loop.skipped

    @property
    def infeasible(self) -> str | None:
        """A sign that no model meets the constraints, as a sentence, or None."""
        return self._loop.infeasible

    @property
    def diverging(self) -> str | None:
        """A sign that the loop runs away from every solution, as a sentence, or None."""
        return self._loop.diverging

    @property
    def primal_step(self) -> float:
        """The method's own step now: with `SGD(learning_rate=...)` at this value the loop is
        exactly the method."""
        return self._loop.primal_step

    def load_output(self) -> None:
        """Write the method's output into the model: for switching a saved iterate, for others the
        last one."""
        self._read_weights()
        self._loop.load_output()
        write_weights(self.model, self._weights.flat)

    def report(self, batches: Iterable[Any], evaluate: Callable[[Any], MiniBatch]) -> KKT:
        """How near the model is to a solution, over all examples of some data: see
        `fairbound.report_kkt`.

        `evaluate(batch)` passes a batch through the model under a persistent tape.
        """
        self._read_weights()
        return self._loop.report(batches, lambda batch: self._to_torch(evaluate(batch)))

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed loop needs beside model and optimizer; torch tensors and plain
        numbers."""
        return self._loop.state_dict()

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Resume from a saved state; constraints are matched by their names."""
        self._read_weights()
        self._loop.load_state_dict(kept)


class _Weights(nn.Module):
    """The model's trainable weights as one parameter."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.flat = nn.Parameter(x)


class _FromTape(torch.autograd.Function):
    """What a tape recorded, as functions of the flat weights."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, tape: Any, model: Any, taped: list[Any]) -> Any:
        ctx.tape, ctx.model, ctx.taped = tape, model, taped
        return tuple(_tensor(value) for value in taped)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        pairs = zip(cotangents, ctx.taped, strict=True)
        given = [
            keras.ops.convert_to_tensor(cotangent.numpy(), dtype=value.dtype)
            for cotangent, value in pairs
        ]
        variables = [variable.value for variable in ctx.model.trainable_variables]
        try:
            found = ctx.tape.gradient(ctx.taped, variables, output_gradients=given)
        except RuntimeError as error:
            if "persistent" not in str(error):
                raise
            raise ValueError(
                "this mini-batch's gradient is computed more than once, and its tape allows one;"
                " use tf.GradientTape(persistent=True)"
            ) from error
        if all(part is None for part in found):
            raise ValueError(
                "the tape recorded no path from the model's weights to the losses; compute them"
                " inside `with tf.GradientTape() as tape:`, from the model's outputs, without"
                " .numpy()"
            )
        parts = [
            np.zeros(variable.shape, np.float32) if part is None else numpy_of(part)
            for part, variable in zip(found, ctx.model.trainable_variables, strict=True)
        ]
        dtype = cotangents[0].dtype
        return (
            torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts])).to(dtype),
            None,
            None,
            None,
        )


def _group_numbers(groups: Any) -> Any:
    """A column of groups, or several by name, as torch tensors."""
    if groups is None:
        return None
    if isinstance(groups, Mapping):
        return {name: _group_numbers(column) for name, column in groups.items()}
    column = numpy_of(groups)
    return as_numbers(column.astype(np.int64) if column.dtype.kind == "b" else column)


def _tensor(values: Any) -> Tensor:
    """A copy as a torch tensor."""
    found = numpy_of(values)
    return torch.from_numpy(
        found.astype(np.float32 if found.dtype.name == "bfloat16" else found.dtype)
    )
