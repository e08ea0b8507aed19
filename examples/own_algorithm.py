"""A custom method is one class, for loops, stacked runs and the command line; `check_algorithm` certifies it.

    fairbound run income-ok-race --algorithm examples/own_algorithm.py:ExponentiatedAscent

Descent on the Lagrangian, exponentiated ascent in the multipliers: y+ = y exp(eta c).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fairbound as fb

BOUND = 0.05


@dataclass(frozen=True, kw_only=True)
class ExponentiatedAscent(fb.Algorithm[Tensor]):  # the state is one tensor; several go into a NamedTuple
    tau: float = 0.3  # primal step
    eta: float = 0.5  # dual step
    is_gradient_step = True  # d is a multiple of one gradient: in a loop, one backward pass
    solves = "kkt"

    def init(self, x, m, first=None, equality=None):
        return x.new_full((m,), 0.1)  # a product with 0 stays 0

    def update(self, x, y, draw):
        (e,) = (sample(x) for sample in draw.unpack(self))
        d = -self.tau * e.grad(f=1.0, c=y)  # one backward pass: grad f + J'y
        return d, (y * torch.exp(self.eta * e.c)).clamp(min=1e-3)

    def multipliers(self, y):
        return y

    def primal_step(self, y):  # the step that the learning rate of a loop replaces
        return self.tau


if __name__ == "__main__":
    print(fb.check_algorithm(ExponentiatedAscent()))
    torch.manual_seed(0)
    X, group = torch.randn(6000, 5), (torch.rand(6000) < 0.3).long()
    y = (X.sum(1) - 2 * group * X[:, 0] + torch.randn(6000) > 0).float()  # group 1 follows another rule
    split = fb.Split(torch.arange(4000), test=torch.arange(4000, 6000))
    constraint = fb.constraints.pairwise_loss_parity(["A", "B"], bound=BOUND)
    loss = nn.BCEWithLogitsLoss(reduction="none")  # per-example losses
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    forward, start = fb.make_functional(model)
    problem = fb.Problem(forward, loss, constraint.bind(group), fb.Dataset(X, y))
    sampler = fb.Sampler(split, problem.constraint.cells, fb.BatchSpec(objective=256, cell=128))
    methods = [fb.SGD(tau=0.3), ExponentiatedAscent()]  # unconstrained training, and ours
    plain, ours = fb.run(problem, methods, sampler, start, steps=500, compile=False).result().x

    fair, optimizer = fb.Constrained(model, constraint, methods[1]), torch.optim.SGD(model.parameters(), lr=0.3)
    for batch in torch.randint(4000, (500, 512)):
        optimizer.zero_grad()
        fair.backward(loss(model(X[batch]), y[batch]), group[batch])
        optimizer.step()
    print(f"bound {BOUND}; multipliers in the loop: {fair.multipliers}")
    found = {"unconstrained": plain, "ours, by run": ours, "ours, in a loop": fb.make_functional(model)[1]}
    for name, x in found.items():
        gaps = [problem.evaluate(x, part).c.max() + BOUND for part in (split.train, split.test)]
        print(f"{name}: gap on training examples {gaps[0]:.3f}, on held-out examples {gaps[1]:.3f}")
