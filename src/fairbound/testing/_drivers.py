"""Checks of a method in the drivers: stacked runs, a training loop, a resumed loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairbound._utils.measuring import is_probe
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.core import Algorithm, Draw, MultiplierMethod, Sample
from fairbound.data import Dataset, Split
from fairbound.data._samplers import BatchSpec, Sampler
from fairbound.integrations.torch._constrained import Constrained
from fairbound.testing._checks import close, expect
from fairbound.training._contract import trial_step
from fairbound.training._functional import make_functional
from fairbound.training._hyperparams import float_settings, with_hyperparams
from fairbound.training._problem import Problem
from fairbound.training._runner import run

_F64 = torch.float64
_Method = Algorithm[Any]


def _model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return 0.5 * (outputs - labels).square()


_BOUND = 0.05


def _updated(method: _Method, x: Tensor, state: Any, draw: Draw, k: int) -> tuple[Tensor, Any]:
    """The update of step k, with the measurements that drivers make then."""
    return (
        method.update(x, state, draw, probe=is_probe(k, 2))
        if isinstance(method, MultiplierMethod)
        else method.update(x, state, draw)
    )


def _training() -> tuple[Problem, Sampler, Tensor]:
    """Least squares on two groups whose losses may differ by at most BOUND."""
    generator = torch.Generator().manual_seed(0)
    groups = (torch.arange(60) % 3 == 0).long()
    X = torch.randn(60, 3, dtype=_F64, generator=generator)
    y = 0.3 * (
        X.sum(1) * (1 - 2.0 * groups) + 0.5 * torch.randn(60, dtype=_F64, generator=generator)
    )
    constraint = pairwise_loss_parity(2, bound=_BOUND).bind(groups)
    forward, x = make_functional(_model())
    problem = Problem(forward, _loss, constraint, Dataset(X, y, {"group": groups}))
    return problem, Sampler(Split.all_train(60), constraint.cells, BatchSpec(8, 4)), x


def check_run(method: _Method, steps: int = 25) -> None:
    """`run` equals a custom loop over the same draws, and a run of a stack equals the run alone."""
    problem, sampler, x0 = _training()
    name, value = next(iter(float_settings(method).items()), ("", 0.0))
    other = with_hyperparams(method, {name: 0.7 * value}) if name else method
    samplers = sampler.seeded(3, 4)
    stacked = run(
        problem, [method, other], samplers, torch.stack([x0, x0]), steps, compile=False
    ).result()
    expect(not stacked.skipped.any(), "`run` skips its steps: something in them is not finite")
    alone = run(problem, other, samplers[1], x0, steps, compile=False).result()
    expect(
        close(stacked.x[1], alone.x[0]),
        "a run of a stack differs from the run alone; see the check 'vmap'",
    )
    source, x = problem.source(samplers[0]), x0
    state = method.init(x, problem.m, source.first(method.evaluates)(x))
    for k in range(steps):
        d, state = _updated(
            method, x, state, source.next(method.evaluates, method.batch_size_probs), k
        )
        x = x + d
    expect(
        close(stacked.x[0], x) and close(stacked.output[0], method.output(x, state)),
        "`run` differs from a loop that calls update; the method may keep state outside of its"
        " state",
    )


class Loop:
    """A training loop with `Constrained`, and beside it the same steps by `update`."""

    def __init__(self, method: _Method) -> None:
        self.method, self.model = method, _model()
        self.problem, _, self.x = _training()
        self.fair = Constrained(self.model, pairwise_loss_parity(2, bound=_BOUND), method)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.generator = torch.Generator().manual_seed(1)
        self.state: Any = None

    def examples(self, size: int = 1) -> Tensor:
        """Fresh examples, `size` times four of every group."""
        groups = self.problem.data.groups["group"]
        members = [(groups == group).nonzero().flatten() for group in (0, 1)]
        drawn = [
            m[torch.randint(m.numel(), (4 * size,), generator=self.generator)] for m in members
        ]
        return torch.cat(drawn)

    def batch(self, examples: Tensor) -> MiniBatch:
        data = self.problem.data
        return MiniBatch(
            _loss(self.model(data.X[examples]), data.y[examples]), data.groups["group"][examples]
        )

    def sample(self, examples: Tensor, first: int = 0, every: int = 1) -> Sample:
        """The same as a function of x; `every` second example, and of every group, is a half."""
        data = self.problem.data
        groups = [
            examples[data.groups["group"][examples] == group][first::every] for group in (0, 1)
        ]

        def values(x: Tensor) -> tuple[Tensor, Tensor]:
            chosen = (examples[first::every], *groups)
            f, a, b = (
                _loss(self.problem.forward(x, data.X[rows]), data.y[rows]).mean() for rows in chosen
            )
            return f, torch.stack([a - b, b - a]) - _BOUND

        return Sample.of(values)

    def step(self) -> None:
        method, probs = self.method, self.method.batch_size_probs
        drawn: list[Tensor] = []

        def evaluate(size: int) -> MiniBatch:
            drawn.append(self.examples(size))
            return self.batch(drawn[-1])

        if self.state is None:
            first = self.examples()
            self.fair.start(self.batch(first))
            self.state = method.init(self.x, 2, self.sample(first)(self.x))
        self.optimizer.param_groups[0]["lr"] = float(method.primal_step(self.state))
        self.optimizer.zero_grad()
        self.fair.backward_closure(evaluate)
        self.optimizer.step()
        weight, samples = torch.ones((), dtype=_F64), [self.sample(examples) for examples in drawn]
        if probs is not None:
            weight = weight / probs[(len(drawn[1]) // len(drawn[0])).bit_length() - 2]
            samples += [self.sample(drawn[1], first, 2) for first in (0, 1)]
        draw = Draw.of(*samples, weight=weight)
        d, self.state = _updated(method, self.x, self.state, draw, self.fair.steps - 1)
        self.x = self.x + d

    @property
    def trained(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def check_constrained(method: _Method) -> None:
    """Check that in a loop under SGD, whose rate is primal_step, the model's parameters are the
    method's iterates."""
    if trial_step(method).several_points:
        return  # a loop refuses it
    loop = Loop(method)
    for k in range(20):
        loop.step()
        expect(
            loop.fair.skipped == 0,
            f"Constrained skipped step {k + 1}: something in it is not finite",
        )
        expect(
            close(loop.trained, loop.x),
            f"a loop with Constrained differs from update at step {k + 1}; check primal_step and"
            " evaluates",
        )
    y = method.multipliers(loop.state)
    multipliers = torch.tensor([*loop.fair.multipliers.values()], dtype=_F64)
    expect(
        close(multipliers, multipliers[:0] if y is None else y),
        "Constrained has other multipliers than update",
    )


def check_resume(method: _Method) -> None:
    """A loop that is saved and loaded halfway continues as if it had not stopped."""
    if trial_step(method).several_points:
        return
    uninterrupted, halfway = Loop(method), Loop(method)
    for k in range(8):
        uninterrupted.step()
        if k < 4:
            halfway.step()
    fair = Constrained(halfway.model, pairwise_loss_parity(2, bound=_BOUND), method)
    fair.load_state_dict(halfway.fair.state_dict())
    halfway.fair = fair
    for _ in range(4):
        halfway.step()
    expect(
        torch.equal(uninterrupted.trained, halfway.trained),
        "a loop that is saved and resumed differs from one that is not; all that the method"
        " remembers must be tensors in its state",
    )
