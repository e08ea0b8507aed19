"""Problems from per-example values of [f, c], and their constraints in other units."""

import torch

from fairbound.benchmark.problems import Instance, Solution
from fairbound.benchmark.problems._scaled import scaled_instance
from fairbound.benchmark.problems.expectation import Noise, centered, noisy

F64 = torch.float64
START = torch.tensor([0.5, -1.0, 2.0], dtype=F64)


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x @ x, x.sum() - 1, x[0] - 3, x[1] * x[2]])


def made() -> Instance:
    solution = Solution(
        torch.tensor([1.0, 2.0, 3.0], dtype=F64), torch.tensor([4.0, 5.0, 6.0], dtype=F64)
    )
    return noisy(
        function,
        START,
        Noise(0.3, 0.2, 0.1),
        inequalities=2,
        equalities=1,
        deterministic=(1,),
        solution=solution,
    )


def test_noise_has_mean_zero_and_its_deviations() -> None:
    rows = made().problem.data.X
    assert rows.mean(0).abs().max() < 1e-15
    xi, zeta, Z = rows.split([3, 3, 9], 1)
    Z = Z.unflatten(1, (3, 3))
    for part, deviation in ((xi, 0.3), (zeta[:, [0, 2]], 0.2), (Z[:, [0, 2]], 0.1)):
        assert abs(float(part.std()) / deviation - 1) < 0.1
    assert not zeta[:, 1].any()
    assert not Z[:, 1].any()
    assert torch.equal(centered(torch.ones(2, 1)), torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]))


def test_the_mean_over_all_examples_is_the_deterministic_problem() -> None:
    found = made().problem.evaluate(START, torch.arange(640))
    assert torch.allclose(torch.cat([found.loss, found.c[0]]), function(START), atol=1e-13)


def test_an_example_adds_what_is_linear_in_x() -> None:
    problem = made().problem
    row = problem.data.X[:1]
    xi, zeta, Z = row[0].split([3, 3, 9])
    expected = function(START) + torch.cat([(xi @ START)[None], zeta + Z.reshape(3, 3) @ START])
    assert torch.allclose(problem.forward(START, row)[0], expected, atol=1e-13)


def test_scaled_constraints_have_other_multipliers() -> None:
    plain, moved = made(), scaled_instance(made(), 100.0)
    everything = torch.arange(640)
    for x in (START, plain.solution.x):
        before, after = plain.problem.evaluate(x, everything), moved.problem.evaluate(x, everything)
        assert torch.equal(before.loss, after.loss)
        assert torch.allclose(100 * before.c, after.c)
        assert torch.allclose(plain.violation(before.c), moved.violation(after.c) / moved.scale)
        # multipliers follow their constraints: y'c is the same
        assert torch.allclose(plain.solution.y @ before.c[0], moved.solution.y @ after.c[0])
    assert torch.equal(moved.problem.constraints.equality, torch.tensor([False, False, True]))
