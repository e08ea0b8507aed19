"""How many examples a method passes through the model: the unit in which budgets are equal for all."""

from __future__ import annotations

import math
from typing import Any

from fairbound.core import Algorithm
from fairbound.training.contract import trial_step

SHORTER_EPOCHS = 30.0  # of a board's runs on many splits and on transformed instances, of which there are many


def examples_per_step(method: Algorithm[Any], objective: int, constraints: int) -> float:
    """Examples that a step passes through the model, forward only or also backward.

    Of a random batch size it is the expectation: one mini-batch, and one of 2^(level + 1) times its examples, whose
    halves are the same examples.

    Args:
        objective: examples of a mini-batch for the objective.
        constraints: examples of a mini-batch for the constraints, those of all groups together.

    >>> from fairbound.algorithms import SGD, SSLALM
    >>> examples_per_step(SGD(), 8, 16), examples_per_step(SSLALM(), 8, 16)
    (8.0, 40.0)
    """
    uses = zip(method.evaluates, trial_step(method).passes, strict=True)
    draws: list[int] = [passes * (objective * ("f" in read) + constraints * ("c" in read)) for read, passes in uses]
    if method.batch_size_probs is None:
        return float(sum(draws))
    return draws[0] * (1 + math.fsum(2.0 ** (level + 1) * p for level, p in enumerate(method.batch_size_probs)))
