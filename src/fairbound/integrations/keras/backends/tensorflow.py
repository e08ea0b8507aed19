"""A Keras model's outputs and their pull-back, computed by TensorFlow.

The whole flat vector is handed over and split inside the graph: a slice of a torch vector is not aligned as TensorFlow
asks, and DLPack then ends the process. Each kind of input is traced once, with an open number of rows. `pull` computes
the outputs again instead of keeping them on a tape: a tape kept across two calls costs twice to three times as
much for a small model, and for a large one the second forward pass is a quarter of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import tensorflow as tf
import torch
from torch import Tensor

from fairbound.integrations.keras.validation import in_mode

ALIGNED = 64  # bytes: what TensorFlow asks of memory that it does not own


class TensorFlowModel:
    """A Keras model on TensorFlow as a function of flat parameters."""

    def __init__(self, model: Any, n: int, dtype: torch.dtype) -> None:
        self.model = model
        self.predicting = in_mode(model, training=False)
        self.n = n
        self.dtype = _kind(dtype)
        self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self._traced: dict[Hashable, tuple[Graph, Graph]] = {}

    def at(self, x: Tensor, inputs: Tensor) -> TensorFlowAt:
        return TensorFlowAt(*self._graphs(inputs), to_tensorflow(x), to_tensorflow(inputs))

    def _graphs(self, inputs: Tensor) -> tuple[Graph, Graph]:
        key = (inputs.dtype, inputs.shape[1:])
        if key not in self._traced:
            self._traced[key] = self._trace(inputs)
        return self._traced[key]

    def _trace(self, inputs: Tensor) -> tuple[Graph, Graph]:
        point = tf.TensorSpec((self.n,), self.dtype)
        rows = tf.TensorSpec((None, *inputs.shape[1:]), _kind(inputs.dtype))
        forward = Graph(self._call, point, rows)
        cotangent = tf.TensorSpec((None, *forward.shape[1:]), self.dtype)
        return forward, Graph(self._pull, point, rows, cotangent)

    def _call(self, flat: Any, rows: Any) -> Any:
        variables = self.model.trainable_variables
        parts = zip(tf.split(flat, self.sizes), self.shapes, variables, strict=True)
        weights = [tf.cast(tf.reshape(part, shape), variable.dtype) for part, shape, variable in parts]
        found, _ = self.model.stateless_call(weights, self.model.non_trainable_variables, rows, **self.predicting)
        found = tf.cast(found, self.dtype)
        return tf.squeeze(found, -1) if found.shape.rank > 1 and found.shape[-1] == 1 else found

    def _pull(self, flat: Any, rows: Any, cotangent: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(flat)
            found = self._call(flat, rows)
        return tape.gradient(found, flat, cotangent, unconnected_gradients="zero")


class TensorFlowAt(NamedTuple):
    """The model at a point and some rows, both handed over once."""

    forward: Graph
    backward: Graph
    point: Any  # (n,)
    rows: Any

    def outputs(self) -> Tensor:
        return self.forward(self.point, self.rows)

    def pull(self, cotangent: Tensor) -> Tensor:
        return self.backward(self.point, self.rows, to_tensorflow(cotangent))


class Graph:
    """A traced function of tensors with one output, called as the operation that it is.

    A `tf.function` first compares its arguments with what it was traced for, and so does a concrete function: two
    thirds of the time of a small model. Here the caller chose the graph by those arguments already.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        self.function = tf.function(function).get_concrete_function(*specs)
        self.shape = self.function.structured_outputs.shape
        self._read = list(self.function.captured_inputs)  # variables that are not trained
        self._kinds = [self.function.structured_outputs.dtype]

    def __call__(self, *given: Any) -> Tensor:
        found = tf.raw_ops.StatefulPartitionedCall(args=[*given, *self._read], Tout=self._kinds, f=self.function)
        return to_torch(found[0])


def to_tensorflow(values: Tensor) -> Any:
    """The same memory where TensorFlow can read it, else a copy."""
    values = values.detach().contiguous()
    if values.data_ptr() % ALIGNED:
        values = values.clone()
    if values.numel() == 0 or values.data_ptr() % ALIGNED:
        return tf.constant(values.numpy())
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())


def to_torch(values: Any) -> Tensor:
    """A copy of TensorFlow's values."""
    found: Tensor = torch.from_numpy(values.numpy())
    return found


def _kind(dtype: torch.dtype) -> Any:
    return tf.as_dtype(str(dtype).removeprefix("torch."))
