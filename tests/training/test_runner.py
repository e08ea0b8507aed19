"""The runner: records, grouping, means, and what it refuses or survives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from methods import Descends, bce, classification, spoilt

from fairbound import ALGORITHMS, BatchSpec, Dataset, Problem, Sampler, Split, grid, run
from fairbound.algorithms import SGD, SSLALM, DescentAscent, StochasticGhost, SwitchingSubgradient
from fairbound.algorithms.schedules import InverseSqrt, Linear
from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._cells import Cells
from fairbound.constraints._constraint import FunctionConstraint
from fairbound.constraints._notions import pairwise_loss_parity
from fairbound.core import Draw
from fairbound.data._samplers import SamplerStack
from fairbound.training._hyperparams import float_settings, structure, with_hyperparams

F64 = torch.float64
# `check_algorithm` runs every method
REPRESENTATIVE = ("DescentAscent", "SSLALM", "TrackedSQP", "StochasticGhost")


def test_records_come_at_their_steps_and_at_the_end() -> None:
    problem, sampler, x0 = classification()
    going = run(problem, SSLALM(), sampler.seeded(0, 1), x0[:2], 25, every=10)
    records = list(going)
    assert [record.step for record in records] == [10, 20, 25]
    assert all(record.runs == (0, 1) and record.x.shape == (2, 37) for record in records)
    assert records[0].multipliers.shape == (2, 2)
    assert set(records[0].monitors) == {"resets"}
    with pytest.raises(StopIteration):
        next(iter(going))
    result = going.result()
    assert torch.equal(records[-1].x, result.x)
    shorter = run(problem, SSLALM(), sampler.seeded(0, 1), x0[:2], 10).result()
    assert torch.equal(records[0].x, shorter.x)


def test_gradients_stay_on_for_whoever_reads_the_records() -> None:
    problem, sampler, x0 = classification()
    assert all(torch.is_grad_enabled() for _ in run(problem, SSLALM(), sampler, x0[0], 4, every=1))
    assert not any(
        record.x.requires_grad
        for record in run(problem, SSLALM(), sampler, x0[0].requires_grad_(), 2)
    )


def test_means_are_over_the_later_steps() -> None:
    problem, sampler, x0 = classification()
    going = run(problem, DescentAscent(eta=0.5), sampler, x0[0], 20, every=1, average_from=12)
    records = list(going)
    result = going.result()
    late = [record for record in records if record.step > 12]
    assert torch.allclose(result.mean_x[0], torch.stack([r.x[0] for r in late]).mean(0))
    assert torch.allclose(
        result.mean_multipliers[0], torch.stack([r.multipliers[0] for r in late]).mean(0)
    )
    assert run(problem, SGD(), sampler, x0[0], 5).result().mean_x is None


def test_methods_of_different_structure_run_group_by_group() -> None:
    """Results come back in the caller's order, each equal to the run alone."""
    problem, sampler, x0 = classification()
    methods = [SSLALM(), SGD(), SSLALM(tau=0.03), SwitchingSubgradient(), SGD(tau=InverseSqrt(0.1))]
    samplers = sampler.seeded(*range(5))
    result = run(problem, methods, samplers, x0[:5], 15).result()
    for i, method in enumerate(methods):
        alone = run(problem, method, samplers[i], x0[i], 15).result()
        assert torch.allclose(result.x[i], alone.x[0], atol=1e-12)
        assert torch.equal(result.multipliers[i].isnan(), alone.multipliers[0].isnan())
        assert result.monitors[i].keys() == alone.monitors[0].keys()
    assert result.multipliers[1].isnan().all()


def test_a_grid_is_one_stack() -> None:
    methods = grid(SSLALM, tau=[0.01, 0.05], eta=[0.01, 0.05], mu=0.0)
    assert [(m.tau, m.eta, m.mu) for m in methods] == [
        (0.01, 0.01, 0),
        (0.01, 0.05, 0),
        (0.05, 0.01, 0),
        (0.05, 0.05, 0),
    ]
    assert len({structure(m) for m in methods}) == 1
    assert structure(SSLALM()) != structure(SSLALM(samples=3))
    assert structure(StochasticGhost(p0=0.4)) != structure(StochasticGhost(p0=0.6))
    assert structure(SGD(tau=Linear(0.1, 10))) == structure(SGD(tau=Linear(0.2, 20)))
    assert float_settings(SGD(tau=Linear(0.1, 10))) == {
        "tau.start": 0.1,
        "tau.steps": 10.0,
        "tau.end": 0.05,
    }
    assert with_hyperparams(SGD(tau=Linear(0.1, 10)), {"tau.start": 0.3}) == SGD(
        tau=Linear(0.3, 10)
    )


# What is refused or survived ----------------------------------------------------------------------


def test_a_loss_that_is_not_finite_at_the_start_changes_nothing() -> None:
    problem, sampler, x0 = classification()
    broken = Problem(
        lambda x, X: problem.forward(x, X) / 0.0, bce, problem.constraint, problem.data
    )
    kept = x0.clone()
    with pytest.raises(ValueError, match=r"NaN or infinite.*runs \[0, 1\]"):
        run(broken, SSLALM(), sampler.seeded(0, 1), x0[:2], 5)
    assert torch.equal(x0, kept)
    x0[1, 3] = torch.inf
    with pytest.raises(ValueError, match=r"runs \[1\].*not finite"):
        run(problem, SGD(), sampler.seeded(0, 1), x0[:2], 5)


@pytest.mark.parametrize("name", REPRESENTATIVE)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_mini_batch_that_is_not_finite_is_skipped_and_counted(
    name: str, poison: float, caplog: pytest.LogCaptureFixture
) -> None:
    """One row in 240 makes the loss NaN or infinite: steps that meet it are left out, the rest go
    on as they were."""
    problem, sampler, x0 = classification()
    samplers = sampler.seeded(0, 1, 2)
    result = run(spoilt(problem, poison), ALGORITHMS[name](), samplers, x0[:3], 60).result()
    assert result.skipped.sum() > 0
    assert result.skipped.max() < 60
    assert torch.isfinite(result.x).all()
    assert torch.isfinite(result.output).all()
    assert (result.x - x0[:3]).abs().amax(1).min() > 1e-5
    assert "skipped steps that were not finite" in caplog.text


class Total(NamedTuple):
    k: torch.Tensor  # () steps made
    total: torch.Tensor  # (m,)


@dataclass(frozen=True, kw_only=True)
class BreaksItsState(Descends):
    """Its state, and nothing else, is not finite at some steps, which its own random number
    chooses."""

    bad: float = torch.inf

    def init(self, x, m, first=None, equality=None):
        return Total(x.new_zeros(()), x.new_zeros(m))

    def update(self, x, state, draw):
        d, new = super().update(x, state, draw)
        total = torch.where(draw.uniform < 0.3, self.bad, state.total + 1)
        return d, new._replace(total=total.to(x))

    def monitor(self, state):
        return {"made": state.k, "least": state.total.min()}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_state_that_is_not_finite_is_skipped_though_the_step_is(bad: float) -> None:
    problem, sampler, x0 = classification()
    method, samplers = BreaksItsState(bad=bad), sampler.seeded(0, 1)
    going = run(problem, method, samplers, x0[:2], 40, every=1, compile=False)
    u = SamplerStack(samplers, 1, None).uniform(0, 40)  # (steps, R)
    before = x0[:2]
    for record, number in zip(going, u, strict=True):
        assert torch.equal((record.x != before).any(1), number >= 0.3)
        before = record.x
    result, good = going.result(), (u >= 0.3).sum(0)
    assert torch.equal(result.skipped, 40 - good)
    assert 0 < int(good.min()) < 40
    assert [monitor["made"] for monitor in result.monitors] == good.tolist()
    assert [monitor["least"] for monitor in result.monitors] == good.tolist()


def test_bad_calls_are_sentences() -> None:
    problem, sampler, x0 = classification()
    with pytest.raises(ValueError, match=r"steps.*least 1, got 0"):
        run(problem, SGD(), sampler, x0[0], 0)
    with pytest.raises(ValueError, match="2 methods for 3 runs"):
        run(problem, [SGD(), SGD()], sampler.seeded(0, 1, 2), x0[:3], 5)
    with pytest.raises(ValueError, match=r"2 draws.*3 sizes"):
        run(
            problem,
            SSLALM(),
            Sampler(Split.all_train(240), problem.constraint.cells, [BatchSpec(2, 2)] * 3),
            x0[0],
            5,
        )
    with pytest.raises(ValueError, match=r"average_from.*0 to 4, got 5"):
        run(problem, SGD(), sampler, x0[0], 5, average_from=5)
    with pytest.raises(ValueError, match="0 methods for"):
        run(problem, [], sampler, x0[0], 5)
    short = Dataset(problem.data.X[:100], problem.data.y[:100])
    with pytest.raises(ValueError, match=r"example 239, .*100 examples"):
        run(Problem(problem.forward, bce, problem.constraint, short), SGD(), sampler, x0[0], 5)
    with pytest.raises(ValueError, match=r"SSLALM needs constraints.*none"):
        run(Problem(problem.forward, bce, None, problem.data), SSLALM(), sampler, x0[0], 5)
    with pytest.raises(
        ValueError,
        match=r"0 cells \(\) .*2 cells \(0 and 1\)",
    ):
        run(problem, SSLALM(), Sampler(Split.all_train(240)), x0[0], 5)


def test_a_sampler_for_other_groups_is_refused() -> None:
    problem, _, x0 = classification()
    other = pairwise_loss_parity(2, bound=0.01).bind(1 - problem.data.groups["group"])
    with pytest.raises(ValueError, match="their examples differ"):
        run(
            problem, SSLALM(), Sampler(Split.all_train(240), other.cells, BatchSpec(6, 5)), x0[0], 5
        )


@pytest.mark.parametrize("name", [*REPRESENTATIVE, "SwitchingSubgradient"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_constraint_alone_that_is_not_finite_is_skipped_too(name: str, poison: float) -> None:
    """The value of c is bad in some batches, its gradient never: switching would step on it,
    SSL-ALM reset itself."""
    problem, sampler, x0 = classification()
    marked = problem.data.X[17]

    def fun(batch: MiniBatch) -> torch.Tensor:
        outputs, inside = batch.outputs, torch.stack([batch.groups == 0, batch.groups == 1]).to(F64)
        good = inside @ outputs[:, 0] / inside.sum(1) - 1
        return good + torch.where(outputs[:, 1].amax() > 0, poison, 0.0)

    def forward(x: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        return torch.stack([problem.forward(x, X), (marked == X).all(1).to(x.dtype)], 1)

    own = FunctionConstraint(fun, ("a", "b"), problem.constraint.cells)

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return bce(out[:, 0], y)

    method = ALGORITHMS[name]()
    going = run(Problem(forward, loss, own, problem.data), method, sampler, x0[0], 80, every=1)
    hits, before = 0, x0[0]
    stack = SamplerStack([sampler], method.draws, method.batch_size_probs)
    for k, record in enumerate(going):
        if method.batch_size_probs is None:
            met = any(
                (b.cells == 17).any()
                for b, r in zip(stack.block(k, 1), method.evaluates, strict=True)
                if "c" in r
            )
            hits += int(met)
            assert torch.equal(record.x[0], before) == met, (
                "a step that met the bad example must change nothing"
            )
        before = record.x[0]
    result = going.result()
    assert result.skipped[0] > 0
    if method.batch_size_probs is None:
        assert result.skipped[0] == hits
    assert result.monitors[0].get("resets", 0) == 0


def test_an_interrupted_run_has_no_result() -> None:
    problem, sampler, x0 = classification()
    going = run(problem, SGD(), sampler, x0[0], 5, every=1)
    next(iter(going))
    going._records.close()
    with pytest.raises(RuntimeError, match="interrupted before"):
        going.result()


def test_integer_inputs_and_a_constraint_without_cells() -> None:
    """An embedding with a bound on its weights; by hand and by the runner, the output rule's coin
    included."""
    rows = 60
    X, y = torch.arange(rows)[:, None] % 7, (torch.arange(rows) % 2).to(F64)
    own = FunctionConstraint(
        lambda batch: (batch.parameters[0].square().sum() / 4 - 1).reshape(1),
        ("norm",),
        Cells((), ()),
    )
    problem = Problem(lambda x, Z: x[Z[:, 0]], bce, own, Dataset(X, y))
    sampler = Sampler(Split.all_train(rows), sizes=BatchSpec(5, 5), seed=3)
    x0 = torch.linspace(-2, 2, 7, dtype=F64)
    for name in (*REPRESENTATIVE, "SwitchingSubgradient"):
        build = ALGORITHMS[name]
        result = run(problem, build(), sampler, x0, 40).result()
        assert result.skipped.sum() == 0, name
        source, x, method = problem.source(sampler), x0.clone(), build()
        state = method.init(x, 1, source.first(method.evaluates)(x))
        for _ in range(40):
            d, state = method.update(
                x, state, source.next(method.evaluates, method.batch_size_probs)
            )
            x = x + d
        assert (result.x[0] - x).abs().max() < 1e-9, name
        assert (result.output[0] - method.output(x, state)).abs().max() < 1e-9, name


def test_sgd_needs_no_constraint_and_never_evaluates_one() -> None:
    problem, _, x0 = classification()
    sampler = Sampler(Split.all_train(240))
    free = run(
        Problem(problem.forward, bce, None, problem.data), SGD(), sampler, x0[0], 10
    ).result()
    bound = run(problem, SGD(), sampler, x0[0], 10).result()
    assert torch.equal(free.x, bound.x)
    with_cells = Sampler(Split.all_train(240), problem.constraint.cells)
    assert torch.equal(
        run(Problem(problem.forward, bce, None, problem.data), SGD(), with_cells, x0[0], 10)
        .result()
        .x,
        free.x,
    )


def test_multipliers_can_be_moved_by_rows_of_their_own() -> None:
    """The train rows meet the bound by construction, the multipliers' rows break it: only those can
    move them."""
    rows = 400
    groups, held = torch.arange(rows) % 2, torch.arange(rows) >= 200
    X = torch.ones(rows, 1, dtype=F64)
    # the same labels for both groups in train, 0 and 2 elsewhere
    y = torch.where(held, groups * 2.0, 1.0).to(F64)
    constraint = pairwise_loss_parity(2, bound=0.01).bind(groups)
    problem = Problem(
        lambda x, Z: Z @ x, lambda out, label: (out - label) ** 2, constraint, Dataset(X, y)
    )
    split = Split(torch.arange(200), dual=torch.arange(200, 400))
    x0 = torch.full((1,), 1.5, dtype=F64)
    moved = {}
    for pool in ("train", "dual"):
        sampler = Sampler(split, constraint.cells, (BatchSpec(8, 8), BatchSpec(8, 8, pool=pool)))
        moved[pool] = (
            run(problem, DescentAscent(second=True, tau=0.0, eta=0.1), sampler, x0, 20)
            .result()
            .multipliers.max()
        )
    assert moved["train"] == 0
    assert moved["dual"] > 1


@pytest.mark.parametrize("name", ["SSLALM", "StochasticGhost"])
def test_float32_follows_float64(name: str) -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        problem, sampler, x0 = classification(dtype)
        results.append(run(problem, ALGORITHMS[name](), sampler, x0[0], 30).result().x.double())
    assert (results[0] - results[1]).abs().max() < 1e-4


def test_ghost_evaluates_its_random_sizes_at_its_own_point_only() -> None:
    class Wandering(StochasticGhost):
        def update(self, x, state, draw):
            return super().update(x + 1, state, Draw(draw.samples, draw.weight, draw.uniform))

    problem, sampler, x0 = classification()
    with pytest.raises(ValueError, match="own point only"):
        run(problem, Wandering(), sampler, x0[0], 2).result()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_cuda_equals_cpu(name: str) -> None:
    problem, sampler, x0 = classification()
    on_cpu = run(problem, ALGORITHMS[name](), sampler.seeded(0, 1), x0[:2], 50).result()
    moved = Problem(problem.forward, bce, problem.constraint, problem.data.to("cuda"))
    on_gpu = run(moved, ALGORITHMS[name](), sampler.seeded(0, 1), x0[:2].cuda(), 50).result()
    assert (on_cpu.x - on_gpu.x.cpu()).abs().max() < 1e-9
