"""A Keras model's outputs and their vector-Jacobian product, computed by TensorFlow.

The whole flat vector is passed to TensorFlow and split inside the graph: a slice of a torch vector
is not aligned as TensorFlow requires, and DLPack then aborts the process. Each input shape is
traced once, for any batch size. `vjp` computes the outputs again instead of keeping them on a tape:
a tape kept across two calls takes two to three times as long for a small model, and for a large one
the second forward pass is a quarter of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import tensorflow as tf
import torch
from torch import Tensor

from fairbound.integrations.keras._validation import in_mode

ALIGNMENT_BYTES = 64  # that TensorFlow requires of memory it does not own


class TensorFlowModel:
    """A Keras model on TensorFlow as a function of flat parameters."""

    def __init__(self, model: Any, n: int, dtype: torch.dtype) -> None:
        self.model = model
        self.inference = in_mode(model, training=False)
        self.n = n
        self.dtype = _tf_dtype(dtype)
        self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self._traced: dict[Hashable, tuple[Graph, Graph]] = {}

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return self._graphs(inputs)[0](x, inputs)

    def vjp(self, x: Tensor, inputs: Tensor, cotangent: Tensor) -> Tensor:
        return self._graphs(inputs)[1](x, inputs, cotangent)

    def _graphs(self, inputs: Tensor) -> tuple[Graph, Graph]:
        key = (inputs.dtype, inputs.shape[1:])
        if key not in self._traced:
            self._traced[key] = self._trace(inputs)
        return self._traced[key]

    def _trace(self, inputs: Tensor) -> tuple[Graph, Graph]:
        point = tf.TensorSpec((self.n,), self.dtype)
        batch = tf.TensorSpec((None, *inputs.shape[1:]), _tf_dtype(inputs.dtype))
        forward = Graph(self._call, point, batch)
        cotangent = tf.TensorSpec((None, *forward.shape[1:]), self.dtype)
        return forward, Graph(self._pull_back, point, batch, cotangent)

    def _call(self, flat: Any, inputs: Any) -> Any:
        variables = self.model.trainable_variables
        parts = zip(tf.split(flat, self.sizes), self.shapes, variables, strict=True)
        weights = [
            tf.cast(tf.reshape(part, shape), variable.dtype) for part, shape, variable in parts
        ]
        found, _ = self.model.stateless_call(
            weights, self.model.non_trainable_variables, inputs, **self.inference
        )
        found = tf.cast(found, self.dtype)
        return tf.squeeze(found, -1) if found.shape.rank > 1 and found.shape[-1] == 1 else found

    def _pull_back(self, flat: Any, inputs: Any, cotangent: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(flat)
            found = self._call(flat, inputs)
        return tape.gradient(found, flat, cotangent, unconnected_gradients="zero")


class Graph:
    """A traced function of tensors with one output, called as an operation.

    A `tf.function` first compares its arguments with its traces, and so does a concrete function:
    two thirds of the time of a small model. Here the caller has chosen the graph by its arguments
    already.
    """

    def __init__(self, function: Callable[..., Any], *specs: Any) -> None:
        self.function = tf.function(function).get_concrete_function(*specs)
        self.shape = self.function.structured_outputs.shape
        self._captured = list(self.function.captured_inputs)  # variables that are not trained
        self._dtypes = [self.function.structured_outputs.dtype]

    def __call__(self, *given: Tensor) -> Tensor:
        args = [*map(to_tensorflow, given), *self._captured]
        found = tf.raw_ops.StatefulPartitionedCall(args=args, Tout=self._dtypes, f=self.function)
        copied: Tensor = torch.from_numpy(found[0].numpy())
        return copied


def to_tensorflow(values: Tensor) -> Any:
    """The same memory where TensorFlow can read it, else a copy."""
    values = values.detach().contiguous()
    if values.data_ptr() % ALIGNMENT_BYTES:
        values = values.clone()
    if values.numel() == 0 or values.data_ptr() % ALIGNMENT_BYTES:
        return tf.constant(values.numpy())
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())


def _tf_dtype(dtype: torch.dtype) -> Any:
    return tf.as_dtype(str(dtype).removeprefix("torch."))
