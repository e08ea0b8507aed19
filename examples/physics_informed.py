"""A physics-informed network
============================

Fit measurements of u_t + 30 u_x = 0, with the residual and the boundary within bounds in their own
units.

The mean square of the residual, which starts near 100, must be at most 0.1, that of the boundary
0.01: no weight is tuned. The first network has the usual sum with weights of 1. The solution is u =
sin(x - 30 t).
"""

from math import pi

import torch
from matplotlib import pyplot as plt
from torch import nn

from fairbound import Constrained, constraints

BETA, STEPS, RESIDUAL, BOUNDARY, rng = 30.0, 4000, 0.1, 0.01, torch.Generator().manual_seed(0)


def points(count):  # (count, 2): x in [0, 2 pi], t in [0, 1]
    return torch.rand(count, 2, generator=rng) * torch.tensor([2 * pi, 1.0])


def solution(p):
    return torch.sin(p[:, 0] - BETA * p[:, 1])


def terms(net, count):
    """The misfit, and the mean squares of residual and boundary (initial value, equal left and
    right sides)."""

    def u(p):
        return net(p / torch.tensor([pi, 0.5]) - 1)

    p, (first, left) = (
        points(count).requires_grad_(),
        points(128).view(2, 64, 2) * torch.eye(2)[:, None],
    )
    (du,) = torch.autograd.grad(u(p).sum(), p, create_graph=True)
    boundary = torch.cat(
        [u(first) - solution(first), u(left) - u(left + torch.tensor([2 * pi, 0.0]))]
    )
    return [
        part.square().mean() for part in (u(where) - measured, du[:, 1] + BETA * du[:, 0], boundary)
    ]


where = points(200)
measured = solution(where) + 0.1 * torch.randn(200, generator=rng)
print(f"bounds: residual {RESIDUAL}, boundary {BOUNDARY}")
for name in ("weights of 1", "bounds"):
    torch.manual_seed(0)
    hidden = [layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.Tanh())]
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), *hidden, nn.Linear(64, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, STEPS)
    fair = Constrained(net, constraints.given("residual", "boundary"))
    for _ in range(STEPS):
        optimizer.zero_grad()
        misfit, residual, boundary = terms(net, 200)
        if name == "bounds":
            excess = {"residual": residual - RESIDUAL, "boundary": boundary - BOUNDARY}
            fair.backward(misfit[None], values=excess)
        else:
            (misfit + residual + boundary).backward()
        optimizer.step()
        schedule.step()
    misfit, residual, boundary = terms(net, 4000)
    print(f"{name}: misfit {misfit:.4f}, residual {residual:.4f}, boundary {boundary:.4f}")
fair.plot()
plt.show()
