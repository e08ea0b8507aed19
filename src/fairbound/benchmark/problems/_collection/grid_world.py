"""A constrained Markov decision process on a grid of 5 x 5 fields, with its exact value from a
linear program.

    min -E V_r(s)   s.t.   E V_1(s) <= b_1,  E V_2(s) <= b_2          s: where an episode starts

V is the discounted sum of rewards or costs under a softmax policy of 25 x 4 logits 3 x, by a linear
solve in the exact model. A move goes aside with probability .1 to either side; a wall stops it. The
corner at the lower right pays 1 each step and keeps who reaches it. The six fields in the middle of
the second and third column cost 1 a step (hazard), and so do those of the upper row but its first
(toll): the lower row is free of both, and a detour for most starts.

An example is a start. The best policy is deterministic in most states, which a softmax reaches at
infinity only: F* and the multipliers are known, by the linear program over occupancy measures, and
no x*.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbound.benchmark.problems import BenchmarkProblem, Instance, Optimum
from fairbound.benchmark.problems.expectation import expectation

_F64 = torch.float64
SIDE, _STATES, ACTIONS, DISCOUNT, ASIDE = 5, 25, 4, 0.9, 0.1
# up, right, down, left; the neighbors of a move are aside
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
GOAL, _EXAMPLES = _STATES - 1, 640
_BOUNDS = (0.5, 0.5)
_UNIT = 3.0  # logits are 3 x, which makes gradients of the size of 1


class MarkovModel(NamedTuple):
    """Transitions, and the reward and the costs of being in a state."""

    P: Tensor  # (_STATES, ACTIONS, _STATES)
    paid: Tensor  # (_STATES, 3) minus the reward, hazard, toll


@cache
def model() -> MarkovModel:
    P = torch.zeros(_STATES, ACTIONS, _STATES, dtype=_F64)
    for state in range(_STATES):
        for action in range(ACTIONS):
            for turn, share in ((0, 1 - 2 * ASIDE), (1, ASIDE), (-1, ASIDE)):
                P[state, action, _after(state, (action + turn) % ACTIONS)] += share
    P[GOAL] = torch.eye(_STATES, dtype=_F64)[GOAL]
    row, column = torch.arange(_STATES) // SIDE, torch.arange(_STATES) % SIDE
    hazard = ((row >= 1) & (row <= 3) & (column >= 1) & (column <= 2)).to(_F64)
    toll = ((row == 0) & (column >= 1)).to(_F64)
    reward = (torch.arange(_STATES) == GOAL).to(_F64)
    return MarkovModel(P, torch.stack([-reward, hazard, toll], 1))


def _after(state: int, action: int) -> int:
    row, column = divmod(state, SIDE)
    down, right = MOVES[action]
    return min(max(row + down, 0), SIDE - 1) * SIDE + min(max(column + right, 0), SIDE - 1)


def starts() -> Tensor:
    """(EXAMPLES, STATES) one-hot: fields of the two columns at the left, the upper ones more
    often."""
    weight = torch.zeros(SIDE, SIDE, dtype=_F64)
    weight[:, 0], weight[:, 1] = torch.tensor([5.0, 4, 3, 2, 1], dtype=_F64), 0.5
    drawn = torch.multinomial(
        weight.flatten(), _EXAMPLES, True, generator=torch.Generator().manual_seed(0)
    )
    return torch.nn.functional.one_hot(drawn, _STATES).to(_F64)


def policy_values(policy: Tensor) -> Tensor:
    """(STATES, 3) discounted sums from every state under a policy (STATES, ACTIONS)."""
    P, paid = model()
    step = torch.einsum("sa,sat->st", policy, P)
    found: Tensor = torch.linalg.solve(torch.eye(_STATES, dtype=_F64) - DISCOUNT * step, paid)
    return found


def _values(x: Tensor, examples: Tensor) -> Tensor:
    found = policy_values((_UNIT * x).reshape(_STATES, ACTIONS).softmax(1))
    return examples @ found - torch.tensor([0.0, *_BOUNDS], dtype=_F64)


class Program(NamedTuple):
    """The linear program's solution."""

    loss: float
    y: NDArray[np.float64]  # (2,)
    policy: NDArray[np.float64]  # (_STATES, ACTIONS)
    gap: float  # between primal and dual value


def program() -> Program:
    """min paid_0'd s.t. sum_a d(t, a) - discount sum P(t | s, a) d(s, a) = share of starts in t,
    paid_i'd <= b_i."""
    from scipy.optimize import linprog

    P, paid = model()
    first = starts().mean(0).numpy()
    stay = np.repeat(np.eye(_STATES), ACTIONS, axis=0).T
    flow = stay - DISCOUNT * P.reshape(-1, _STATES).T.numpy()
    by_pair = np.repeat(paid.numpy(), ACTIONS, axis=0)
    found = linprog(by_pair[:, 0], by_pair[:, 1:].T, _BOUNDS, flow, first, method="highs")
    if found.status != 0:
        raise ValueError(f"the linear program of the grid world has no solution: {found.message}")
    d = found.x.reshape(_STATES, ACTIONS)
    y, dual = -found.ineqlin.marginals, found.eqlin.marginals
    reached = d.sum(1, keepdims=True)
    policy = np.where(reached > 0, d / np.maximum(reached, 1e-300), 1 / ACTIONS)
    slope = by_pair[:, 0] + by_pair[:, 1:] @ y - flow.T @ dual  # of the Lagrangian, >= 0
    gap = abs(found.fun - (dual @ first - y @ _BOUNDS))
    return Program(
        float(found.fun),
        y,
        policy,
        float(max(gap, -slope.min(), -y.min(), np.abs(slope * found.x).max())),
    )


def _optimum() -> Optimum:
    found = program()
    how = (
        "the linear program over occupancy measures; the residual is that of its optimality"
        " conditions"
    )
    return Optimum(found.loss, found.gap, how, torch.from_numpy(found.y))


def build() -> Instance:
    begin = torch.zeros(_STATES * ACTIONS, dtype=_F64)  # all moves equally likely
    return expectation(_values, starts(), begin, inequalities=len(_BOUNDS), batch=24)


PROBLEMS = (
    BenchmarkProblem(
        name="grid-world",
        title="Reach the corner of a 5 x 5 grid with bounds on hazard and toll: a softmax policy",
        family="control, physics, others",
        build=build,
        changed=True,
        noise="where the episodes of a mini-batch start",
        kinds="<= nonlinear",
        scale=_BOUNDS[0],
        optimum=_optimum,
        origin="E. Altman, Constrained Markov Decision Processes, 1999: the linear program",
    ),
)
