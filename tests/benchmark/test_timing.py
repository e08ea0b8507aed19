"""Seconds per step: what is timed and what is not, by a clock that counts examples; and the file that keeps them."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import call
from small_experiment import small_experiment

from fairbound.benchmark import config, timing
from fairbound.benchmark.experiment import PreparedExperiment
from fairbound.benchmark.store import Store, Timing
from fairbound.benchmark.timing import Seconds, measure
from fairbound.data import load

EXAMPLE = {
    "SGD": Timing(wall=0.002, cpu=0.0015, spread=1e-4, plain=0.0005, steps=500),
    "Größe, ≤ 1": Timing(wall=1 / 3, cpu=0.1, spread=0.0, plain=0.1, steps=1),
}
SYSTEM = {"date": "2025-01-31", "cpu": "a processor"}


@pytest.fixture
def prepared() -> PreparedExperiment:
    """Experiment 1 with a small network, on the synthetic census."""
    experiment = replace(config.load("income-ok-race"), hidden=(4,))
    return PreparedExperiment.of(experiment, load("synthetic:OK"), splits=1)


class Clock:
    """Every example that passes through the model takes a second, half of it of the processor."""

    def __init__(self) -> None:
        self.examples = 0

    def counting(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def counted(x: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
            self.examples += len(inputs)
            return forward(x, inputs)

        return counted

    def __call__(self) -> Seconds:
        return Seconds(float(self.examples), self.examples / 2)


@pytest.fixture
def clock(prepared: PreparedExperiment, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    prepared.__dict__["forward"] = made.counting(prepared.forward)  # the cached property
    plain = prepared.network

    def network(self: PreparedExperiment) -> torch.nn.Module:
        module = plain()
        module.register_forward_hook(lambda _, inputs, out: setattr(made, "examples", made.examples + len(inputs[0])))
        return module

    monkeypatch.setattr(PreparedExperiment, "network", network)
    monkeypatch.setattr(timing, "now", made)
    return made


def with_rows(prepared: PreparedExperiment, *rows: config.Row) -> PreparedExperiment:
    """The same with these rows; what was cached, and may count, stays."""
    made = replace(prepared, experiment=replace(prepared.experiment, rows=rows))
    made.__dict__.update({name: value for name, value in vars(prepared).items() if name in ("data", "forward")})
    return made


def only(prepared: PreparedExperiment, *names: str) -> PreparedExperiment:
    return with_rows(prepared, *(row for row in prepared.experiment.rows if row.name in names))


def test_a_step_takes_what_its_examples_take(prepared: PreparedExperiment, clock: Clock) -> None:
    """Nothing but the examples of its own steps is on the clock: no evaluation, no start, no other row's steps."""
    names = ["SGD", "SGD-Fairret", "SSL-ALM", "SSw", "SSw, batch 64", "Descent-ascent, decaying steps"]
    found = measure(only(prepared, *names), rounds=2, steps=3)
    assert list(found) == names
    rows = {row.name: row.examples_per_step(groups=2) for row in prepared.experiment.rows}
    for name, one in found.items():
        assert one == Timing(wall=rows[name], cpu=rows[name] / 2, spread=0.0, plain=rows[name] / 2, steps=6)
    assert [rows[name] for name in names[:4]] == [8, 8, 40, 40]


def test_levels_are_weighted_by_their_probabilities(prepared: PreparedExperiment, clock: Clock) -> None:
    """Not by how often they came: with a step or two of each level the mean is exact."""
    (row,) = only(prepared, "Ghost, rho 0.1").experiment.rows
    row = replace(row, settings={"p0": 0.4, "cap": 3})
    small = with_rows(prepared, row)
    law = [0.4 * 0.6**level for level in range(4)]
    # one mini-batch, the large one, and its halves once more: of 8 examples, and 8 of each of two groups
    expected = sum(p / sum(law) * 24 * (1 + 2 * 2 ** (level + 1)) for level, p in enumerate(law))
    for steps, timed in ((1, 4), (9, 8)):
        found = measure(small, rounds=1, steps=steps)[row.name]
        assert found.wall == pytest.approx(expected, rel=1e-12)
        assert found.steps == timed


def test_the_median_of_rounds_counts_and_their_spread(
    prepared: PreparedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: Iterator[Seconds] = iter([Seconds(w, w / 2) for w in (9.0, 1.0, 3.0, 2.0, 100.0)])
    monkeypatch.setattr(timing.RowLoop, "__init__", lambda self, prepared, row: None)
    monkeypatch.setattr(timing.RowLoop, "timed", lambda self, steps: steps)
    monkeypatch.setattr(timing.RowLoop, "seconds", lambda self, steps: next(taken))
    monkeypatch.setattr(timing.PlainLoop, "seconds", lambda self, steps: Seconds(1.0, 0.5))
    found = measure(only(prepared, "SGD"), rounds=5, steps=7)["SGD"]
    assert found == Timing(wall=3.0, cpu=1.5, spread=3.5, plain=0.5, steps=35)
    assert (found.times_plain, found.steps_in(30)) == (3.0, 10)


def test_rows_take_turns_and_equal_ones_share(prepared: PreparedExperiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """ALM differs from SSL-ALM in a number, SSw's variants in a switch; two sizes of plain steps go along."""
    names = ("SSL-ALM", "ALM", "SSw", "SSw, worst of the test", "SSw, batch 64")
    order: list[str] = []

    def watched(loop: type[Any], name: Callable[[Any], str]) -> None:
        original = loop.seconds

        def seconds(self: Any, steps: int) -> Seconds:
            order.append(name(self))
            return original(self, steps)

        monkeypatch.setattr(loop, "seconds", seconds)

    watched(timing.RowLoop, lambda loop: type(loop.method).__name__)
    watched(timing.PlainLoop, lambda loop: f"plain {loop.examples}")
    turns: list[tuple[int, int]] = []
    found = measure(only(prepared, *names), rounds=2, steps=1, progress=lambda done, total: turns.append((done, total)))
    assert found["ALM"] is not found["SSw"]
    assert found["ALM"] == found["SSL-ALM"]
    assert turns == [(done, 12) for done in range(1, 13)]
    once = ["SSLALM", "plain 40", "SwitchingSubgradient", "SwitchingSubgradient", "SwitchingSubgradient", "plain 320"]
    assert order[-12:] == once * 2  # before that: warming up


def test_both_clocks_are_read_around_the_steps_of_a_turn(
    prepared: PreparedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clocks that tick when they are read: a turn reads each twice, so its steps share one tick."""
    wall, cpu = itertools.count(0, 6), itertools.count(0, 3)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(wall)))
    monkeypatch.setattr(timing.time, "process_time", lambda: float(next(cpu)))
    found = measure(only(prepared, "SGD", "SSL-ALM"), rounds=2, steps=3)
    for one in found.values():
        assert one == Timing(wall=2.0, cpu=1.0, spread=0.0, plain=1.0, steps=6)


def test_one_thread_while_measuring_and_the_others_given_back(
    prepared: PreparedExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(timing, "now", lambda: threads.append(torch.get_num_threads()) or Seconds(0.0, 0.0))
    torch.set_num_threads(2)
    try:
        measure(only(prepared, "SGD"), rounds=1, steps=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert set(threads) == {1}


def test_a_run_that_diverged_starts_again(prepared: PreparedExperiment) -> None:
    loop = timing.RowLoop(prepared, prepared.experiment.rows[2])
    loop.x = loop.x * torch.nan
    loop.seconds(1)
    assert loop.x.isfinite().all()


def test_too_few_rounds_or_steps(prepared: PreparedExperiment) -> None:
    with pytest.raises(ValueError, match="rounds must be a whole number, at least 1, got 0"):
        measure(prepared, rounds=0)
    with pytest.raises(ValueError, match="steps must be a whole number, at least 1, got -1"):
        measure(prepared, steps=-1)


# In the store ---------------------------------------------------------------------------------------------------------


def test_times_are_kept_by_experiment(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    assert store.times("mine") is None
    assert store.timed_on("mine") is None
    assert not store.folder.exists()
    store.note_times("mine", SYSTEM, EXAMPLE)
    assert store.times("mine") == EXAMPLE
    assert store.timed_on("mine") == SYSTEM
    assert store.times("other") is None
    Store(store.folder).note_times("mine", SYSTEM, {"SGD": EXAMPLE["SGD"]})
    assert list(store.times("mine") or {}) == ["SGD"]
    assert store.systems() == []
    assert store.keys() == []
    assert sorted(path.name for path in store.folder.iterdir()) == ["runs", "store.json", "times-mine.json"]


def flipped(text: str) -> str:
    return text.replace("0.0015", "0.0016")


def of_another_version(text: str) -> str:
    from fairbound.benchmark.fingerprint import key

    content = {"system": SYSTEM, "rows": {"SGD": {"wall": 1.0}}}
    return json.dumps(content | {"checksum": key(content)})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (flipped, "its content does not match the checksum in it"),
        (lambda text: text[:-10], "it holds no JSON of this store"),
        (lambda text: "", "it holds no JSON of this store"),
        (lambda text: "[1]", "it holds no JSON of this store"),
        (lambda text: "{}", "its content does not match the checksum in it"),
        (lambda text: text.replace("0.0015", "NaN"), "its content is not what this fairbound writes"),
        (of_another_version, "its content is not what this fairbound writes"),
    ],
)
def test_a_damaged_file_is_named_and_counts_as_missing(tmp_path: Path, change: Callable[[str], str], said: str) -> None:
    store = Store(tmp_path)
    store.note_times("mine", SYSTEM, EXAMPLE)
    path = tmp_path / "times-mine.json"
    path.write_text(change(path.read_text()))
    with pytest.warns(UserWarning, match="is damaged") as caught:
        assert store.times("mine") is None
    (warning,) = caught
    assert str(warning.message).startswith(f"{path} is damaged: {said}")
    assert "measure again with `fairbound time`" in str(warning.message)
    assert warning.filename == __file__
    store.note_times("mine", SYSTEM, EXAMPLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.times("mine") == EXAMPLE


def test_times_that_are_no_numbers_are_not_kept(tmp_path: Path) -> None:
    wrong = replace(EXAMPLE["SGD"], cpu=float("nan"))
    with pytest.raises(ValueError, match="settings are finite numbers"):
        Store(tmp_path).note_times("mine", SYSTEM, {"SGD": wrong})
    assert not (tmp_path / "times-mine.json").exists()


# On the command line --------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [row.name for row in config.load("income-ok-race").rows]
    times = {name: replace(EXAMPLE["SGD"], wall=0.002 + i / 1000) for i, name in enumerate(names)}
    asked: list[int] = []

    def measured(
        prepared: PreparedExperiment, *, rounds: int, steps: int, progress: Callable[[int, int], None]
    ) -> dict[str, Timing]:
        asked.append(rounds)
        progress(1, 1)
        return times

    monkeypatch.setattr("fairbound.benchmark.timing.measure", measured)
    printed = call("time", "income-ok-race", "--source", "synthetic:OK", "--rounds", "3", "--out", tmp_path / "r")
    assert asked == [3]
    lines = printed.splitlines()
    assert all(len(line) <= 80 for line in lines[:-1])  # the last one names the folder
    assert "synthetic data: generated, not real" in lines
    (sgd,) = [line.split() for line in lines if line.startswith("SGD  ")]
    assert sgd == ["SGD", "8", "1.50", "2.00", "3.0", "15,000", "30,000", "25,000"]
    assert "busy" not in printed
    store = Store(tmp_path / "r")
    assert store.times("income-ok-race") == times
    system = store.timed_on("income-ok-race")
    assert system is not None
    assert system["threads"] == 1
    assert system["torch"] == torch.__version__


def test_the_command_says_where_the_machine_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [row.name for row in config.load("income-ok-race").rows]
    times = {name: replace(EXAMPLE["SGD"], spread=0.0006) for name in names}
    monkeypatch.setattr("fairbound.benchmark.timing.measure", lambda prepared, **options: times)
    printed = call("time", "income-ok-race", "--source", "synthetic:OK", "--out", tmp_path)
    assert "The rounds differ by up to 40%: the machine is busy." in printed


def test_a_small_experiment_for_real(tmp_path: Path) -> None:
    """Every part together, a few steps of two methods, one with random sizes."""
    file = tmp_path / "small.toml"
    file.write_text(
        small_experiment(
            """
  { name = "SGD", method = "SGD", steps = 10 },
  { name = "Ghost", method = "StochasticGhost", steps = 10, settings = { cap = 2 } },
"""
        )
    )
    call("time", file, "--source", "synthetic:OK", "--rounds", "1", "--out", tmp_path / "results")
    times = Store(tmp_path / "results").times("small")
    assert times is not None
    assert [(name, one.steps) for name, one in times.items()] == [("SGD", 80), ("Ghost", 78)]
    assert all(one.wall > 0 and one.plain > 0 for one in times.values())
