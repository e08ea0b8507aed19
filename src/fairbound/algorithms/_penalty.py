r"""SGD on the penalized problem (the paper's eq. 13), for any constraints c <= 0 or c = 0.

    min E f + weight * sum_i [c_i]_+
            x+ = x - tau_k * (grad f + weight * sum_i 1[c_i > 0] grad c_i)

An equality is penalized by |c_i|, whose slope is sign(c_i). Eq. 13 does that for every group's gap
a; written as the two constraints a <= 0 and -a <= 0 it is the same, [a]_+ + [-a]_+ = |a|. Train on
the constraint with bound 0, measure with the experiment's bound.

The penalty is exact where `weight` is larger than every multiplier. The default 2 is for
multipliers of size 1, that is for f and c of one size (benchmarks/defaults.py). A constraint ten
times smaller needs ten times the weight; one ten times larger makes the iterates oscillate: no
weight serves every size.

Differs from the constrained methods: the minimizer depends on `weight`, and [.]_+ of a mini-batch's
mean is biased upwards by its noise, so the fixed point depends on the batch size too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairbound._utils.settings import NONNEGATIVE, require
from fairbound.core import MultiplierMethod, Schedule, equality_mask


class State(NamedTuple):
    k: Tensor  # () step
    equality: Tensor  # (m,) 1 where c = 0, 0 where c <= 0


@dataclass(frozen=True, kw_only=True)
class Penalty(MultiplierMethod[State]):
    """SGD on the objective plus `weight` times the sum of the violations.

    >>> Penalty(weight=0.4)
    Penalty(tau=0.05, weight=0.4)
    """

    solves = "penalty"
    row_wise = True

    tau: float | Schedule = 0.05  # step
    weight: float = 2.0  # lambda of eq. 13; the paper chooses 0.4 in Experiment 2

    def __post_init__(self) -> None:
        require(self, NONNEGATIVE, "tau", also=(Schedule,))
        require(self, NONNEGATIVE, "weight")

    def start(
        self, like: Tensor, m: int, equality: Tensor | None = None, first: Tensor | None = None
    ) -> State:
        return State(like.new_zeros(()), equality_mask(like, m, equality))

    def step(self, state: State, *values: Tensor) -> tuple[Tensor, State]:
        (c,) = values
        sign = torch.sign(c)
        slope = torch.where(state.equality > 0, sign, torch.relu(sign))
        return self.weight * slope, State(state.k + 1, state.equality)
