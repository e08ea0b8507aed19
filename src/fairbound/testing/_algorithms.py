"""`check_algorithm(method)`: does a method keep the contract, in every driver, and solve what it
says?

The checks are those that every method of `ALGORITHMS` goes through, in some seconds on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fairbound.core import Algorithm, Draw, Estimate, MultiplierMethod, Sample, Sizes, violations
from fairbound.testing._checks import FailedCheck, close, expect, run_checks
from fairbound.testing._drivers import check_constrained, check_resume, check_run
from fairbound.training._contract import ContractError, check_contract
from fairbound.training._hyperparams import float_settings, with_hyperparams

_F64 = torch.float64
_Method = Algorithm[Any]
# of a run that is to reach a known solution, which it may have after FEWEST_STEPS
MOST_STEPS = 16_000
FEWEST_STEPS = 250
NEAR = 0.05  # of a known solution, relative to its distance from the unconstrained one
# by which one hyper-parameter at a time is changed to see what primal_step follows; a share stays
# one
_SCALE = 0.8


def check_algorithm(method: _Method) -> str:
    """Certify a method, built with settings that suit a problem whose gradients and constraints are
    of size 1.

    Returns one line that lists the checks. Raises an AssertionError that names the first that
    fails, and a remedy.

    >>> from fairbound import DescentAscent
    >>> check_algorithm(DescentAscent(tau=0.1, eta=0.1))[:66]
    'DescentAscent passes 11 checks: declarations, shapes, purity, vmap'
    """
    if not isinstance(method, Algorithm):
        check_contract(method, "check_algorithm")  # says what it is instead
    name = type(method).__name__
    checks = {
        "declarations": _declarations,
        "shapes": _shapes,
        "purity": _purity,
        "vmap": _vmap,
        "primal_step": _primal_step,
        "rows": _rows,
        "run": check_run,
        "Constrained": check_constrained,
        "resume": check_resume,
        "solves": _solves,
        "equality": _equality,
    }
    run_checks(name, checks, method)
    declared = "None" if method.solves is None else f'"{method.solves}"'
    return f"{name} passes {len(checks)} checks: {', '.join(checks)} ({declared})."


# A quadratic with linear constraints, whose solutions are known -----------------------------------


class QP(NamedTuple):
    """f = 1/2 |x - a|^2, c = A x - b <= 0, or = 0."""

    a: Tensor  # (n,) the minimizer of f
    A: Tensor  # (m, n)
    b: Tensor  # (m,)
    equality: Tensor | None = None  # (m,) the constraints that are c = 0

    def sample(self, evaluates: str = "fc", scale: float = 1.0) -> Sample:
        """The problem as a sample, `scale` times f; what is not evaluated is NaN."""
        f_known, c_known = ((1.0 if part in evaluates else torch.nan) for part in "fc")

        def at(x: Tensor) -> Estimate:
            gap = x - self.a.to(x.dtype)
            A, b = self.A.to(x.dtype), self.b.to(x.dtype)

            def vjp(w: Tensor) -> Tensor:
                known = torch.where((w[:1] != 0).any(), f_known, 1.0) * torch.where(
                    (w[1:] != 0).any(), c_known, 1.0
                )
                return (w[0] * scale * gap + w[1:] @ A) * known

            return Estimate(f_known * scale * 0.5 * gap.square().sum(), c_known * (A @ x - b), vjp)

        return Sample(at)

    def draw(self, method: _Method, scale: float = 1.0) -> Draw:
        samples = [self.sample(evaluates, scale) for evaluates in method.evaluates]
        return Draw.of(
            *samples, weight=torch.tensor(2.0, dtype=_F64), uniform=torch.tensor(0.3, dtype=_F64)
        )


SOLUTION = torch.tensor([0.5, -1.0, 0.25, 0.8], dtype=_F64)
MULTIPLIERS = torch.tensor([1.0, 0.5, 0.0], dtype=_F64)
_ROWS = torch.tensor([[0.6, 0.8, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.8, 0.0, 0.0, 0.6]], dtype=_F64)
BINDING = QP(
    SOLUTION + _ROWS.T @ MULTIPLIERS,
    _ROWS,
    _ROWS @ SOLUTION + torch.tensor([0.0, 0.0, 1.0], dtype=_F64),
)
# no constraint is active: the minimizer of f solves it
INSIDE = BINDING._replace(b=_ROWS @ BINDING.a + 1.0)
# The first constraint is an equality, met from below: its multiplier is -1.
MULTIPLIERS_EQUAL = torch.tensor([-1.0, 0.5, 0.0], dtype=_F64)
EQUAL = BINDING._replace(
    a=SOLUTION + _ROWS.T @ MULTIPLIERS_EQUAL, equality=torch.tensor([True, False, False])
)
_START = torch.zeros(4, dtype=_F64)


def _begin(method: _Method, qp: QP, x: Tensor) -> Any:
    return method.init(x, len(qp.b), qp.sample()(x), qp.equality)


def _path(method: _Method, qp: QP, x: Tensor, steps: int) -> Iterator[tuple[Tensor, Any]]:
    """Points and states after every step of a loop."""
    state, draw = _begin(method, qp, x), qp.draw(method)
    for _ in range(steps):
        d, state = method.update(x, state, draw)
        x = x + d
        yield x, state


# The contract, step by step -----------------------------------------------------------------------


def _declarations(method: _Method) -> None:
    """What is declared, the arguments of its functions, and what a first step returns."""
    try:
        check_contract(method, "check_algorithm")
    except ContractError as error:
        raise FailedCheck(str(error)) from None


def _shapes(method: _Method) -> None:
    """Shapes and precision are those of the point, and nothing undeclared is read."""
    for dtype in (torch.float32, _F64):
        x = _START.to(dtype)
        state = _begin(method, BINDING, x)
        for _ in range(3):
            d, after = method.update(x, state, BINDING.draw(method))
            expect(
                d.shape == x.shape and d.dtype == dtype,
                f"the step has shape {tuple(d.shape)} and {d.dtype}, the point {tuple(x.shape)} and"
                f" {dtype}; make new tensors like x, x.new_zeros(...)",
            )
            forms = [
                [(tuple(leaf.shape), leaf.dtype) for leaf in tree_leaves(s)] for s in (state, after)
            ]
            expect(
                forms[0] == forms[1],
                f"update changes the form of the state, from {forms[0]} to {forms[1]}",
            )
            finite = all(bool(leaf.isfinite().all()) for leaf in (d, *tree_leaves(after)))
            expect(
                finite,
                f"the step is not finite; it may read what evaluates={method.evaluates} does not"
                " declare",
            )
            y, output = method.multipliers(after), method.output(x, after)
            expect(
                y is None or y.shape == (3,),
                "multipliers(state) must have one entry for each constraint",
            )
            expect(
                output.shape == x.shape,
                f"output has shape {tuple(output.shape)}, the point {tuple(x.shape)}",
            )
            expect(
                all(v.shape == () for v in method.monitor(after).values()),
                "monitor(state) must give scalars",
            )
            x, state = x + d, after


def _rows(method: _Method) -> None:
    """A multiplier method that declares `row_wise` treats each constraint as if it were alone."""
    if not isinstance(method, MultiplierMethod) or not method.row_wise:
        return
    m, generator = 5, torch.Generator().manual_seed(0)
    start = torch.randn(m, dtype=_F64, generator=generator)
    equality = None if _refuses_equality(method) else torch.arange(m) == 1
    state = method.start(_START.new_zeros(()), m, equality, start)
    alone = [
        method.start(
            _START.new_zeros(()),
            1,
            None if equality is None else equality[i : i + 1],
            start[i : i + 1],
        )
        for i in range(m)
    ]
    # small errors: sizes at which rows do not yet pull together
    far = torch.full((m,), 10.0, dtype=_F64)
    sizes, size = ({"sizes": Sizes(s, s)} if method.measures else {} for s in (far, far[:1]))
    for _ in range(8):
        values = torch.randn(method.draws, m, dtype=_F64, generator=generator)
        w, state = method.step(state, *values, **sizes)
        for i in range(m):
            w_alone, alone[i] = method.step(alone[i], *values[:, i : i + 1], **size)
            pairs = [(w, w_alone), *zip(state, alone[i], strict=True)]
            same = all(a is None or a.ndim == 0 or close(a[i : i + 1], b) for a, b in pairs)
            expect(
                same, "a constraint is treated differently beside others than alone; omit row_wise"
            )


def _refuses_equality(method: MultiplierMethod[Any]) -> bool:
    try:
        method.start(_START, 1, torch.tensor([True]))
    except ValueError:
        return True
    return False


def _purity(method: _Method) -> None:
    """Two interleaved loops equal each loop alone, and no input is changed."""
    remedy = (
        "update may read its arguments and the settings only; put what it remembers into the state"
    )
    x, state, draw = _START, _begin(method, BINDING, _START), BINDING.draw(method)
    before = [leaf.clone() for leaf in tree_leaves((x, state))]
    twice = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            twice.append(method.update(x, state, draw))
    expect(_same(before, (x, state)), "update changes x or the state in place")
    expect(_same(*twice), f"the same arguments give two different steps; {remedy}")
    starts = (_START, BINDING.a + 1)
    alone = [list(_path(method, BINDING, start, 6)) for start in starts]
    together = zip(*(_path(method, BINDING, start, 6) for start in starts), strict=True)
    for k, both in enumerate(together):
        expect(
            all(_same(alone[i][k], both[i]) for i in (0, 1)),
            f"two loops disturb each other; {remedy}",
        )


def _same(a: Any, b: Any) -> bool:
    return all(torch.equal(u, v) for u, v in zip(tree_leaves(a), tree_leaves(b), strict=True))


def _vmap(method: _Method) -> None:
    """Check vmap over points and the first of the hyper-parameters."""
    points = _START + torch.linspace(-1, 1, 12, dtype=_F64).reshape(3, 4)
    name, value = next(iter(float_settings(method).items()), ("", 0.0))
    values = value * torch.linspace(0.5, 1.5, 3, dtype=_F64)

    def step(point: Tensor, number: Any) -> tuple[Tensor, Any]:
        changed = with_hyperparams(method, {name: number}) if name else method
        return changed.update(point, _begin(changed, BINDING, point), BINDING.draw(method))

    stacked = tree_leaves(torch.func.vmap(step)(points, values))
    for i in range(3):
        single = tree_leaves(step(points[i], float(values[i])))
        expect(
            all(
                close(a[i] if a.ndim > b.ndim else a, b)
                for a, b in zip(stacked, single, strict=True)
            ),
            f"stacked runs differ from single ones over x{' and ' + name if name else ''}; let"
            " branches be data (torch.where, weights of 0 and 1)",
        )


# What a user's learning rate replaces -------------------------------------------------------------


def _first_step(method: _Method, scale: float = 1.0) -> tuple[Tensor, float]:
    """d and primal_step where no constraint is active."""
    state = _begin(method, INSIDE, _START)
    step = float(method.primal_step(state))
    return method.update(_START, state, INSIDE.draw(method, scale))[0], step


def _primal_step(method: _Method) -> None:
    """`.grad` receives d / -primal_step, which must have the size of a gradient whatever the step
    is."""
    d, step = _first_step(method)
    gradient = _START - INSIDE.a
    expect(
        step > 0 and float(d @ gradient) < 0,
        f"at the start, where no constraint is active, primal_step is {step:.3g} and the step's"
        f" slope on f {float(d @ gradient):.3g}: it does not descend; d is to be added to x",
    )
    # in f: an adaptive step (Polyak's) is not
    linear = close(_first_step(method, 2.0)[0], 2 * d, 1e-6)
    sizes = {float(d.norm()) / step}
    for name, value in float_settings(method).items():
        other, other_step = _first_step(with_hyperparams(method, {name: value * _SCALE}))
        scaled, followed = (
            close(other, _SCALE * d, 1e-6),
            abs(other_step - _SCALE * step) <= 1e-6 * step,
        )
        expect(
            followed or not scaled or not linear,
            f"d is proportional to {name} and primal_step is not, so that a loop would multiply"
            f" `.grad` by {name}; return self.{name} in primal_step",
        )
        sizes.add(float(other.norm()) / other_step if other_step else 0.0)
    ratio = max(sizes) / float(gradient.norm())
    # else it is a setting that makes the direction longer
    constant = max(sizes) - min(sizes) <= 1e-6 * max(sizes)
    parallel = close(d / d.norm(), -gradient / gradient.norm(), 1e-6)
    expect(
        not (linear and constant and parallel) or abs(ratio - 1) <= 1e-6,
        f"d is -{ratio:.3g} times primal_step times the gradient, whatever the settings, so that a"
        f" loop would multiply `.grad` by {ratio:.3g}; let primal_step be the whole factor",
    )


# What it solves -----------------------------------------------------------------------------------


def _reaches(
    method: _Method,
    qp: QP,
    x: Tensor,
    solved: Callable[[Tensor, Tensor | None], bool],
    failure: str,
) -> None:
    """Whether x and multipliers, averaged over the second half of 250, 500, ... steps, are the
    solution."""
    total, first_half, due = x.new_zeros(()), x.new_zeros(()), FEWEST_STEPS
    for k, (point, state) in enumerate(_path(method, qp, x, MOST_STEPS), 1):
        y = method.multipliers(state)
        total = total + (point if y is None else torch.cat([point, y]))
        if 2 * k == FEWEST_STEPS:
            first_half = total
        if k < due:
            continue
        mean = 2 * (total - first_half) / k
        mean_x, mean_y = mean[: len(x)], None if y is None else mean[len(x) :]
        if solved(mean_x, mean_y):
            return
        if not mean.isfinite().all():
            break
        first_half, due = total, 2 * due
    end = f"x = {[round(v, 3) for v in mean_x.tolist()]}"
    end += "" if mean_y is None else f", multipliers {[round(v, 3) for v in mean_y.tolist()]}"
    raise FailedCheck(
        f"after {k} steps {failure}; it is at {end}. Look at the signs of d and c, and at the steps"
    )


def _solves(method: _Method) -> None:
    """min 1/2 |x - a|^2 s.t. A x <= b: with constraints that do not bind, and with constraints that
    do."""
    a, solution = BINDING.a, SOLUTION
    near = NEAR * float((a - solution).norm())
    for start, failure in (
        (_START, "it does not reach the minimizer of f"),
        (a, "it has left the minimizer of f"),
    ):
        text = (
            f"{failure}, {[round(v, 3) for v in a.tolist()]}, which solves a problem whose"
            " constraints do not bind"
        )
        _reaches(method, INSIDE, start, lambda x, y: bool((x - a).norm() < near), text)
    if method.solves == "kkt":
        text = (
            f"it does not reach the KKT point x = {[round(v, 3) for v in solution.tolist()]},"
            " multipliers 1, 0.5, 0"
        )
        _reaches(
            method,
            BINDING,
            _START,
            lambda x, y: bool((x - solution).norm() < near) and _multiplied(y),
            text,
        )
    elif method.solves == "penalty":
        text = (
            "it minimizes no penalized objective: f's gradient must be balanced by violated"
            " constraints"
        )
        _reaches(method, BINDING, _START, lambda x, y: _penalized(BINDING, x), text)


def _equality(method: _Method) -> None:
    """The same with a constraint c = 0 that is met from below, by every method that does not refuse
    it in `init`."""
    if method.solves is None:
        return
    try:
        _begin(method, EQUAL, _START)
    except ValueError:
        return
    near = NEAR * float((EQUAL.a - SOLUTION).norm())
    remedy = "; use `equality` of init, or call core.refuse_equality there"
    if method.solves == "kkt":
        text = f"a constraint c = 0 is not met from c < 0, where its multiplier is negative{remedy}"
        expected = MULTIPLIERS_EQUAL
        _reaches(
            method,
            EQUAL,
            _START,
            lambda x, y: bool((x - SOLUTION).norm() < near) and _multiplied(y, expected),
            text,
        )
    else:
        text = f"it does not penalize c < 0 of a constraint c = 0{remedy}"
        _reaches(method, EQUAL, _START, lambda x, y: _penalized(EQUAL, x), text)


def _multiplied(y: Tensor | None, expected: Tensor = MULTIPLIERS) -> bool:
    return y is None or bool((y - expected).abs().max() < 2 * NEAR)


def _penalized(qp: QP, x: Tensor) -> bool:
    """grad f + A'w = 0 with weights w of violated constraints alone, and less violation than
    without a penalty.

    The weight of a violated c <= 0 is >= 0; that of c = 0 has either sign.
    """
    c, worst = (violations(_ROWS @ point - qp.b, qp.equality) for point in (x, qp.a))
    w = torch.linalg.lstsq(_ROWS.T, (qp.a - x)[:, None]).solution[:, 0]
    size = violations(w, qp.equality)
    balanced = (
        (qp.a - x - _ROWS.T @ w).norm() < NEAR
        and size.min() > -NEAR
        and w[c < -NEAR].abs().sum() < NEAR
    )
    return bool(balanced and size.max() > 0.01 and c.max() < worst.max() - 0.01)
