"""What the tests of Keras models share: people, and one network written twice, for Keras and for
torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no greetings from TensorFlow

import keras
import numpy as np
import torch
from methods import bce
from torch import Tensor

from fairbound import BatchSpec, Dataset, Problem, Sampler, Split
from fairbound.constraints._notions import pairwise_loss_parity

WIDTHS = (9, 64, 32, 1)
ROWS = 2_000


def network(dtype: str = "float32", widths: tuple[int, ...] = WIDTHS, seed: int = 0) -> Any:
    """Fully connected, ReLU, one logit; the same weights for the same seed."""
    keras.utils.set_random_seed(seed)
    dense = keras.layers.Dense
    hidden = [dense(width, activation="relu", dtype=dtype) for width in widths[1:-1]]
    return keras.Sequential(
        [keras.Input((widths[0],), dtype=dtype), *hidden, dense(widths[-1], dtype=dtype)]
    )


def in_torch(x: Tensor, inputs: Tensor, widths: tuple[int, ...] = WIDTHS) -> Tensor:
    """The same network as a torch function of Keras' flat weights: kernel (in, out), bias, layer by
    layer."""
    start, hidden = 0, inputs
    for layer, (a, b) in enumerate(pairwise(widths)):
        kernel, bias = x[start : start + a * b].view(a, b), x[start + a * b : start + a * b + b]
        start += a * b + b
        hidden = hidden @ kernel + bias
        hidden = hidden.relu() if layer < len(widths) - 2 else hidden
    return hidden.squeeze(-1)


def people(dtype: torch.dtype = torch.float32, rows: int = ROWS) -> Dataset:
    """Two groups; the second follows a rule of its own, so that plain training leaves a gap."""
    generator = torch.Generator().manual_seed(0)
    group = (torch.rand(rows, generator=generator) < 0.3).long()
    X = torch.randn(rows, 9, generator=generator)
    y = (X.sum(1) - 2 * group * X[:, 0] + torch.randn(rows, generator=generator) > 0).float()
    return Dataset(X, y, {"group": group}).to(dtype=dtype)


def problem(
    forward: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.float32
) -> Problem:
    data = people(dtype)
    return Problem(
        forward, bce, pairwise_loss_parity(2, bound=0.01).bind(data.groups["group"]), data
    )


def sampler(of: Problem, seed: int = 3) -> Sampler:
    assert of.constraint is not None
    return Sampler(Split.all_train(of.data.rows), of.constraint.cells, BatchSpec(8, 8), seed=seed)


def as_numpy(data: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """MiniBatch, labels, and the names of groups."""
    return data.X.numpy(), data.y.numpy(), np.array(["A", "B"])[data.groups["group"].numpy()]
