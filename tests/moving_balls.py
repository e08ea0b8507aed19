"""The subproblem of moving balls in numpy, and its solution by Clarabel."""

from __future__ import annotations

from typing import NamedTuple

import clarabel
import numpy as np
import scipy.sparse as sparse
import torch

from fairbound.algorithms._subproblems.level import LevelDirection, level_direction


class Instance(NamedTuple):
    g: np.ndarray  # (n,)
    h: np.ndarray  # (m,) c - level
    J: np.ndarray  # (m, n)
    L: np.ndarray  # (m,)
    gamma: float

    def value(self, d: np.ndarray) -> float:
        return float(self.g @ d + self.gamma / 2 * d @ d)

    def q(self, d: np.ndarray) -> np.ndarray:
        return self.h + self.J @ d + self.L / 2 * (d @ d)

    def size(self, d: np.ndarray) -> np.ndarray:
        """What q is made of; d comes from g/gamma, whose rounding has a hundredth of the weight."""
        length = np.linalg.norm(d) + 0.01 * np.linalg.norm(self.g) / self.gamma
        return np.abs(self.h) + np.linalg.norm(self.J, axis=1) * length + self.L / 2 * (d @ d)

    def solved(self) -> LevelDirection:
        g, c, J, L = (torch.as_tensor(part) for part in self[:4])
        return level_direction(g, c + 0.7, J, gamma=self.gamma, L=L, level=0.7)


def clarabel_solution(one: Instance) -> np.ndarray:
    """min g'd + gamma u s.t. h + J d + L u <= 0, |d|^2 <= 2 u: a second-order cone, |(sqrt 2 d, u - 1)| <= u + 1."""
    m, n = one.J.shape
    cone = np.zeros((n + 2, n + 1))
    cone[:2, n] = -1
    cone[2:, :n] = -(2**0.5) * np.eye(n)
    A = sparse.csc_matrix(np.vstack([np.c_[one.J, one.L], cone]))
    b = np.r_[-one.h, 1, -1, np.zeros(n)]
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-12
    cones = [clarabel.NonnegativeConeT(m), clarabel.SecondOrderConeT(n + 2)]
    solver = clarabel.DefaultSolver(sparse.csc_matrix((n + 1, n + 1)), np.r_[one.g, one.gamma], A, b, cones, options)
    return np.array(solver.solve().x)[:n]
