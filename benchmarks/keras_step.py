"""A step of a Keras model on TensorFlow: ours, and the same method hand-written with
tf.GradientTape.

    python benchmarks/keras_step.py          in the environment of `make test-keras`; about two
    minutes, one thread

The 9-64-32-1 network of Experiment 1 with mini-batches of 8. The hand-written methods
(keras_hand_written.py) are one `tf.function` each, and once more an eager tape, as loops are often
written. They get their rows drawn beforehand, off the clock; ours draws its own. Ours and the
`tf.function` start from the same weights, take the same rows and must end at the same weights:
switching in float64, where rounding cannot flip its branch. CPU time, medians of alternating
rounds, reported without a limit: the network is small. Exits 1 where the weights differ.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import process_time
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import keras_hand_written as hand_written
import numpy as np
import tensorflow as tf
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from fairbound import (
    SGD,
    SSLALM,
    BatchSpec,
    Dataset,
    DescentAscent,
    Problem,
    Sampler,
    Split,
    StochasticGhost,
    SwitchingSubgradient,
    run,
)
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.core import Algorithm
from fairbound.data._samplers import Batch, SamplerStack
from fairbound.integrations.keras import make_functional

STEPS, EAGER_STEPS, ROUNDS = 400, 20, 7
BATCH, ROWS, BOUND = 8, 14_333, 0.005
# of the weights after all steps: rounding that meets a kink of ReLU grows from 1e-7 to some 1e-5
SAME = 1e-3
SEED = 1


class Method(NamedTuple):
    ours: Algorithm[Any]
    hand: type[hand_written.HandWritten]
    dtype: str = "float32"
    steps: int = STEPS


METHODS = {
    "SGD": Method(SGD(), hand_written.SGDHandWritten),
    "descent-ascent": Method(DescentAscent(), hand_written.DescentAscentHandWritten),
    "SSL-ALM": Method(SSLALM(), hand_written.SSLALMHandWritten),
    "SSw": Method(SwitchingSubgradient(), hand_written.SwitchingHandWritten, "float64"),
    "Ghost": Method(StochasticGhost(), hand_written.GhostHandWritten, steps=STEPS // 4),
}


def network(dtype: str) -> Any:
    keras.utils.set_random_seed(0)
    widths = [(64, "relu"), (32, "relu"), (1, None)]
    dense = [keras.layers.Dense(width, activation, dtype=dtype) for width, activation in widths]
    return keras.Sequential([keras.Input((9,), dtype=dtype), *dense])


def people(dtype: str) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    group = (torch.rand(ROWS, generator=generator) < 0.2).long()
    X = torch.randn(ROWS, 9, generator=generator)
    y = (X.sum(1) - group * X[:, 0] + 2 * torch.randn(ROWS, generator=generator) > 0).float()
    return Dataset(X, y, {"group": group}).to(dtype=getattr(torch, dtype))


def bce(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return binary_cross_entropy_with_logits(outputs, labels, reduction="none")


# What the hand-written methods are given ----------------------------------------------------------


def drawn(
    sampler: Sampler, method: Algorithm[Any], steps: int, dtype: str
) -> list[tuple[Any, ...]]:
    """The arguments of every step: the rows of its mini-batches, and the number that a method draws
    beside them."""
    stack = SamplerStack([sampler], method.draws, method.batch_size_probs)
    if method.batch_size_probs is not None:
        return list(_of_random_size(stack, steps, dtype))
    blocks = [
        _rows(Batch(batch.objective[:, 0], batch.cells[:, 0]), evaluates)
        for batch, evaluates in zip(
            stack.block(0, steps, method.evaluates), method.evaluates, strict=True
        )
    ]
    coins = [stack.uniform(0, steps)[:, 0].numpy().astype(dtype)] * isinstance(
        method, SwitchingSubgradient
    )
    return list(zip(*blocks, *coins, strict=True))


def _of_random_size(stack: SamplerStack, steps: int, dtype: str) -> Iterator[tuple[Any, ...]]:
    levels, weights = stack.levels(0, steps)
    for k, (level, weight) in enumerate(
        zip(levels, weights[:, 0].numpy().astype(dtype), strict=True)
    ):
        yield *(_rows(batch, "fc") for batch in stack.chunks(k, level).batches(0)), weight


def _rows(batch: Batch, evaluates: str) -> np.ndarray:
    parts = [batch.objective] * ("f" in evaluates) + [batch.cells.flatten(-2)] * ("c" in evaluates)
    return torch.cat(parts, -1).numpy()


# Side by side -------------------------------------------------------------------------------------


@contextmanager
def run_eagerly() -> Iterator[None]:
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


class Contest:
    """One method, three ways."""

    def __init__(self, method: Method) -> None:
        self.method, self.steps = method.ours, method.steps
        data = people(method.dtype)
        constraint = pairwise_loss_parity(2, bound=BOUND).bind(data.groups["group"])
        self.sampler = Sampler(
            Split.all_train(ROWS), constraint.cells, BatchSpec(BATCH, BATCH), seed=SEED
        )
        forward, self.x0 = make_functional(network(method.dtype))
        self.problem = Problem(forward, bce, constraint, data)
        self.given = drawn(self.sampler, method.ours, self.steps, method.dtype)
        first = self.problem.source(self.sampler).first(("fc",))(self.x0)
        slack = (-first.c).clamp(min=0.0).detach().numpy()
        self.hand = method.hand(network(method.dtype), data.X.numpy(), data.y.numpy(), BOUND, slack)

    def ours(self) -> torch.Tensor:
        return run(self.problem, self.method, self.sampler, self.x0, self.steps).result().x[0]

    def hand_written(self, steps: int) -> None:
        for given in self.given[:steps]:
            self.hand.traced(*(tf.constant(one) for one in given))

    def eagerly(self) -> None:
        with run_eagerly():
            self.hand_written(EAGER_STEPS)

    def difference(self) -> float:
        """Between the ends of ours and of the hand-written one; to be asked first, as both start
        anew."""
        ours = self.ours()
        self.hand_written(self.steps)
        return float(np.abs(ours.numpy() - self.hand.weights()).max())

    def measured(self) -> dict[str, float]:
        """Microseconds of CPU time a step."""
        ways: dict[str, tuple[Callable[[], Any], int]] = {
            "ours": (self.ours, self.steps),
            "tf.function": (lambda: self.hand_written(self.steps), self.steps),
            "eager tape": (self.eagerly, EAGER_STEPS),
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, (take, steps) in ways.items():
                start = process_time()
                take()
                found[way].append(1e6 * (process_time() - start) / steps)
        return {way: median(times) for way, times in found.items()}


def main() -> int:
    torch.set_num_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    missed = 0
    print(
        f"microseconds of CPU time a step, medians of {ROUNDS} alternating rounds; 9-64-32-1,"
        f" mini-batches of {BATCH}"
    )
    print(
        f"{'':16} {'ours':>7} {'tf.function':>12} {'eager tape':>11} {'ours / tf.function':>19}"
        f" {'difference':>11}"
    )
    for name, method in METHODS.items():
        contest = Contest(method)
        difference = contest.difference()
        times = contest.measured()
        ratio = times["ours"] / times["tf.function"]
        missed += difference > SAME
        numbers = (
            f"{times['ours']:>7.0f} {times['tf.function']:>12.0f} {times['eager tape']:>11.0f}"
        )
        print(f"{name:16} {numbers} {ratio:>19.2f} {difference:>11.1e}", flush=True)
    print(f"{missed} missed" if missed else "the same weights")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
