"""Six training loops with a bound, held out from the development of the self-tuning method.

They were written before the method was frozen, by someone who did not develop it, and nothing was chosen on them: the
learning rates are those of the *unconstrained* task (the best final loss of 2,000 steps over 1e-3 .. 0.3 in steps of
about 3, seed 0; for physics, where larger rates only fit noise better, 3e-3), the bounds are round numbers between the
unconstrained value and the smallest possible one.

    run = LOOPS[0].build(seed=100, scale=1.0, lr_factor=1.0)
    for k in range(LOOPS[0].steps):
        f, c = run.batch(k)                     # on the graph; feasible where c <= 0 (= 0 where run.equality)
        ...                                     # write .grad
        run.optimizer.step()
    objective, c = run.evaluate()               # all data, final parameters, c in its natural units

`scale` multiplies the c that training sees (grams instead of kilograms), `lr_factor` the learning rate. The data of a
loop are the same for all seeds; the seed is that of the initial weights and of the mini-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Values = tuple[Tensor, Tensor]  # f (), c (m,)


@dataclass
class Run:
    """One training run: what a user's script has."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], Values]  # of step k
    evaluate: Callable[[], Values]
    equality: Tensor | None = None  # (m,) bool


@dataclass(frozen=True)
class Loop:
    name: str
    steps: int
    create: Callable[[int], Run]  # of a seed

    def build(self, seed: int, scale: float = 1.0, lr_factor: float = 1.0) -> Run:
        run = self.create(seed)
        natural = run.batch

        def scaled(k: int) -> Values:
            f, c = natural(k)
            return f, scale * c

        run.batch = scaled
        for group in run.optimizer.param_groups:
            group["lr"] *= lr_factor
        return run


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@contextmanager
def initial(seed: int) -> Iterator[None]:
    """Modules built inside have the weights of this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def sample(rng: torch.Generator, examples: int, size: int) -> Tensor:
    return torch.randint(examples, (size,), generator=rng)


def no_grad(values: Callable[[], Values]) -> Callable[[], Values]:
    return torch.no_grad()(values)


# 1. A bound on a second task's loss: two regressions share a narrow trunk; the second is in large units


class SecondTask(NamedTuple):
    x: Tensor  # (n, 16)
    first: Tensor  # (n,), standard deviation 1
    second: Tensor  # (n,), standard deviation 40


@cache
def second_task_data() -> SecondTask:
    rng = generator(11)
    x = torch.randn(4096, 16, generator=rng)
    directions = torch.linalg.qr(torch.randn(16, 4, generator=rng)).Q
    p = x @ directions  # each task reads two of these four, the trunk has three, linear
    first = torch.sin(1.5 * p[:, 0]) + 0.5 * p[:, 1] ** 2 - 0.5 + 0.2 * torch.randn(4096, generator=rng)
    second = torch.tanh(2 * p[:, 2]) + 0.7 * p[:, 2] * p[:, 3] + 0.2 * torch.randn(4096, generator=rng)
    return SecondTask(x, first / first.std(), 40 * second / second.std())


def second_task(seed: int) -> Run:
    data, rng = second_task_data(), generator(seed)
    with initial(seed):
        trunk = nn.Linear(16, 3)
        heads = [
            nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
            for _ in range(2)
        ]
    model = nn.ModuleList([trunk, *heads])

    def values(x: Tensor, first: Tensor, second: Tensor) -> Values:
        shared = trunk(x)
        square = F.mse_loss(40 * heads[1](shared), second)
        return F.mse_loss(heads[0](shared), first), (square - 450.0).reshape(1)

    def batch(k: int) -> Values:
        i = sample(rng, len(data.x), 128)
        return values(data.x[i], data.first[i], data.second[i])

    optimizer = torch.optim.Adam(model.parameters(), lr=LR["second task"])
    return Run(model, optimizer, batch, no_grad(lambda: values(*data)))


# 2. A physics residual: a pendulum is pushed, u'' + 0.4 u' + 4 sin u = 2 cos 3t, and the model ignores the push


class Pendulum(NamedTuple):
    t: Tensor  # (200,) times of the measurements
    u: Tensor  # (200,) measured angles, noise 0.1
    grid: Tensor  # (512,) times at which the residual is evaluated


@cache
def pendulum_data() -> Pendulum:
    u, v, h = 2.2, 0.0, 1e-3
    path = [u]
    for k in range(6000):  # midpoint rule
        um, vm = u + h / 2 * v, v + h / 2 * (2 * math.cos(3 * h * k) - 0.4 * v - 4 * math.sin(u))
        u, v = u + h * vm, v + h * (2 * math.cos(3 * h * (k + 0.5)) - 0.4 * vm - 4 * math.sin(um))
        path.append(u)
    rng = generator(12)
    i = torch.randint(6001, (200,), generator=rng)
    noisy = torch.tensor(path)[i] + 0.1 * torch.randn(200, generator=rng)
    return Pendulum(i * h, noisy, torch.linspace(0, 6, 512))


class Curve(nn.Module):
    """t -> (u, u', u''): a tanh network, with its first two derivatives carried forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 48), nn.Linear(48, 48), nn.Linear(48, 1)])

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, da, dda = (t - 3)[:, None], torch.ones_like(t)[:, None], torch.zeros_like(t)[:, None]
        for k, layer in enumerate(self.layers):
            a, da, dda = layer(a), da @ layer.weight.T, dda @ layer.weight.T
            if k < 2:
                a = torch.tanh(a)
                slope = 1 - a * a
                da, dda = slope * da, slope * dda - 2 * a * slope * da * da
        return a[:, 0], da[:, 0], dda[:, 0]


def physics(seed: int) -> Run:
    data, rng = pendulum_data(), generator(seed)
    with initial(seed):
        model = Curve()

    def values(times: Tensor) -> Values:
        u, du, ddu = model(torch.cat([data.t, times]))
        residual = (ddu + 0.4 * du + 4 * torch.sin(u))[len(data.t) :]
        return F.mse_loss(u[: len(data.t)], data.u), (residual.square().mean() - 0.1).reshape(1)

    def batch(k: int) -> Values:
        return values(6 * torch.rand(64, generator=rng))

    optimizer = torch.optim.Adam(model.parameters(), lr=LR["physics"])
    return Run(model, optimizer, batch, no_grad(lambda: values(data.grid)))


# 3. A KL bound: fine-tuning from a reference model, where the divergence and its gradient start at 0


class FineTuning(NamedTuple):
    x: Tensor  # (n, 12) new inputs
    y: Tensor  # (n,) their labels, 0 .. 5
    x_old: Tensor  # (n, 12) where the reference must be kept
    p_old: Tensor  # (n, 6) log-probabilities of the reference there


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6))


@cache
def reference_model() -> nn.Sequential:
    with initial(13):
        model = classifier()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 2.5  # confident: logits of standard deviation about 2
    return model


@cache
def fine_tuning_data() -> FineTuning:
    rng = generator(13)
    with initial(14):
        other = classifier()
    with torch.no_grad():
        for weight in other.parameters():
            weight *= 2.5
        x = 0.7 + torch.randn(16_384, 12, generator=rng)
        logits = reference_model()(x) + 1.5 * other(x)
        y = torch.distributions.Gumbel(0.0, 1.0).icdf(torch.rand(16_384, 6, generator=rng).clamp(1e-6, 1 - 1e-6))
        x_old = torch.randn(16_384, 12, generator=rng)
        return FineTuning(x, (logits + 0.5 * y).argmax(1), x_old, reference_model()(x_old).log_softmax(1))


def divergence(seed: int) -> Run:
    data, rng = fine_tuning_data(), generator(seed)
    model = classifier()
    model.load_state_dict(reference_model().state_dict())

    def values(x: Tensor, y: Tensor, x_old: Tensor, p_old: Tensor) -> Values:
        logits, logits_old = model(torch.cat([x, x_old])).split([len(x), len(x_old)])
        kl = F.kl_div(logits_old.log_softmax(1), p_old, log_target=True, reduction="batchmean")
        return F.cross_entropy(logits, y), (kl - 0.05).reshape(1)

    def batch(k: int) -> Values:
        i, j = sample(rng, len(data.x), 128), sample(rng, len(data.x), 128)
        return values(data.x[i], data.y[i], data.x_old[j], data.p_old[j])

    optimizer = torch.optim.SGD(model.parameters(), lr=LR["KL"], momentum=0.9)
    return Run(model, optimizer, batch, no_grad(lambda: values(*data)))


# 4. Twenty classes' losses: rare classes are sacrificed unless each loss is bounded; 8 examples of a class per step


class Classes(NamedTuple):
    x: Tensor  # (n, 10)
    y: Tensor  # (n,)
    members: list[Tensor]  # of each class, the numbers of its examples


@cache
def classes_data() -> Classes:
    rng = generator(15)
    share = torch.logspace(0, -1.3, 20)
    y = torch.multinomial(share, 20_000, replacement=True, generator=rng)
    centers, widths = 0.8 * torch.randn(20, 10, generator=rng), 0.7 + 0.6 * torch.rand(20, generator=rng)
    x = centers[y] + widths[y, None] * torch.randn(20_000, 10, generator=rng)
    return Classes(x, y, [torch.nonzero(y == k)[:, 0] for k in range(20)])


def twenty_classes(seed: int) -> Run:
    data, rng = classes_data(), generator(seed)
    with initial(seed):
        model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 20))

    def batch(k: int) -> Values:
        i = sample(rng, len(data.x), 128)
        each = torch.cat([members[sample(rng, len(members), 8)] for members in data.members])
        losses = F.cross_entropy(model(data.x[torch.cat([i, each])]), data.y[torch.cat([i, each])], reduction="none")
        return losses[:128].mean(), losses[128:].reshape(20, 8).mean(1) - BOUND

    def evaluate() -> Values:
        losses = F.cross_entropy(model(data.x), data.y, reduction="none")
        return losses.mean(), torch.stack([losses[members].mean() for members in data.members]) - BOUND

    optimizer = torch.optim.Adam(model.parameters(), lr=LR["twenty classes"])
    return Run(model, optimizer, batch, no_grad(evaluate))


BOUND = 1.35  # of every class's loss, nats


# 5. A budget on a weight statistic: the mean |w| of 12,000 weights; every weight's gradient is about 1e-4


class Sparse(NamedTuple):
    x: Tensor  # (n, 32), of which 5 matter
    y: Tensor  # (n,)


@cache
def sparse_data() -> Sparse:
    rng = generator(16)
    x = torch.randn(8192, 32, generator=rng)
    y = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + x[:, 3].abs() - 0.5 * x[:, 4]
    return Sparse(x, (y - y.mean()) / y.std() + 0.3 * torch.randn(8192, generator=rng))


def weight_budget(seed: int) -> Run:
    data, rng = sparse_data(), generator(seed)
    with initial(seed):
        model = nn.Sequential(
            nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1), nn.Flatten(0)
        )
    weights = [weight for weight in model.parameters() if weight.ndim == 2]
    count = sum(weight.numel() for weight in weights)

    def values(x: Tensor, y: Tensor) -> Values:
        mean = sum((weight.abs().sum() for weight in weights), torch.zeros(())) / count
        return F.mse_loss(model(x), y), (mean - 0.02).reshape(1)

    def batch(k: int) -> Values:
        i = sample(rng, len(data.x), 64)
        return values(data.x[i], data.y[i])

    optimizer = torch.optim.SGD(model.parameters(), lr=LR["weight budget"], momentum=0.9)
    return Run(model, optimizer, batch, no_grad(lambda: values(*data)))


# 6. An equality with curvature: the codes of a tied autoencoder are white, E z z' = 5 I; strong conflict


@cache
def factor_data() -> Tensor:
    """(8192, 30): six factors of falling size, bent by a nonlinearity."""
    rng = generator(17)
    factors = torch.randn(8192, 6, generator=rng) * torch.tensor([2.0, 1.6, 1.3, 1.0, 0.7, 0.5])
    x = factors @ torch.randn(6, 30, generator=rng) / 6**0.5
    x = x + 0.3 * x.square() - 0.3 * x.square().mean(0)
    return x + 0.2 * torch.randn(8192, 30, generator=rng)


class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer, self.inner = nn.Linear(30, 64), nn.Linear(64, 4)
        self.shift, self.output = nn.Parameter(torch.zeros(64)), nn.Parameter(torch.zeros(30))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.inner(torch.tanh(self.outer(x)))
        return z, torch.tanh(z @ self.inner.weight + self.shift) @ self.outer.weight + self.output


def white_codes(seed: int) -> Run:
    x, rng = factor_data(), generator(seed)
    with initial(seed):
        model = TiedAutoencoder()
    rows, columns = torch.triu_indices(4, 4)

    def values(x: Tensor) -> Values:
        z, copy = model(x)
        moments = z.T @ z / len(z) - 5 * torch.eye(4)
        return F.mse_loss(copy, x), moments[rows, columns]

    def batch(k: int) -> Values:
        return values(x[sample(rng, len(x), 128)])

    optimizer = torch.optim.Adam(model.parameters(), lr=LR["white codes"])
    return Run(model, optimizer, batch, no_grad(lambda: values(x)), torch.ones(10, dtype=torch.bool))


LR = {  # of the unconstrained task, see above
    "second task": 1e-2,
    "physics": 3e-3,
    "KL": 0.03,
    "twenty classes": 3e-3,
    "weight budget": 0.03,
    "white codes": 1e-2,
}
LOOPS = (
    Loop("second task", 1200, second_task),
    Loop("physics", 2000, physics),
    Loop("KL", 1200, divergence),
    Loop("twenty classes", 1200, twenty_classes),
    Loop("weight budget", 1200, weight_budget),
    Loop("white codes", 1200, white_codes),
)
