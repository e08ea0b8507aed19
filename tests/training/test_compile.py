"""Compiled steps are the eager ones; when a run is compiled, and what it says if it is not."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from methods import Descends, bce, classification

from fairbound import ALGORITHMS, run
from fairbound.algorithms import SGD, DescentAscent
from fairbound.algorithms.schedules import InverseSqrt
from fairbound.core import Draw
from fairbound.training._compile import COMPILED, choose_compilation
from fairbound.training._hyperparams import float_settings

OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11)


needs_compiler = pytest.mark.skipif(
    OLD or not (shutil.which("g++") or shutil.which("clang++")),
    reason=(
        "no C++ compiler on this machine, or a torch older than 2.11, whose compiler is not"
        " relied on"
    ),
)


@needs_compiler
@pytest.mark.parametrize(
    "name", ["SSLALM", pytest.param("StochasticGhost", marks=pytest.mark.slow)]
)
def test_compiled_equals_eager_and_other_numbers_are_not_baked_in(name: str) -> None:
    problem, sampler, x0 = classification()
    build = ALGORITHMS[name]
    first = next(iter(float_settings(build())))
    for value in (0.02, 0.07):
        method = build(**{first: value})
        fast = run(problem, method, sampler.seeded(0, 1, 2), x0[:3], 30, compile=True).result()
        slow = run(problem, method, sampler.seeded(0, 1, 2), x0[:3], 30, compile=False).result()
        assert fast.compiled
        assert not slow.compiled
        assert (fast.x - slow.x).abs().max() < 1e-10


class Drifting(NamedTuple):
    mean: torch.Tensor
    k: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Averaging(Descends):
    """Keeps the mean of its coins, whose precision is not that of x."""

    def init(
        self, x: torch.Tensor, m: int, first: object = None, equality: object = None
    ) -> Drifting:
        return Drifting(x.new_zeros(()), x.new_zeros(()))

    def update(self, x: torch.Tensor, state: Drifting, draw: Draw) -> tuple[torch.Tensor, Drifting]:
        d, new = super().update(x, state, draw)
        return d, new._replace(mean=state.mean + (draw.uniform - state.mean) / new.k)

    def monitor(self, state: Drifting) -> dict[str, torch.Tensor]:
        return {"mean": state.mean}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 0.5])  # at 0 every step is spoilt, the first one too
def test_a_compiled_step_that_is_not_finite_is_skipped_as_an_eager_one_is(scale: float) -> None:
    """A compiler that simplifies 0 * x to 0 must not get between a NaN and the look for it."""
    problem, sampler, x0 = classification()

    def spoilt(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.where(outputs.abs() > 0.6, torch.log(-outputs.abs()), bce(outputs, labels))

    spoilt_problem = replace(problem, loss=spoilt)
    x0 = scale * x0[:3]
    eager, fast = (
        run(
            spoilt_problem,
            DescentAscent(tau=0.5),
            sampler.seeded(0, 1, 2),
            x0,
            60,
            compile=requested,
        ).result()
        for requested in (False, True)
    )
    assert eager.skipped.sum() > 0
    assert fast.skipped.tolist() == eager.skipped.tolist()
    torch.testing.assert_close(fast.x, eager.x, rtol=0, atol=1e-10)
    assert torch.isfinite(fast.x).all()


@needs_compiler
@pytest.mark.slow
def test_a_state_keeps_its_precision_so_a_compiled_step_reads_what_was_written() -> None:
    problem, sampler, x0 = classification()
    single = replace(problem, data=problem.data.to(dtype=torch.float32))
    ends = [
        run(single, Averaging(), sampler, x0[0].float(), 40, compile=fast).result()
        for fast in (True, False)
    ]
    torch.testing.assert_close(ends[0].x, ends[1].x, rtol=1e-4, atol=1e-5)
    assert ends[0].monitors[0]["mean"] == pytest.approx(ends[1].monitors[0]["mean"], rel=1e-4)
    assert 0.2 < ends[1].monitors[0]["mean"] < 0.8


@needs_compiler
@pytest.mark.slow
def test_what_was_compiled_is_found_again_for_the_same_problem_only() -> None:
    problem, sampler, x0 = classification()
    run(problem, SGD(tau=0.1), sampler, x0[0], 3, compile=True).result()
    built = dict(COMPILED[problem])
    run(problem, SGD(tau=0.2), sampler.seeded(7), x0[1], 4, compile=True).result()
    assert COMPILED[problem] == built
    run(problem, SGD(tau=InverseSqrt(0.1)), sampler, x0[0], 3, compile=True).result()
    assert len(COMPILED[problem]) == len(built) + 1
    assert classification()[0] not in COMPILED


def test_short_runs_are_not_compiled_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    problem, sampler, x0 = classification()
    with caplog.at_level(logging.INFO, logger="fairbound"):
        result = run(problem, SGD(), sampler, x0[0], 5).result()
    assert not result.compiled
    assert "5 steps are too few" in result.note or "no C++ compiler" in result.note
    assert [record.message for record in caplog.records] == [result.note]


def test_without_a_compiler_a_long_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    chosen, note = choose_compilation(None, 1_000_000)
    assert not chosen
    assert "no C++ compiler was found" in note


def test_a_compiler_that_fails_is_only_fatal_if_compilation_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("cannot build")

    monkeypatch.setattr("torch._inductor.compile", broken)
    monkeypatch.setattr("fairbound.training._compile.LONG", 3)
    monkeypatch.setenv("CXX", "/bin/false")
    problem, sampler, x0 = classification()
    result = run(problem, SGD(), sampler, x0[0], 5).result()
    assert not result.compiled
    assert "inductor failed (RuntimeError)" in result.note
    with pytest.raises(RuntimeError, match="cannot build"):
        run(problem, SGD(), sampler, x0[0], 5, compile=True).result()
