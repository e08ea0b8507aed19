"""`make speed`: its contestants are the methods they are called, the same steps on the same rows; its status tells."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairbound import SGD, SSLALM, Draw, Problem, StochasticGhost, SwitchingSubgradient
from fairbound.constraints.notions import pairwise_loss_parity
from fairbound.core import Algorithm
from fairbound.data.samplers import Batch
from fairbound.training.functional import make_functional

SPEED = Path(__file__).parent.parent / "benchmarks" / "speed"
if not SPEED.is_dir():
    pytest.skip("the benchmarks are not beside the tests", allow_module_level=True)
sys.path.insert(0, str(SPEED))
import hand_written  # noqa: E402
import loop  # noqa: E402
import setting  # noqa: E402
from measuring import MISSED_STATUS, SKIPPED, Checks, Rounds, Time, alternate  # noqa: E402

every_part = importlib.import_module("all")

STEPS = 6


class Given(hand_written.MiniBatch):
    """Rows that are known beforehand."""

    def __init__(self, data: Any, rows: Iterator[Tensor]) -> None:
        super().__init__(data)
        self.rows = rows

    def objective(self, size: int = hand_written.B) -> Tensor:
        return next(self.rows)

    def group(self, g: int, size: int = hand_written.B) -> Tensor:
        return next(self.rows)


def flat(model: torch.nn.Module) -> Tensor:
    return hand_written.flat([p.detach() for p in model.parameters()])


def by_us(method: Algorithm[Any], data: Any, steps: list[list[Batch]], weights: list[float] | None = None) -> Any:
    """The last x and state."""
    forward, x = make_functional(setting.network())
    problem = Problem(
        forward,
        setting.per_example_losses,
        pairwise_loss_parity(2, bound=setting.BOUND).bind(data.groups["group"]),
        data,
    )
    state = method.init(x, problem.m)
    for batches, weight in zip(steps, weights or [1.0] * len(steps), strict=True):
        samples = [problem.sample(problem.gather(batch, "fc")) for batch in batches]
        d, state = method.update(x, state, Draw.of(*samples, weight=weight))
        x = x + d
    return x, state


def drawn() -> tuple[Any, list[Tensor], list[list[Tensor]]]:
    """Data, for every step the examples of the objective, and those of the groups of two mini-batches."""
    data = setting.random_dataset(400)
    rows = hand_written.MiniBatch(data)
    objective = [rows.objective() for _ in range(STEPS)]
    return data, objective, [[rows.group(g) for g in (0, 1, 0, 1)] for _ in range(STEPS)]


def pairs(objective: list[Tensor], groups: list[list[Tensor]]) -> list[list[Batch]]:
    """Two mini-batches for every step."""
    return [
        [Batch(f, torch.stack(c[:2])), Batch(f, torch.stack(c[2:]))] for f, c in zip(objective, groups, strict=True)
    ]


def test_sgd_hand_written_is_sgd() -> None:
    data, objective, groups = drawn()
    model = setting.network()
    step = hand_written.plain_sgd(Given(data, iter(objective)), model)
    for _ in range(STEPS):
        step()
    single = [batches[:1] for batches in pairs(objective, groups)]
    assert torch.allclose(flat(model), by_us(SGD(tau=hand_written.TAU), data, single)[0], atol=1e-6)


@pytest.mark.parametrize("make", [hand_written.plain_ssl_alm, hand_written.authors_ssl_alm], ids=["plain", "authors"])
def test_ssl_alm_hand_written_is_ssl_alm(make: Callable[..., Callable[[], None]]) -> None:
    data, objective, groups = drawn()
    model = setting.network()
    step = make(Given(data, iter([r for f, c in zip(objective, groups, strict=True) for r in (f, *c)])), model)
    for _ in range(STEPS):
        step()
    expected, _ = by_us(SSLALM(slack_from_first=False), data, pairs(objective, groups))
    assert torch.allclose(flat(model), expected, atol=1e-6)
    assert not torch.allclose(flat(setting.network()), expected, atol=1e-3)


def test_switching_hand_written_is_switching() -> None:
    data, objective, groups = drawn()
    expected, state = by_us(SwitchingSubgradient(), data, pairs(objective, groups))
    model = setting.network()
    given = [r for f, c in zip(objective, groups, strict=True) for r in (*c[:2], f, *c[2:])]  # test, objective, fresh
    step = hand_written.plain_switching(Given(data, iter(given)), model)
    for _ in range(STEPS):
        step()
    assert torch.allclose(flat(model), expected, atol=1e-6)
    assert 0 < state.feasible_steps < STEPS  # both branches


def test_ghost_in_the_authors_form_is_ghost() -> None:
    for solver in ("osqp", "qpsolvers", "scipy"):
        pytest.importorskip(solver)
    method, levels = StochasticGhost(p0=0.4, cap=2, alpha=0.02, decay=5.0, beta=0.03, rho=0.0005), [1, 0, 2]
    data = setting.random_dataset(400)
    rows, given, steps = hand_written.MiniBatch(data), [], []
    for level in levels:
        single, whole = ((rows.objective(b), rows.group(0, b), rows.group(1, b)) for b in (8, 8 * 2 ** (level + 1)))
        given += [*single, *whole]
        halves = [[part[start::2] for part in whole] for start in (0, 1)]
        steps.append([Batch(f, torch.stack(c)) for f, *c in (single, whole, *halves)])
    model = setting.network()
    step = hand_written.authors_ghost(method, Given(data, iter(given)), model, iter(levels))
    for _ in levels:
        step()
    expected, _ = by_us(method, data, steps, [1 / method.batch_size_probs[level] for level in levels])
    start = flat(setting.network())
    # OSQP as it is called there solves to 1e-3. beta cuts some coordinates off here, and decay shortens steps.
    assert (flat(model) - expected).norm() < 0.01 * (expected - start).norm()


@pytest.mark.parametrize("make", [hand_written.plain_sgd, hand_written.plain_ssl_alm, hand_written.plain_switching])
def test_a_plain_step_is_one_pass(make: Callable[..., Callable[[], None]]) -> None:
    model, passes = setting.network(), []
    model.register_forward_hook(lambda *_: passes.append(1))
    step = make(hand_written.MiniBatch(setting.random_dataset(400)), model)
    for _ in range(STEPS):
        step()
    assert len(passes) == STEPS


def test_hand_written_gaps_are_the_same_in_every_reading() -> None:
    group, losses = loop.Batches().made[0][2], torch.rand(128, generator=torch.Generator().manual_seed(0))
    found = [read.gaps(losses, group) for read in (loop.SLICES, loop.MASKS, loop.MATRIX)]
    assert all(torch.allclose(found[0], other) for other in found[1:])
    assert torch.equal(loop.SLICES.one_hot(group), loop.MASKS.one_hot(group))
    shuffled = loop.Batches(shuffled=True).made[0][2]
    assert not torch.allclose(found[0], loop.MASKS.gaps(losses, shuffled))


def test_a_peer_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cooper", None)
    monkeypatch.setattr(loop, "PEERS", {loop.COOPER: loop.by_cooper})
    assert loop.peers() == {}
    assert capsys.readouterr().out.startswith(f"{SKIPPED} {loop.COOPER}: ")


def test_the_loop_is_judged_on_the_same_mini_batches() -> None:
    """The same mini-batches, groups in fixed places, with the masks that most users of Cooper write."""
    times = {
        "plain SGD": 1.0,
        "descent-ascent (fixed)": 1.1,
        "descent-ascent (shuffled)": 9.0,
        "SSL-ALM, one mini-batch (fixed)": 1.3,
        "SSL-ALM, one mini-batch (shuffled)": 9.0,
        f"{loop.COOPER} (fixed, masks)": 2.4,
        f"{loop.COOPER} (fixed)": 2.0,
        f"{loop.COOPER} (shuffled)": 2.0,
    }

    def missed(**changed: float) -> int:
        found = times | {f"{loop.COOPER} ({setting})": time for setting, time in changed.items()}
        return len(loop.judged(Rounds({name: [Time(time, time)] for name, time in found.items()})).missed)

    assert missed() == 0
    assert missed(**{"fixed, masks": 2.0, "fixed": 2.4, "shuffled": 2.4}) == 1


@pytest.mark.parametrize("runs", [10, 100])
def test_a_call_of_a_stack_draws_whole_blocks(runs: int) -> None:
    stack = setting.Stack(SSLALM(), runs, 40)
    block = stack.run._groups[0]._block_size()
    assert stack.steps >= 40
    assert stack.steps % block == 0
    assert stack.steps - block < 40
    assert stack.work == runs * stack.steps


def test_rounds_alternate() -> None:
    calls: list[str] = []

    def work(name: str) -> Callable[[], int]:
        return lambda: (calls.append(name), 2)[1]

    found = alternate({"a": work("a"), "b": work("b")}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert {name: len(own) for name, own in found.times.items()} == {"a": 3, "b": 3}


def test_ratios_are_taken_round_by_round() -> None:
    """In one round the machine was slow for both; the ratio of the medians would be 4."""
    found = Rounds({"a": [Time(t, 0.0) for t in (2.0, 4.0, 80.0)], "b": [Time(t, 0.0) for t in (1.0, 1.0, 40.0)]})
    assert found.ratio("a", "b") == (2.0, 2.0, 3.0)
    uneven = Rounds({"a": [Time(t, 0.0) for t in (1.0, 9.0, 2.0)], "b": [Time(t, 0.0) for t in (1.0, 3.0, 1.0)]})
    assert uneven.ratio("a", "b") == (2.0, 1.5, 2.5)
    assert uneven.medians()["a"].cpu == 2.0


def test_a_missed_limit_has_a_status_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    checks = Checks()
    checks.at_most("x", 1.0, 2.0)
    assert checks.status == 0
    checks.at_least("y", 1.0, 2.0)
    assert checks.status == MISSED_STATUS
    assert MISSED_STATUS not in (0, 1, 2)  # 1 and 2 are Python's own, for exceptions and wrong arguments
    assert "MISSED y: 1 (wanted >= 2)" in capsys.readouterr().out


GOOD = "print('met    a target: 1 (wanted <= 2)')"
MISSED = f"print('MISSED a target: 3 (wanted <= 2)'); raise SystemExit({MISSED_STATUS})"
PARTS = {  # what a part does, what is said of it, the status of the whole
    "good": (GOOD, "1 met, 0 missed, 0 skipped, 0 parts with an error", 0),
    "short": (f"print('{SKIPPED} Cooper: No module')\n{GOOD}", f"part: {SKIPPED} Cooper: No module", 0),
    "nothing-here": (f"print('{SKIPPED} a GPU: none here')", f"part: {SKIPPED} a GPU: none here", 0),
    "missed": (MISSED, "part: MISSED a target: 3 (wanted <= 2)", 1),
    "crashed": ("import no_such_solver", "part ended with an error, status 1", 1),
    "crashed-late": (f"{GOOD}\nraise RuntimeError('a peer broke')", "part ended with an error, status 1", 1),
    "killed": (f"{GOOD}\nimport os; os.kill(os.getpid(), 9)", "part ended with an error, status -9", 1),
    "silent": ("", "part measured nothing", 1),
    "wrong-status": (
        f"raise SystemExit({MISSED_STATUS})",
        f"part ended with status {MISSED_STATUS}, which does not",
        1,
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_whole_tells_a_missed_target_from_an_error(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script, words, status = PARTS[name]
    (tmp_path / "part.py").write_text(script)
    assert every_part.main(tmp_path, ["part"]) == status
    summary = capfd.readouterr().out.rsplit("\n\n", 1)[1]
    assert words in summary


def test_one_part_that_breaks_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "first.py").write_text("import no_such_solver")
    (tmp_path / "second.py").write_text(GOOD)
    assert every_part.main(tmp_path, ["first", "second"]) == 1
    out = capsys.readouterr().out
    assert "1 met, 0 missed, 0 skipped, 1 parts with an error" in out
    assert "first ended with an error" in out
