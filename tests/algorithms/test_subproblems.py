"""The Ghost subproblems against Clarabel and HiGHS, by certificate, and on degenerate instances."""

from collections.abc import Callable

import clarabel
import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from transcription import by_clarabel

from fairbound.algorithms._subproblems import Direction, ghost_direction
from fairbound.algorithms._subproblems.nnqp import nnqp

F64 = torch.float64


def instance(
    seed: int, m: int, n: int, lead: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """g, c, J with every constraint violated, rows of about unit length."""
    draw = torch.Generator().manual_seed(seed)
    g = torch.randn(*lead, n, generator=draw, dtype=F64)
    c = torch.rand(*lead, m, generator=draw, dtype=F64) + 0.1
    J = torch.randn(*lead, m, n, generator=draw, dtype=F64) / n**0.5
    return g, c, J


def hard_rho(c: Tensor, J: Tensor, part: float = 0.5) -> float:
    """A box so small that the largest c cannot be repaired: t > 0."""
    return part * float((c.amax(-1) / J.abs().sum(-1).amax(-1)).min())


def attainable(c: Tensor, J: Tensor, rho: float) -> tuple[Tensor, Tensor]:
    """t, the violation that the box of rho leaves, and its gap."""
    out = ghost_direction(
        torch.zeros_like(J[..., 0, :]), c, J, tau=1.0, beta=10 * rho, rho=rho, lam=0.5
    )
    return 2 * out.kappa - c.amax(-1).clamp_min(0), out.kappa_gap


def sizes(g: Tensor, c: Tensor, J: Tensor, d: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """What violations and objective values are measured against."""
    rows = c.abs().amax(-1) + torch.linalg.vector_norm(J, dim=-1).amax(
        -1
    ) * torch.linalg.vector_norm(d, dim=-1)
    return rows.clamp_min(1e-300), ((g * d).abs().sum(-1) + tau / 2 * d.square().sum(-1)).clamp_min(
        1e-300
    )


def assert_optimal(
    out: Direction, g: Tensor, c: Tensor, J: Tensor, tau: float, beta: float, tol: float
) -> None:
    """KKT conditions, recomputed here from the equations rather than read from the residuals
    alone."""
    rows, values = sizes(g, c, J, out.d, tau)
    r = c + (J @ out.d.unsqueeze(-1)).squeeze(-1) - out.kappa.unsqueeze(-1)
    y, d = out.multipliers, out.d
    v = g + (y.unsqueeze(-2) @ J).squeeze(-2)
    assert (y >= 0).all()
    assert (d.abs() <= beta * (1 + 1e-15)).all()
    assert (r.amax(-1) <= tol * rows).all()
    assert ((y * r).sum(-1).abs() <= tol * (values + (y.sum(-1) * rows))).all()
    assert torch.allclose(d, (-v / tau).clamp(-beta, beta), rtol=1e-12, atol=1e-12 * beta)
    assert torch.allclose(
        out.violation, r.amax(-1).clamp_min(0), rtol=0, atol=float(1e-13 * rows.max())
    )
    assert (out.gap.abs() <= tol * (values + (y.sum(-1) * rows))).all()


def clarabel_value(g: Tensor, h: Tensor, J: Tensor, tau: float, beta: float) -> float:
    n, box = len(g), sparse.eye(len(g))
    A, b = (
        sparse.vstack([sparse.csc_matrix(J.numpy()), box, -box]),
        np.r_[h.numpy(), np.full(2 * n, beta)],
    )
    d = by_clarabel(tau * box, g.numpy(), A, b, [clarabel.NonnegativeConeT(len(b))])
    return float(g.numpy() @ d + tau / 2 * d @ d)


def highs_value(c: Tensor, J: Tensor, rho: float) -> float:
    m, n = J.shape
    # Variables d/rho and t: HiGHS drops matrix entries below 1e-9, so they are kept of order one.
    A = np.hstack([J.numpy() * rho, -np.ones((m, 1))])
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    cost, bounds = np.r_[np.zeros(n), 1.0], [(-1, 1)] * n + [(0, None)]
    return float(
        linprog(cost, A_ub=A, b_ub=-c.numpy(), bounds=bounds, method="highs", options=tight).fun
    )


@pytest.mark.parametrize("m", [2, 5, 10, 50])
@pytest.mark.parametrize("beta", [20.0, 0.8])
@pytest.mark.parametrize("hard", [False, True])
def test_against_clarabel_and_highs(m: int, beta: float, hard: bool) -> None:
    g, c, J = instance(m, m, 2753)
    rho = hard_rho(c, J) if hard else 0.7
    tau = 1.5
    out = ghost_direction(g, c, J, tau=tau, beta=beta, rho=rho, lam=0.5)
    assert bool((out.d.abs() == beta).any()) == (beta < 1)  # the case is the one it says it is
    assert_optimal(out, g, c, J, tau, beta, 1e-12)
    value = float(g @ out.d + tau / 2 * out.d @ out.d)
    assert value == pytest.approx(clarabel_value(g, out.kappa - c, J, tau, beta), rel=1e-8)
    t = float(attainable(c, J, rho)[0])
    assert (t > 0.1) == hard
    assert t == pytest.approx(highs_value(c, J, rho), rel=1e-8, abs=1e-9)
    assert float(out.kappa) == pytest.approx(0.5 * float(c.max()) + 0.5 * t, rel=1e-12)
    assert 0 <= float(out.kappa_gap) <= 1e-10


@pytest.mark.parametrize("m", [2, 10])
@pytest.mark.parametrize(("beta", "hard"), [(20.0, True), (1.2, False)])
def test_certificates_at_100_000_parameters(m: int, beta: float, hard: bool) -> None:
    g, c, J = instance(7 + m, m, 100_000)
    rho = hard_rho(c, J, 0.8) if hard else 0.1
    out = ghost_direction(g, c, J, tau=1.0, beta=beta, rho=rho, lam=0.5)
    assert bool((out.d.abs() == beta).any()) == (beta < 2)
    assert_optimal(out, g, c, J, 1.0, beta, 1e-12)
    assert float(out.violation) <= 1e-10
    assert abs(float(out.gap)) <= 1e-10
    assert abs(float(out.kappa_gap)) <= 1e-10
    assert (float(out.kappa) > 0.5 * float(c.max()) + 0.005) == hard


def pairs(J: Tensor, c: Tensor, lower: float = 0.0, upper: float = 0.0) -> tuple[Tensor, Tensor]:
    """J and c of bands from both sides, of width zero unless they are moved."""
    half = len(c) // 2
    return torch.cat([c[:half] - lower, -c[:half] + upper]), torch.cat([J[:half], -J[:half]])


def contradiction(g: Tensor, c: Tensor, J: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return g, torch.cat([torch.ones(2, dtype=F64), c[2:]]), torch.cat([J[:1], -J[:1], J[2:]])


DEGENERATE: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]] = {
    "plus minus rows": lambda g, c, J: (g, *pairs(J, c, 0.3, 0.2)),
    "equality": lambda g, c, J: (g, *pairs(J, c)),
    "rank deficient": lambda g, c, J: (g, c, J[:, : len(c) // 2] @ J[: len(c) // 2]),
    "duplicate rows": lambda g, c, J: (g, c[:1].repeat(len(c)), J[:1].repeat(len(c), 1)),
    "zero row": lambda g, c, J: (g, c, torch.cat([0 * J[:1], J[1:]])),
    "all zero": lambda g, c, J: (g, c, 0 * J),
    "feasible": lambda g, c, J: (g, -c, J),
    "huge c": lambda g, c, J: (g, 1e6 * c, J),
    "small J": lambda g, c, J: (g, c, 1e-8 * J),
    "large J": lambda g, c, J: (g, c, 1e4 * J),
    "row scales": lambda g, c, J: (
        g,
        c,
        J * torch.logspace(-3, 3, len(c), dtype=F64).unsqueeze(-1),
    ),
    "contradiction": contradiction,
    "no gradient": lambda g, c, J: (0 * g, c, J),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("m", [2, 4, 10])
@pytest.mark.parametrize("beta", [20.0, 0.1])
def test_degenerate(name: str, m: int, beta: float) -> None:
    g, c, J = DEGENERATE[name](*instance(sum(map(ord, name)) + m, m, 120))
    out = ghost_direction(g, c, J, tau=0.7, beta=beta, rho=0.8 * beta, lam=0.5)
    assert_optimal(out, g, c, J, 0.7, beta, 1e-10)
    rows = float(c.abs().max() + 0.8 * beta * J.abs().sum(-1).max())
    assert -1e-15 * rows <= float(out.kappa_gap) <= 1e-10 * rows
    if name == "feasible":
        assert float(out.kappa) == 0
    if name == "all zero":
        assert float(out.kappa) == pytest.approx(float(c.max()), rel=1e-12)


@pytest.mark.parametrize("beta", [50.0, 0.3])
@pytest.mark.parametrize("rho", [0.2, 1e-3])
def test_one_constraint(beta: float, rho: float) -> None:
    g, c, J = instance(3, 1, 200)
    a, tau = J[0], 2.0
    out = ghost_direction(g, c, J, tau=tau, beta=beta, rho=rho, lam=0.25)
    k = 0.75 * c[0] + 0.25 * (c[0] - rho * a.abs().sum()).clamp_min(0)
    assert float(out.kappa) == pytest.approx(float(k), rel=1e-14)
    assert_optimal(out, g, c, J, tau, beta, 1e-13)
    if beta > 1:
        y = ((tau * (c[0] - k) - a @ g) / (a @ a)).clamp_min(0)
        torch.testing.assert_close(out.multipliers[0], y, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(out.d, -(g + y * a) / tau, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("m", [2, 4])
def test_batch_equals_one_by_one(m: int) -> None:
    """Easy, clipped and hard instances share a batch, two leading dimensions, and per-instance
    settings."""
    g, c, J = instance(11, m, 300, (3, 7))
    c[0] -= 0.7
    J[1, 2, 0] = -J[1, 2, 1]
    rho = torch.tensor([1e-3, 2e-2, 0.5], dtype=F64).unsqueeze(-1)  # (3, 1)
    beta = torch.linspace(0.6, 8, 7, dtype=F64)  # (7,)
    out = ghost_direction(g, c, J, tau=1.0, beta=beta, rho=rho, lam=0.5)
    assert out.d.shape == (3, 7, 300)
    assert out.multipliers.shape == (3, 7, m)
    assert out.gap.shape == (3, 7)
    for i in range(3):
        for j in range(7):
            one = ghost_direction(
                g[i, j], c[i, j], J[i, j], tau=1.0, beta=beta[j], rho=rho[i, 0], lam=0.5
            )
            torch.testing.assert_close(out.d[i, j], one.d, rtol=0, atol=1e-12)
            torch.testing.assert_close(out.kappa[i, j], one.kappa, rtol=0, atol=1e-12)


def test_large_batch_equals_one_by_one() -> None:
    """More instances than one piece holds."""
    g, c, J = instance(12, 2, 2753, (60,))
    J[::3, 1] = -J[::3, 0]
    rho = hard_rho(c, J, 2.0)
    out = ghost_direction(g, c, J, tau=1.0, beta=0.9, rho=rho, lam=0.5)
    for i in range(0, 60, 7):
        one = ghost_direction(g[i], c[i], J[i], tau=1.0, beta=0.9, rho=rho, lam=0.5)
        torch.testing.assert_close(out.d[i], one.d, rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_vmap_equals_batch(m: int) -> None:
    g, c, J = instance(21, m, 150, (6,))
    tau, rho = torch.linspace(0.5, 2, 6, dtype=F64), 0.01

    def one(g: Tensor, c: Tensor, J: Tensor, tau: Tensor) -> Direction:
        return ghost_direction(g, c, J, tau=tau, beta=0.7, rho=rho, lam=0.5)

    batch = one(g, c, J, tau)
    for a, b in zip(vmap(one)(g, c, J, tau), batch, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    moved = vmap(one, in_dims=(1, None, 2, 0))(
        g.mT.contiguous(), c[0], J.movedim(0, 2).contiguous(), tau
    )
    torch.testing.assert_close(moved.d, one(g, c[0], J, tau).d, rtol=0, atol=1e-12)
    grid = vmap(lambda t: one(g, c, J, t).d)(tau)  # only a hyper-parameter is batched
    torch.testing.assert_close(grid, one(g, c, J, tau.unsqueeze(-1)).d, rtol=0, atol=1e-12)
    nested = vmap(lambda t: vmap(lambda g, c, J: one(g, c, J, t).d)(g, c, J))(tau)
    torch.testing.assert_close(nested[2, 3], one(g[3], c[3], J[3], tau[2]).d, rtol=0, atol=1e-12)


def test_make_fx_and_compile() -> None:
    g, c, J = instance(22, 3, 40, (4,))
    tau = torch.ones(4, dtype=F64)

    def step(g: Tensor, c: Tensor, J: Tensor, tau: Tensor) -> Tensor:
        return 2 * ghost_direction(g, c, J, tau=tau, beta=0.7, rho=0.05, lam=0.5).d

    expected = step(g, c, J, tau)
    for mode in ("real", "fake"):
        traced = make_fx(vmap(step), tracing_mode=mode)(g, c, J, tau)
        torch.testing.assert_close(
            traced(g + 1, c, J, tau), step(g + 1, c, J, tau), rtol=0, atol=1e-12
        )
    compiled = torch.compile(vmap(step), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(g, c, J, tau), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("hard", [False, True])
def test_float32_in_float32_out(hard: bool) -> None:
    g, c, J = (x.float() for x in instance(31, 4, 2753))
    rho = hard_rho(c, J) if hard else 0.5
    out = ghost_direction(g, c, J, tau=1.0, beta=1.0, rho=rho, lam=0.5)
    exact = ghost_direction(g.double(), c.double(), J.double(), tau=1.0, beta=1.0, rho=rho, lam=0.5)
    assert all(x.dtype == torch.float32 for x in out)
    for a, b in zip(out[:3], exact[:3], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-6, atol=float(1e-6 * b.abs().max()))


def test_inputs_are_not_changed_and_need_no_gradient() -> None:
    g, c, J = instance(42, 3, 50)
    copies = [x.clone() for x in (g, c, J)]
    out = ghost_direction(g.requires_grad_(), c, J, tau=1.0, beta=0.5, rho=0.01, lam=0.5)
    assert not out.d.requires_grad
    assert all(torch.equal(x, y) for x, y in zip((g, c, J), copies, strict=True))


@pytest.mark.parametrize(("value", "rho"), [(torch.nan, 0.01), (torch.inf, 0.4), (-torch.inf, 0.4)])
@pytest.mark.parametrize("where", ["g", "c", "J"])
@pytest.mark.parametrize("m", [1, 2, 4])
def test_what_is_not_finite_stays_in_its_instance(
    value: float, where: str, m: int, rho: float
) -> None:
    g, c, J = instance(43, m, 50, (5,))
    {"g": g, "c": c, "J": J[:, 0]}[where][1, -1] = value
    J[3, -1] = 0  # nothing hides behind a product with 0
    {"g": g, "c": c, "J": J[:, 0]}[where][3, 0] = value

    def solve(g: Tensor, c: Tensor, J: Tensor) -> Direction:
        return ghost_direction(g, c, J, tau=1.0, beta=0.5, rho=rho, lam=0.5)

    for out in (solve(g, c, J), vmap(solve)(g, c, J)):
        assert all(x[[1, 3]].isnan().all() for x in out)
        for i in (0, 2, 4):
            for a, b in zip(out, solve(g[i], c[i], J[i]), strict=True):
                torch.testing.assert_close(a[i], b, rtol=0, atol=1e-12)
    assert all(x.isnan().all() for x in solve(g[1], c[1], J[1]))


# g, c, J close to the solution of the outer problem: d is 1e-4 and smaller, g and y are of order 1
NEAR = {
    "one row": ([1.0, 1.0, 0.0], [-2.4e-4], [[-2.0002, -1.9996, 0.0]]),
    "tiny step": ([-1.0, 0.0, 0.0], [-1.2e-9], [[1.0, 0.0, 0.0]]),
    "equality": ([0.9994, 0.9994, 0.0], [-5.6e-4, 5.6e-4], [[1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]]),
    "two rows": (
        [-1.9991, 4.5e-4, 0.0],
        [6.697e-4, 6.699e-4],
        [[1.0, 1.0, 0.0], [2.0009, -1.0, 0.0]],
    ),
    "vertex": (
        [-2.0, -1.0, 3e-7],
        [1e-7, 2e-7, -1e-7],
        [[1.0, 1.1, 0.0], [2.0, -1.0, 0.3], [0.0, 0.1, -1.0]],
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_a_solution_rounding_is_not_chased(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """d comes from g + J'y by cancellation, so residuals relative to d alone cannot become
    small."""
    g, c, J = (torch.tensor(x, dtype=F64) for x in NEAR[name])
    # rows of zeros, as in a stack of problems with different numbers of constraints
    pad = 4 - len(c)
    c, J = (
        torch.cat([c, -torch.ones(pad, dtype=F64)]),
        torch.cat([J, torch.zeros(pad, 3, dtype=F64)]),
    )
    for slow in ("box_qp._newton_step", "box_qp.interior", "kappa_lp.interior"):
        monkeypatch.setattr(f"fairbound.algorithms._subproblems.{slow}", None)  # cannot be called
    out = ghost_direction(g, c, J, tau=1.0, beta=2.0, rho=0.5, lam=0.5)
    assert_optimal(out, g, c, J, 1.0, 2.0, 1e-14)


@pytest.mark.parametrize(
    "kind", ["sparse", "small integers", "few different columns", "one large column"]
)
@pytest.mark.parametrize("m", [3, 6])
def test_kappa_of_many_columns_with_ties(kind: str, m: int) -> None:
    """J'y vanishes or ties in many columns at once."""
    _, c, J = instance(51, m, 2000)
    if kind == "sparse":
        J = J * (torch.rand(m, 2000, generator=torch.Generator().manual_seed(0)) < 0.05)
    elif kind == "small integers":
        J = (J * 60).round() / 60
    elif kind == "few different columns":
        J = J[:, torch.arange(2000) % 7]
    else:
        J[:, 5] *= 1000
    rho = hard_rho(c, J)
    t, gap = attainable(c, J, rho)
    assert float(t) == pytest.approx(highs_value(c, J, rho), rel=1e-8, abs=1e-9)
    assert -1e-15 <= float(gap) <= 1e-11


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    m=st.integers(1, 6),
    n=st.integers(1, 9),
    beta=st.sampled_from([0.05, 0.5, 5.0]),
    part=st.sampled_from([0.1, 0.5, 0.9]),
    integers=st.booleans(),
)
def test_kkt_on_small_problems(
    seed: int, m: int, n: int, beta: float, part: float, integers: bool
) -> None:
    """Also m > n, and small integers, where rows repeat, vanish, oppose each other and tie."""
    draw = torch.Generator().manual_seed(seed)

    def number(*shape: int) -> Tensor:
        x = torch.randn(*shape, generator=draw, dtype=F64)
        return x.round() if integers else x

    g, c, J = number(n), number(m), number(m, n)
    out = ghost_direction(g, c, J, tau=1.0, beta=beta, rho=part * beta, lam=0.5)
    assert_optimal(out, g, c, J, 1.0, beta, 1e-9)
    assert abs(float(out.kappa_gap)) <= 1e-9
    assert float(out.kappa) <= max(float(c.max()), 0.0) * (1 + 1e-15)


@pytest.mark.parametrize("m", [1, 2, 3, 8])
@pytest.mark.parametrize("batch", [4, 40])
def test_nnqp(m: int, batch: int) -> None:
    draw = torch.Generator().manual_seed(m)
    A = torch.randn(batch, m, max(1, m - batch % 3), generator=draw, dtype=F64)
    # in the range: bounded
    q = (A @ torch.randn(batch, A.shape[-1], 1, generator=draw, dtype=F64)).squeeze(-1)
    G = A @ A.mT
    x = nnqp(G, q)
    y = (G @ x.unsqueeze(-1)).squeeze(-1) - q
    assert (x >= 0).all()
    assert float(y.min()) >= -1e-11
    assert float((x * y).abs().max()) <= 1e-10


def test_nnqp_is_exact_to_rounding() -> None:
    """No bias of the ridge that makes singular matrices solvable."""
    draw = torch.Generator().manual_seed(5)
    A = torch.randn(20, 6, 30, generator=draw, dtype=F64)
    x = torch.rand(20, 6, generator=draw, dtype=F64) + 0.5
    G = A @ A.mT
    found = nnqp(G, (G @ x.unsqueeze(-1)).squeeze(-1))
    assert float((found - x).abs().max()) <= 3e-15


@pytest.mark.parametrize(
    ("g", "c", "J", "settings", "sentence"),
    [
        ((4,), (2,), (3, 4), {}, "J has 3 rows but c has 2 entries"),
        ((5,), (3,), (3, 4), {}, "J has 4 columns but g has shape"),
        ((4,), (), (3, 4), {}, "needs shape"),
        ((4,), (0,), (0, 4), {}, "J has no rows"),
        ((4,), (1,), (1, 4), {"rho": -1.0}, "rho must be positive"),
        ((4,), (1,), (1, 4), {"lam": 2.0}, "lam must be in"),
        ((4,), (1,), (1, 4), {"rho": 2.0}, "exceeds beta"),
    ],
)
def test_errors_are_sentences(
    g: tuple[int, ...],
    c: tuple[int, ...],
    J: tuple[int, ...],
    settings: dict[str, float],
    sentence: str,
) -> None:
    numbers = {"tau": 1.0, "beta": 1.0, "rho": 0.5, "lam": 0.5} | settings
    with pytest.raises(ValueError, match=sentence):
        ghost_direction(torch.ones(g), torch.ones(c), torch.ones(J), **numbers)


@pytest.mark.parametrize("m", [3, 4, 6])
def test_zero_rows_among_others_against_highs(m: int) -> None:
    _, c, J = instance(m, m, 12, (40,))
    still = torch.rand(40, m, generator=torch.Generator().manual_seed(m)) < 0.4
    J[still] = 0.0
    rho = hard_rho(c, J, 0.9)
    t, gap = attainable(c, J, rho)
    for i in range(40):
        assert float(t[i]) == pytest.approx(highs_value(c[i], J[i], rho), abs=1e-9)
    assert (gap <= 1e-9).all()
