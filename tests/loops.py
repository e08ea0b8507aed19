"""What the tests of `Constrained` share: people, a model, limits about them, and one step of an
ordinary loop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from methods import IN_A_LOOP, bce
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from fairbound import SSLALM, Constrained, DescentAscent, MiniBatch, constraints
from fairbound.core import Algorithm, Draw, Estimate, MultiplierMethod
from fairbound.integrations.torch._steps import StepInfo

F64 = torch.float64
FIXED = {name: method for name, method in IN_A_LOOP.items() if method.batch_size_probs is None}
ONE_GRADIENT = {
    name: method for name, method in FIXED.items() if isinstance(method, MultiplierMethod)
}
ONE_DRAW = {name: method for name, method in ONE_GRADIENT.items() if method.draws == 1}
GHOSTS = {name: method for name, method in IN_A_LOOP.items() if method.batch_size_probs is not None}
LR = 0.05


@dataclass(frozen=True, kw_only=True)
class WholeVectors(Algorithm[Any]):
    """SSL-ALM, or another multiplier method, as a general one, which a loop runs on flat vectors."""

    inside: MultiplierMethod[Any] = SSLALM(samples=1)  # noqa: RUF009  (frozen)

    def init(
        self, x: Tensor, m: int, first: Estimate | None = None, equality: Tensor | None = None
    ) -> Any:
        return self.inside.init(x, m, first, equality)

    def update(self, x: Tensor, state: Any, draw: Draw) -> tuple[Tensor, Any]:
        return self.inside.update(x, state, draw)

    def primal_step(self, state: Any) -> float | Tensor:
        return self.inside.primal_step(state)

    def multipliers(self, state: Any) -> Tensor | None:
        return self.inside.multipliers(state)


# of the two kinds of methods, the first without and with smoothing
BOTH: dict[str, Algorithm[Any]] = {
    "multipliers": DescentAscent(),
    "multipliers, smoothing": SSLALM(samples=1),
    "flat": WholeVectors(),
}
MULTIPLIERS = {
    name: method for name, method in BOTH.items() if isinstance(method, MultiplierMethod)
}


class People(NamedTuple):
    """Rows of a table: inputs, a label, and two columns of groups."""

    X: Tensor  # (rows, 4)
    y: Tensor  # (rows,) 0 or 1
    race: Tensor  # (rows,) 0, 1 or 2
    sex: Tensor  # (rows,) 0 or 1

    def of(self, race: int) -> Tensor:
        """The rows of one race."""
        return (self.race == race).nonzero().flatten()


def people(rows: int = 120, seed: int = 0, dtype: torch.dtype = F64) -> People:
    """Three races of unequal size, whose labels are unequally hard to tell."""
    generator = torch.Generator().manual_seed(seed)
    race = torch.multinomial(
        torch.tensor([0.5, 0.3, 0.2]), rows, replacement=True, generator=generator
    )
    sex = torch.randint(2, (rows,), generator=generator)
    X = torch.randn(rows, 4, dtype=F64, generator=generator) + 0.5 * race[:, None]
    noise = torch.randn(rows, dtype=F64, generator=generator)
    y = X.sum(1) + (1 + race) * noise > race + 0.5 * sex
    return People(X.to(dtype), y.to(dtype), race, sex)


def seeded(build: Any, seed: int = 0) -> Any:
    """A freshly built module; the global random state is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def network(seed: int = 0, dtype: torch.dtype = F64) -> nn.Module:
    model: nn.Module = seeded(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)), seed
    )
    return model.to(dtype)


class Partly(nn.Module):
    """Of its three layers the model uses two."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.unused = nn.Linear(4, 6), nn.Linear(6, 1), nn.Linear(3, 3)

    def forward(self, X: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.body(X)))
        return out


def three_constraints() -> dict[str, Any]:
    """Two columns of groups, two kinds of value, and a function of the parameters."""
    return {
        "race": constraints.loss_parity(3, bound=0.02, by="race"),
        "sex": constraints.demographic_parity(["f", "m"], bound=0.03, by="sex"),
        "norm": constraints.weight_norm(2.0),
    }


def rows_of(model: nn.Module, who: People, numbers: Tensor) -> MiniBatch:
    """Some people after the model's forward pass."""
    outputs = model(who.X[numbers]).squeeze(-1)
    labels = who.y[numbers]
    return MiniBatch(
        bce(outputs, labels), {"race": who.race[numbers], "sex": who.sex[numbers]}, labels, outputs
    )


def step(
    fair: Constrained,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    who: People,
    draws: Tensor,
) -> StepInfo:
    """One step of a loop on a set of rows for each draw, (draws, B): the first is passed
    backward."""
    optimizer.zero_grad()
    with torch.no_grad():
        further = [rows_of(model, who, numbers) for numbers in draws[1:]]
    seen = fair.backward(rows_of(model, who, draws[0]), extra_batches=further)
    optimizer.step()
    return seen


def numbers_for(
    method: Algorithm[Any], steps: int, who: People, size: int = 24, seed: int = 0
) -> Tensor:
    """Row numbers for every step and draw: (steps, draws, size)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(who.X.shape[0], (steps, method.draws, size), generator=generator)


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a fresh process that imports the tests."""
    here = Path(__file__).parent
    paths = [
        str(here),
        str(here / "integrations" / "torch"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | more


def flat(model: nn.Module) -> Tensor:
    return parameters_to_vector([p.detach() for p in model.parameters()])


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in nested mappings and sequences."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [leaf for key in sorted(tree) for leaf in tensors(tree[key])]
    return (
        [leaf for part in tree for leaf in tensors(part)] if isinstance(tree, list | tuple) else []
    )


def knowledge(fair: Constrained) -> list[Tensor]:
    """Everything that the method knows: its state, smoothed parameters and the last value of every
    constraint."""
    kept = fair.state_dict()
    parts = [kept["state"], kept.get("smoothed"), kept["constraints"]]
    return [torch.tensor(kept["steps"]), *tensors(parts)]


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Bit for bit; two NaNs are the same."""
    return len(left) == len(right) and all(
        a.dtype == b.dtype and torch.equal(a.nan_to_num(nan=-77.0), b.nan_to_num(nan=-77.0))
        for a, b in zip(left, right, strict=True)
    )
