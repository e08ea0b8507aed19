"""An algorithm of your own
===========================

One class serves a loop, stacked runs, and the command line, where it stands beside the others::

    fairbound run paper-ok-race --algorithm examples/own_algorithm.py:ExponentiatedAscent

Descent on the Lagrangian, exponentiated ascent in the multipliers, y+ = y exp(eta c);
`check_algorithm` certifies it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

import fairbound as fb

BOUND = 0.05


class State(NamedTuple):
    y: Tensor  # (m,) multipliers, one for each constraint
    k: Tensor  # () steps made


@dataclass(frozen=True, kw_only=True)
class ExponentiatedAscent(fb.MultiplierMethod[State]):
    tau: float = 0.3  # step of x; in a loop the optimizer's learning rate
    eta: float = 0.5  # step of the multipliers
    solves = "kkt"
    row_wise = True  # every constraint is treated alone: there may be very many

    def start(self, like, m, equality=None, first=None):
        fb.core.refuse_equality(self, equality)  # y > 0: for c <= 0 alone
        return State(like.new_full((m,), 0.1), like.new_zeros(()))  # from 0 no factor leads away

    def step(self, state, c):  # the weights of the gradient grad f + J'w, and the next state
        y = (state.y * torch.exp(self.eta * c)).clamp(min=1e-3)
        return state.y, State(y, state.k + 1)


if __name__ == "__main__":
    print(fb.check_algorithm(ExponentiatedAscent()))
    torch.manual_seed(0)
    X, group = torch.randn(6000, 5), (torch.rand(6000) < 0.3).long()
    # group 1 follows a rule of its own
    y = (X.sum(1) - 2 * group * X[:, 0] + torch.randn(6000) > 0).float()
    split = fb.Split(torch.arange(4000), test=torch.arange(4000, 6000))
    parity, loss = (
        fb.constraints.pairwise_loss_parity(["A", "B"], bound=BOUND),
        nn.BCEWithLogitsLoss(reduction="none"),
    )
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    forward, start = fb.make_functional(model)
    problem = fb.Problem(forward, loss, parity.bind(group), fb.Dataset(X, y))
    sampler = fb.Sampler(split, problem.constraint.cells, fb.BatchSpec(objective=256, cell=128))
    methods = fb.SGD(tau=0.3), ExponentiatedAscent()  # unconstrained training, and ours
    plain, ours = fb.run(problem, methods, sampler, start, steps=500, compile=False).result().x

    fair, optimizer = (
        fb.Constrained(model, parity, methods[1]),
        torch.optim.SGD(model.parameters(), lr=0.3),
    )
    for batch in torch.randint(4000, (500, 512)):
        optimizer.zero_grad()
        fair.backward(loss(model(X[batch]), y[batch]), group[batch])
        optimizer.step()
    print(f"bound {BOUND}; multipliers in the loop: {fair.multipliers}")
    for name, x in {
        "plain": plain,
        "ours, by run": ours,
        "ours, in a loop": fb.make_functional(model)[1],
    }.items():
        gaps = [problem.evaluate(x, part).c.max() + BOUND for part in (split.train, split.test)]
        plt.plot(["training examples", "held-out examples"], gaps, "o--", label=name)
        print(f"{name}: gap on training examples {gaps[0]:.3f}, on held-out examples {gaps[1]:.3f}")
    plt.margins(x=0.3)
    plt.axhline(BOUND, color="gray", label="bound")
    plt.title("Gap of the groups' losses")
    plt.legend()
    plt.show()
