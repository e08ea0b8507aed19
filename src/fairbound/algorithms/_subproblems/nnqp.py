"""Small nonnegative quadratic programs, solved in a batch.

    min_x  x'Gx/2 - q'x   s.t.  x >= 0,
            G (..., m, m) symmetric positive semidefinite, q (..., m).

Optimal when  y = Gx - q >= 0,  x >= 0,  x_i y_i = 0.  G may be singular: a fairness constraint
comes as a pair of rows +a, -a, so a Gram matrix of m rows often has rank m/2. Rows are scaled to
unit diagonal first (Jacobi), so bad row scales do not matter; a row that is zero gets x_i = 0.

Block pivoting (guess the support, exchange every wrong index at once; Judice & Pires 1994) settles
most instances in two to four solves, and the rest go through the active-set method of Lawson &
Hanson (1974), which adds one index at a time and cannot cycle.

If the problem is unbounded (the primal constraints contradict each other) x is huge and not
optimal: the caller looks at the residuals.
"""

import torch
from torch import Tensor

_RIDGE = 3e-15  # on the unit diagonal: makes singular supports solvable at the level of rounding
PIVOT_ROUNDS = 8  # block pivoting settles in 2..4 rounds or hardly ever


def nnqp(G: Tensor, q: Tensor) -> Tensor:
    """Solution x (B, m) of the nonnegative QP for G (B, m, m), q (B, m), float64."""
    size = G.diagonal(dim1=-2, dim2=-1)  # (B, m) squared row norms
    # A row 1e-14 times shorter than the longest is noise: no multiplier of it can help.
    present = size > 1e-28 * size.amax(-1, keepdim=True)
    unit = torch.where(present, size, torch.inf).rsqrt()  # (B, m), 0 for absent rows
    b = q * unit
    A = G * unit.unsqueeze(-1) * unit.unsqueeze(-2)
    x, solved = _block_pivoting(A, b)
    if not bool(solved.all()):
        left = (~solved).nonzero().squeeze(-1)
        x[left] = _lawson_hanson(A[left], b[left])
    return x * unit


def _factor(support: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """LU factors of A on the support and the identity off it."""
    on = support.to(A.dtype)
    K = A * on.unsqueeze(-1) * on.unsqueeze(-2)
    K.diagonal(dim1=-2, dim2=-1).add_(_RIDGE + (1 - on))
    LU, pivots, _ = torch.linalg.lu_factor_ex(K)
    return LU, pivots


def _solve_on(support: Tensor, factors: tuple[Tensor, Tensor], b: Tensor) -> Tensor:
    """x with A x = b on the support and x = 0 off it; (B, m)."""
    x: Tensor = torch.linalg.lu_solve(*factors, torch.where(support, b, 0.0).unsqueeze(-1)).squeeze(
        -1
    )
    return x


def _slope(A: Tensor, x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """y = Ax - b (B, m), and the size (B, 1) below which an entry of it is rounding."""
    y = (A @ x.unsqueeze(-1)).squeeze(-1) - b
    scale = b.abs().amax(-1, keepdim=True) + x.abs().amax(-1, keepdim=True)
    return y, 1e-14 * b.shape[-1] * scale


def _block_pivoting(A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, m) and whether it is optimal (B,)."""
    support = b > 0
    for _ in range(PIVOT_ROUNDS):
        factors = _factor(support, A)
        x = _solve_on(support, factors, b)
        y, tol = _slope(A, x, b)
        wrong = torch.where(support, x < 0, y < -tol)
        solved = ~wrong.any(-1)
        if bool(solved.all()):
            break
        support = support ^ wrong
    # One step of iterative refinement removes the bias of _RIDGE; on dependent rows it would
    # wander, and is not small.
    fix = _solve_on(support, factors, -y)
    size = x.amax(-1, keepdim=True)  # (B, 1)
    x = torch.where((fix.abs() <= 1e-10 * size).all(-1, keepdim=True), (x + fix).clamp_min_(0), x)
    # A support with dependent rows gives multipliers near 1/_RIDGE: leave those to the careful
    # method.
    solved = solved & (size.squeeze(-1) <= 1e8 * b.abs().amax(-1)) & x.isfinite().all(-1)
    return torch.where(solved.unsqueeze(-1), x, 0.0), solved


def _lawson_hanson(A: Tensor, b: Tensor) -> Tensor:
    """Active set from x = 0: a round adds the steepest index, or drops those that the solve made
    negative."""
    x = torch.zeros_like(b)
    support = torch.zeros_like(b, dtype=torch.bool)
    # indices that were added and at once dropped: dependent on the support
    refused = support.clone()
    # (B,) x minimizes on its support, so a new index may enter
    settled = torch.ones_like(support[:, 0])
    for _ in range(6 * b.shape[-1] + 10):
        y, tol = _slope(A, x, b)
        gain = torch.where(support | refused, 0.0, -y)  # (B, m)
        best, enter = gain.max(-1, keepdim=True)
        finished = settled & (best <= tol).squeeze(-1)
        if bool(finished.all()):
            break
        adding = settled & ~finished
        support = support.scatter(-1, enter, support.gather(-1, enter) | adding.unsqueeze(-1))
        z = torch.where(finished.unsqueeze(-1), x, _solve_on(support, _factor(support, A), b))
        blocking = support & (z <= 0) & ~finished.unsqueeze(-1)
        ratio = torch.where(blocking, x / (x - z).clamp_min(torch.finfo(x.dtype).tiny), 1.0)
        step = ratio.amin(-1, keepdim=True)  # (B, 1) in [0, 1]
        moved = (step * (z - x)).abs().amax(-1, keepdim=True) > tol  # (B, 1)
        x = torch.where(blocking & (ratio <= step), 0.0, (x + step * (z - x)).clamp_min(0))
        dropped = support & (x <= 0) & ~finished.unsqueeze(-1)
        support = support & ~dropped
        settled = finished | ~blocking.any(-1)
        refused = (refused | dropped) & ~moved
        x = torch.where(support | finished.unsqueeze(-1), x, 0.0)
    return x
