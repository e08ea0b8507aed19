"""Problems to compare methods on: each is a TOML file (a table of examples) or a Python file
(anything else).

    load("grid-world")          a problem of the collection (`names()`)
    load("my-problem.toml")     a table of the user's own: `table`
    load("my_problem.py")       a Python file whose `PROBLEMS` are `BenchmarkProblem`s

Every problem is a finite sum: the mean over its training examples is what is minimized and
constrained, and what is evaluated. Where nature has no examples (a Hock-Schittkowski problem with
noise), they are draws of the noise, centered so that their mean is the exact problem.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fairbound._utils.modules import load_module
from fairbound.benchmark._user_files import nearest
from fairbound.core import violations
from fairbound.data._dataset import Dataset, Split
from fairbound.data._samplers import BatchSpec, Sampler
from fairbound.training._functional import ModuleForward
from fairbound.training._problem import Problem

FOLDER, _PACKAGE = Path(__file__).parent / "_collection", "fairbound.benchmark.problems._collection"
PRIMALS = FOLDER / "primals.json"  # made by tools/make_primals.py


class Solution(NamedTuple):
    """The exact answer."""

    x: Tensor  # (n,)
    y: Tensor | None = None  # (m,)


class Optimum(NamedTuple):
    """The exact value of a problem that more than one point solves, or none at a finite
    distance."""

    loss: float
    residual: float  # of the certificate that `how` names
    how: str
    y: Tensor | None = None  # (m,)


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem, ready to run."""

    problem: Problem
    starts: Callable[[Sequence[int]], Tensor]  # seeds -> (R, n), the same for every method
    splits: tuple[Split, ...]  # of the problem's examples; run i reads splits[i % len(splits)]
    batch: BatchSpec
    # of a table: another notion, bound, regularizer
    variant: Callable[[str, float, float], Problem] | None = None
    # for a method that needs such a start
    feasible_starts: Callable[[Sequence[int]], Tensor] | None = None
    solution: Solution | None = None
    source: str = "generated"  # of the data
    data_words: str = ""  # the same with what was left out of them
    unscaled: Dataset | None = None  # of a table: as they were read, for their checksum
    # that the constraints are multiplied with: violations are measured without it
    scale: float = 1.0

    @property
    def examples(self) -> int:
        """Training examples: an epoch."""
        return len(self.splits[0].train)

    @property
    def movable(self) -> bool:
        """Whether another device can compute it: a module on a table. Other problems hold tensors
        in functions."""
        return isinstance(self.problem.forward, ModuleForward)

    def to(self, device: str) -> Instance:
        """Instance on another device."""
        forward, starts, feasible, variant = (
            self.problem.forward,
            self.starts,
            self.feasible_starts,
            self.variant,
        )
        assert isinstance(forward, ModuleForward)
        module = ModuleForward(deepcopy(forward.module).to(device))
        data = self.problem.data.to(device)

        def moved(problem: Problem) -> Problem:
            return replace(problem, forward=module, data=data)

        return replace(
            self,
            problem=moved(self.problem),
            variant=None if variant is None else cache(lambda *which: moved(variant(*which))),
            starts=lambda seeds: starts(seeds).to(device),
            feasible_starts=None if feasible is None else lambda seeds: feasible(seeds).to(device),
        )

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the groups of a table."""
        return tuple(next(iter(self.problem.data.levels.values()), ()))

    def sampler(
        self,
        run: int,
        seed: int,
        *,
        variant: Problem | None = None,
        batch: int | None = None,
        pools: Sequence[str] = (),
    ) -> Sampler:
        """Sampler of one run; `batch` in the place of the problem's sizes, `pools` of the examples
        that each draw reads."""
        spec = self.batch if batch is None else BatchSpec(objective=batch, cell=batch)
        specs = [replace(spec, pool=pool) for pool in pools] or spec
        cells = (variant or self.problem).constraints.cells
        return Sampler(self.splits[run % len(self.splits)], cells, specs, seed=seed)

    def violations(self, c: Tensor) -> Tensor:
        """(..., m) by how much each constraint is violated, at least 0."""
        return violations(c, self.problem.constraints.equality).clamp(min=0.0)

    def violation(self, c: Tensor) -> Tensor:
        """(..., m) -> (...,) the largest of them."""
        return self.violations(c).amax(-1)


@dataclass(frozen=True, eq=False, kw_only=True)
class BenchmarkProblem:
    """A problem and its card."""

    name: str
    title: str  # one line, what is minimized under which constraints
    # fairness; known answers; many constraints; control, physics, others; or one of the user's own
    family: str
    build: Callable[..., Instance]  # without arguments; of a table, the number of splits
    noise: str  # where the randomness of a mini-batch comes from
    kinds: str  # of constraints: "<= linear", "= nonlinear", ...
    convex: bool = False
    # the budget: of a method that draws one mini-batch a step; others have as many examples
    steps: int = 2000
    # of a violation, as the bound; None: the violation of plain training
    scale: float | None = None
    optimum: Callable[[], Optimum] | None = None  # in the place of `Instance.solution`
    origin: str = ""  # where the problem comes from: paper, section
    license: str = "generated here, Apache-2.0"
    on_board: bool = True
    changed: bool = False  # whether a board also runs it with single changes: `changes`
    # whether a board also tests its bound on held-out data, on several splits
    held_out: bool = False
    # of multiplier methods: { name = "Adam", lr = 0.01 }
    primal: Mapping[str, Any] = field(default_factory=dict)
    primal_how: str = ""  # how it was chosen
    file: Path | None = None  # of Python
    spec: Any = None  # of a table: its `TableSpec`


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the loss is measured against, frozen with the version; `tools/make_references.py` makes
    it."""

    loss: float  # of the exact solution, or the best feasible one of long runs
    start: float  # the loss at the start, the median over seeds
    # of the constraints: the bound, or where that is 0 the violation of plain training
    scale: float
    residual: float | None  # the largest KKT residual of the reference point
    exact: bool  # whether it is a solution; else the best that was found
    how: str
    x: tuple[float, ...] | None = None  # the point itself, of a small problem
    y: tuple[float, ...] | None = None


# Loading ------------------------------------------------------------------------------------------


def problem_names() -> tuple[str, ...]:
    """All problems of the collection.

    >>> "hs71" in problem_names() and "income-ok-race" in problem_names()
    True
    """
    return tuple(sorted(_collection()))


def load_problem(name_or_path: str | Path | Any) -> BenchmarkProblem:
    """A problem of the collection by its name, one of the user's own by its file, or that of a
    `TableSpec`."""
    if not isinstance(name_or_path, str | Path):
        from fairbound.benchmark.problems.table import table_problem

        return table_problem(name_or_path)
    path = Path(name_or_path)
    if path.suffix in (".toml", ".py"):
        problems = _read(path)
        if len(problems) != 1:
            raise ValueError(
                f"{path} has {len(problems)} problems, and one is wanted; give each a file"
            )
        return problems[0]
    if str(name_or_path) not in _collection():
        raise ValueError(
            f"there is no problem {str(name_or_path)!r}; the nearest is"
            f" {nearest(name_or_path, problem_names())!r} (there are {', '.join(problem_names())});"
            " a file of your own ends in .toml or .py"
        )
    return _collection()[str(name_or_path)]


@cache
def _collection() -> dict[str, BenchmarkProblem]:
    found: dict[str, BenchmarkProblem] = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in (".toml", ".py") and not path.name.startswith("_"):
            for problem in _read(path):
                if problem.name in found:
                    raise ValueError(f"two files of {FOLDER} have a problem {problem.name!r}")
                found[problem.name] = problem
    for name, chosen in json.loads(PRIMALS.read_text(encoding="utf-8")).items():
        primal = {"name": "Adam", "lr": chosen["lr"]}
        found[name] = replace(found[name], primal=primal, primal_how=chosen["how"])
    return found


def _read(path: Path) -> tuple[BenchmarkProblem, ...]:
    if path.suffix == ".toml":
        from fairbound.benchmark.problems.table import read_spec, table_problem

        return (table_problem(read_spec(path)),)
    installed = path.parent == FOLDER
    module = (
        import_module(f"{_PACKAGE}.{path.stem}")
        if installed
        else load_module(path, "a problem is a .py file")
    )
    problems = getattr(module, "PROBLEMS", None)
    if not isinstance(problems, tuple) or not all(
        isinstance(one, BenchmarkProblem) for one in problems
    ):
        raise ValueError(f"{path} must define PROBLEMS, a tuple of BenchmarkProblem")
    return tuple(replace(one, file=path) for one in problems)


def reference(name: str, source: str) -> Reference | None:
    """Reference of a problem of the collection with data from that source; None where it has none,
    as one of the user's own."""
    path = FOLDER / "references" / f"{name}.json"
    if not path.exists():
        return None
    entry: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")).get(source)
    return (
        None if entry is None else Reference(**{key: _tuple(value) for key, value in entry.items()})
    )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
