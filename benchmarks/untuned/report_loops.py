"""Six training loops with a bound, held out from the development of the self-tuning method.

They were written before the last change of the method, and nothing was chosen on them: the learning
rates are those of the *unconstrained* task (the best final loss of 2,000 steps over 1e-3 .. 0.3 in
steps of about 3, seed 0), the bounds are round numbers between the unconstrained value and the
smallest possible one. They replace six earlier loops of the same kinds, which the development had
seen.

    run = LOOPS[0].build(seed=100, scale=1.0, lr_factor=1.0)
    for k in range(LOOPS[0].steps):
        f, c = run.batch(k)                     # on the graph; feasible where c <= 0 (= 0 where
        run.equality)
        ...                                     # write .grad
        run.optimizer.step()
    objective, c = run.evaluate()               # all data, final parameters, c in its natural units

`scale` multiplies the c that training sees (grams instead of kilograms), `lr_factor` the learning
rate. The data of a loop are the same for all seeds; the seed is that of the initial weights and of
the mini-batches.
"""

from __future__ import annotations

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


# 1. A bound on a second task's loss: five classes and the mean absolute error of a duration in
#    seconds, one small trunk


class TwoTasks(NamedTuple):
    x: Tensor  # (n, 24)
    label: Tensor  # (n,) 0 .. 4
    seconds: Tensor  # (n,) standard deviation 300


@cache
def two_tasks_data() -> TwoTasks:
    rng = generator(21)
    x = torch.randn(6000, 24, generator=rng)
    hidden = torch.tanh(x @ torch.randn(24, 8, generator=rng) / 3)
    logits = 3 * hidden[:, :5] @ torch.randn(5, 5, generator=rng)
    uniform = torch.rand(6000, 5, generator=rng).clamp(1e-6, 1 - 1e-6)
    duration = (
        hidden[:, 4:].prod(1) * 3
        + hidden[:, 5]
        - hidden[:, 6].square()
        + 0.1 * torch.randn(6000, generator=rng)
    )
    seconds = 900 + 300 * (duration - duration.mean()) / duration.std()
    return TwoTasks(x, (logits - (-uniform.log()).log()).argmax(1), seconds)


def two_tasks(seed: int) -> Run:
    data, rng = two_tasks_data(), generator(seed)
    with initial(seed):
        trunk = nn.Sequential(nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 6), nn.ReLU())
        labels, duration = nn.Linear(6, 5), nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    model = nn.ModuleList([trunk, labels, duration])

    def values(x: Tensor, label: Tensor, seconds: Tensor) -> Values:
        shared = trunk(x)
        error = (900 + 300 * duration(shared) - seconds).abs().mean()
        return F.cross_entropy(labels(shared), label), (error - BOUND["two tasks"]).reshape(1)

    def batch(k: int) -> Values:
        i = sample(rng, len(data.x), 64)
        return values(data.x[i], data.label[i], data.seconds[i])

    optimizer = torch.optim.Adam(model.parameters(), lr=LR["two tasks"])
    return Run(model, optimizer, batch, no_grad(lambda: values(*data)))


# 2. A physics residual: u_t + u_x = 0.02 u_xx on a square; the measured wave also decays, which the
#    equation ignores


class Wave(NamedTuple):
    at: Tensor  # (n, 2) x and t of the measurements
    u: Tensor  # (n,) measured, noise 0.05
    grid: Tensor  # (g, 2) where the residual is evaluated


@cache
def wave_data() -> Wave:
    rng = generator(22)
    at = torch.rand(400, 2, generator=rng)
    x, t = at.unbind(1)
    u = torch.exp(-0.8 * t) * (torch.sin(6 * (x - t)) + 0.4 * torch.cos(11 * (x - t)))
    side = torch.linspace(0, 1, 32)
    return Wave(at, u + 0.05 * torch.randn(400, generator=rng), torch.cartesian_prod(side, side))


class Surface(nn.Module):
    """(x, t) -> (u, u_t - 0.02 u_xx + u_x): a network of sines, with its derivatives carried
    forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 40), nn.Linear(40, 40), nn.Linear(40, 1)])

    def forward(self, at: Tensor) -> tuple[Tensor, Tensor]:
        a = 2 * at - 1
        ax, axx, at_ = (
            torch.tensor([2.0, 0.0]).expand_as(a),
            torch.zeros_like(a),
            torch.tensor([0.0, 2.0]).expand_as(a),
        )
        for k, layer in enumerate(self.layers):
            a, ax, axx, at_ = (
                layer(a),
                ax @ layer.weight.T,
                axx @ layer.weight.T,
                at_ @ layer.weight.T,
            )
            if k < 2:
                sine, cosine = torch.sin(2 * a), torch.cos(2 * a)
                a, axx = sine, 2 * cosine * axx - 4 * sine * ax * ax
                ax, at_ = 2 * cosine * ax, 2 * cosine * at_
        return a[:, 0], (at_ + ax - 0.02 * axx)[:, 0]


def wave(seed: int) -> Run:
    data, rng = wave_data(), generator(seed)
    with initial(seed):
        model = Surface()

    def values(i: Tensor, points: Tensor) -> Values:
        u, residual = model(torch.cat([data.at[i], points]))
        return F.mse_loss(u[: len(i)], data.u[i]), (
            residual[len(i) :].square().mean() - BOUND["wave"]
        ).reshape(1)

    def batch(k: int) -> Values:
        return values(sample(rng, 400, 100), torch.rand(100, 2, generator=rng))

    optimizer = torch.optim.Adam(model.parameters(), lr=LR["wave"])
    return Run(model, optimizer, batch, no_grad(lambda: values(torch.arange(400), data.grid)))


# 3. Distillation: a small student learns new labels and stays within a KL divergence of a large
#    teacher


class Lessons(NamedTuple):
    x: Tensor  # (n, 20)
    y: Tensor  # (n,) new labels, 0 .. 7
    teacher: Tensor  # (n, 8) the teacher's log-probabilities


@cache
def lessons_data() -> Lessons:
    rng = generator(23)
    x = torch.randn(10_000, 20, generator=rng)

    def logits(scale: float) -> Tensor:
        hidden = torch.relu(x @ torch.randn(20, 200, generator=rng) / 20**0.5)
        return scale * hidden @ torch.randn(200, 8, generator=rng) / 200**0.5

    teacher, other = logits(4.0), logits(3.0)
    uniform = torch.rand(10_000, 8, generator=rng).clamp(1e-6, 1 - 1e-6)
    return Lessons(
        x, (0.6 * teacher + other - (-uniform.log()).log()).argmax(1), teacher.log_softmax(1)
    )


def distillation(seed: int) -> Run:
    data, rng = lessons_data(), generator(seed)
    with initial(seed):
        model = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 8))

    def values(x: Tensor, y: Tensor, teacher: Tensor) -> Values:
        student = model(x).log_softmax(1)
        divergence = F.kl_div(student, teacher, log_target=True, reduction="batchmean")
        return F.nll_loss(student, y), (divergence - BOUND["distillation"]).reshape(1)

    def batch(k: int) -> Values:
        i = sample(rng, len(data.x), 100)
        return values(data.x[i], data.y[i], data.teacher[i])

    optimizer = torch.optim.SGD(model.parameters(), lr=LR["distillation"], momentum=0.9)
    return Run(model, optimizer, batch, no_grad(lambda: values(*data)))


# 4. Twenty classes' losses: the objective counts a class by its share, 0.16 to 0.01; 6 examples of
#    a class per step


class Signals(NamedTuple):
    x: Tensor  # (20, 600, 32): 600 examples of every class
    share: Tensor  # (20,)


@cache
def signals_data() -> Signals:
    rng = generator(24)
    t = torch.linspace(0, 1, 32)
    waves = torch.stack([torch.sin((3 + 0.7 * k) * t + 0.5 * k) for k in range(20)])
    noise = torch.linspace(0.8, 2.0, 20)[torch.randperm(20, generator=rng)]
    shift = 0.4 * torch.randn(20, 600, 1, generator=rng)
    x = waves[:, None] + shift + noise[:, None, None] * torch.randn(20, 600, 32, generator=rng)
    share = torch.logspace(0, -1.2, 20)[torch.randperm(20, generator=rng)]
    return Signals(x, share / share.sum())


def twenty_signals(seed: int) -> Run:
    data, rng = signals_data(), generator(seed)
    with initial(seed):
        model = nn.Sequential(
            nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 20)
        )

    def values(x: Tensor) -> Values:
        labels = torch.arange(20).repeat_interleave(x.shape[1])
        losses = (
            F.cross_entropy(model(x.flatten(0, 1)), labels, reduction="none")
            .reshape(20, -1)
            .mean(1)
        )
        return data.share @ losses, losses - BOUND["twenty signals"]

    def batch(k: int) -> Values:
        return values(torch.take_along_dim(data.x, sample(rng, 600, 120).reshape(20, 6, 1), 1))

    optimizer = torch.optim.Adam(model.parameters(), lr=LR["twenty signals"])
    return Run(model, optimizer, batch, no_grad(lambda: values(data.x)))


# 5. A budget on a weight statistic: the mean length of the 60 inputs' weights, which drops inputs


class Inputs(NamedTuple):
    x: Tensor  # (n, 60), of which 8 matter
    y: Tensor  # (n,) 0 or 1


@cache
def inputs_data() -> Inputs:
    rng = generator(25)
    x = torch.randn(8000, 60, generator=rng)
    score = (
        2 * x[:, 0] * x[:, 1]
        + 2 * torch.sin(2 * x[:, 2])
        + x[:, 3:6].square().sum(1)
        - 3
        + 1.5 * x[:, 6]
        - x[:, 7]
    )
    return Inputs(x, (torch.rand(8000, generator=rng) < torch.sigmoid(2 * score)).float())


def few_inputs(seed: int) -> Run:
    data, rng = inputs_data(), generator(seed)
    with initial(seed):
        model = nn.Sequential(
            nn.Linear(60, 64),
            nn.SiLU(),
            nn.Linear(64, 32),
            nn.SiLU(),
            nn.Linear(32, 1),
            nn.Flatten(0),
        )

    def values(x: Tensor, y: Tensor) -> Values:
        mean = model[0].weight.norm(dim=0).mean()
        return F.binary_cross_entropy_with_logits(model(x), y), (
            mean - BOUND["few inputs"]
        ).reshape(1)

    def batch(k: int) -> Values:
        i = sample(rng, len(data.x), 50)
        return values(data.x[i], data.y[i])

    optimizer = torch.optim.AdamW(model.parameters(), lr=LR["few inputs"])
    return Run(model, optimizer, batch, no_grad(lambda: values(*data)))


# 6. An equality with curvature: five directions of unit length at right angles, P'P = I, where the
#    best ones are not


class Ridges(NamedTuple):
    x: Tensor  # (n, 12)
    y: Tensor  # (n,)


@cache
def ridges_data() -> Ridges:
    rng = generator(26)
    x = torch.randn(5000, 12, generator=rng)
    P = torch.linalg.qr(torch.randn(12, 5, generator=rng)).Q @ (
        torch.eye(5) + 0.35 * torch.randn(5, 5, generator=rng)
    )
    return Ridges(x, torch.tanh(1.6 * x @ P).sum(1) + 0.2 * torch.randn(5000, generator=rng))


def right_angles(seed: int) -> Run:
    data, rng = ridges_data(), generator(seed)
    with initial(seed):
        model = nn.Linear(12, 5)
    rows, columns = torch.triu_indices(5, 5)

    def values(x: Tensor, y: Tensor) -> Values:
        gram = model.weight @ model.weight.T - torch.eye(5)
        return F.mse_loss(torch.tanh(model(x)).sum(1), y), gram[rows, columns]

    def batch(k: int) -> Values:
        i = sample(rng, len(data.x), 32)
        return values(data.x[i], data.y[i])

    optimizer = torch.optim.SGD(model.parameters(), lr=LR["right angles"], momentum=0.9)
    return Run(
        model, optimizer, batch, no_grad(lambda: values(*data)), torch.ones(15, dtype=torch.bool)
    )


LR = {  # of the unconstrained task, see above
    "two tasks": 1e-2,
    "wave": 3e-3,
    "distillation": 0.03,
    "twenty signals": 0.01,
    "few inputs": 0.01,
    "right angles": 3e-3,
}
BOUND = {  # in the units of the quantity
    "two tasks": 150.0,
    "wave": 0.03,
    "distillation": 0.3,
    "twenty signals": 1.0,
    "few inputs": 0.4,
}
LOOPS = (
    Loop("two tasks", 1500, two_tasks),
    Loop("wave", 1500, wave),
    Loop("distillation", 1000, distillation),
    Loop("twenty signals", 1500, twenty_signals),
    Loop("few inputs", 1500, few_inputs),
    Loop("right angles", 1200, right_angles),
)
