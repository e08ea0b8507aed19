"""Speed of the Ghost subproblems: fairbound against OSQP (QP) plus HiGHS (kappa), side by side in
one run.

    OMP_NUM_THREADS=1 python benchmarks/subproblems.py --sizes 2753 100000 --constraints 2 5 10
    --repeats 7

The reference is what published Ghost code calls: qpsolvers with OSQP at its default tolerance
(1e-3) for the QP, and scipy's HiGHS over n + 1 variables for kappa. It gets fairbound's kappa as
right-hand side, so both solve the same QP. "easy" means that no coordinate is clipped and the
linearization can be repaired inside the box (t = 0); "hard" that about 20% are clipped and it
cannot (t > 0). Contestants alternate; times are medians, CPU beside wall, in ms.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fairbound.algorithms._subproblems import ghost_direction

try:
    import scipy.sparse as sparse
    from qpsolvers import solve_qp
    from scipy.optimize import linprog
except ImportError as error:
    raise SystemExit(
        f"{error}; install the reference solvers: pip install 'qpsolvers[osqp]' scipy"
    ) from error

TAU, LAM = 1.0, 0.5
Settings = dict[str, float]


def instances(
    count: int, m: int, n: int, hard: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Settings]:
    """g, c, J of `count` instances and the settings that make them easy or hard."""
    torch.manual_seed(0)
    g = torch.randn(count, n, dtype=torch.float64)
    c = 0.1 + 0.1 * torch.rand(count, m, dtype=torch.float64)
    J = torch.randn(count, m, n, dtype=torch.float64) / n**0.5
    small = 0.5 * float((c.amax(-1) / J.abs().sum(-1).amax(-1)).min())
    return (g, c, J), {"beta": 1.28, "rho": small} if hard else {"beta": 20.0, "rho": 0.8}


def reference(
    g: np.ndarray, c: np.ndarray, J: np.ndarray, beta: float, rho: float, k: float
) -> None:
    """One instance by HiGHS and OSQP."""
    m, n = J.shape
    A = np.hstack([J, -np.ones((m, 1))])
    linprog(
        np.r_[np.zeros(n), 1.0],
        A_ub=A,
        b_ub=-c,
        bounds=[(-rho, rho)] * n + [(0, None)],
        method="highs",
    )
    P, G = TAU * sparse.eye(n, format="csc"), sparse.csc_matrix(J)
    solve_qp(P, g, G, k - c, lb=np.full(n, -beta), ub=np.full(n, beta), solver="osqp")


def alternate(contestants: list[Callable[[], object]], repeats: int) -> list[tuple[float, float]]:
    """Median (CPU, wall) ms of each, one call of each per round after a warm-up round."""
    times: list[list[tuple[float, float]]] = [[] for _ in contestants]
    for i in range(repeats + 1):
        for call, record in zip(contestants, times, strict=True):
            cpu, wall = time.process_time(), time.perf_counter()
            call()
            if i:
                record.append(
                    (1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall))
                )
    return [(statistics.median(a for a, _ in r), statistics.median(b for _, b in r)) for r in times]


def compare(n: int, m: int, hard: bool, repeats: int) -> None:
    """One row: one instance against one, and a Ghost step (four instances in a batch) against
    four."""
    (g, c, J), box = instances(4, m, n, hard)
    out = ghost_direction(g, c, J, tau=TAU, lam=LAM, **box)
    clipped = float((out.d.abs() >= box["beta"]).double().mean())
    arrays = [(g[i].numpy(), c[i].numpy(), J[i].numpy()) for i in range(4)]

    def theirs(count: int) -> None:
        for i in range(count):
            reference(*arrays[i], box["beta"], box["rho"], float(out.kappa[i]))

    def ours(count: int) -> None:
        ghost_direction(g[:count], c[:count], J[:count], tau=TAU, lam=LAM, **box)

    calls = [lambda: ours(1), lambda: theirs(1), lambda: ours(4), lambda: theirs(4)]
    one, one_ref, step, step_ref = alternate(calls, repeats)
    name = f"{n:>8} {m:>3} {'hard' if hard else 'easy'} {clipped:>5.0%}"
    single = (
        f"{one[0]:9.2f} {one[1]:9.2f} {one_ref[0]:10.1f} {one_ref[1]:10.1f}"
        f" {one_ref[0] / one[0]:6.0f}x"
    )
    four = (
        f"{step[0]:9.2f} {step[1]:9.2f} {step_ref[0]:10.1f} {step_ref[1]:10.1f}"
        f" {step_ref[0] / step[0]:6.0f}x"
    )
    worst = max(float(x.abs().max()) for x in (out.violation, out.gap, out.kappa_gap))
    print(f"{name} | {single} | {four} | {worst:.0e}", flush=True)


def stacked(n: int, m: int, hard: bool, count: int, repeats: int) -> None:
    """One row: microseconds per instance of a large batch."""
    (g, c, J), box = instances(count, m, n, hard)
    [(cpu, wall)] = alternate([lambda: ghost_direction(g, c, J, tau=TAU, lam=LAM, **box)], repeats)
    kind = "hard" if hard else "easy"
    cpu, wall = 1e3 * cpu / count, 1e3 * wall / count
    print(f"{n:>8} {m:>3} {kind} batch of {count}: {cpu:8.0f} us CPU, {wall:8.0f} us wall")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[2753, 100_000])
    parser.add_argument("--constraints", type=int, nargs="+", default=[2, 5, 10])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--batch", type=int, default=400, help="instances of the stacked rows; 0: none"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, 1"
        f" thread, torch {torch.__version__}, Python {platform.python_version()}"
    )
    columns = f"{'ours cpu':>9} {'wall':>9} {'ref cpu':>10} {'wall':>10} {'ratio':>7}"
    print(
        f"{'n':>8} {'m':>3} kind  clip | one: {columns[5:]} | step: {columns[6:]} | worst residual"
    )
    for n in args.sizes:
        for m in args.constraints:
            for hard in (False, True):
                compare(n, m, hard, args.repeats if n < 50_000 else max(1, args.repeats // 3))
    for m in (2, 10) if args.batch else ():
        for hard in (False, True):
            stacked(2753, m, hard, args.batch, 1 if hard else 3)


if __name__ == "__main__":
    main()
