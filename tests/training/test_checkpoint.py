"""A run that goes on from a checkpoint is the whole run; a disk that fails costs the checkpoint
alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import problems
import pytest
import torch

from fairbound import DescentAscent, primal, run
from fairbound.training._checkpoint import Checkpoint
from fairbound.training._runner import Result, Run

F64, CPU = torch.float64, torch.device("cpu")
STEPS = 100
# One grows its multipliers for ever, since no x is feasible; the other's step is too long, |1 - 2
# tau| = 1.04.
METHODS = [DescentAscent(tau=0.05, eta=0.1), DescentAscent(tau=1.02, eta=0.0)]


def begun(checkpoint: Checkpoint | None, **settings: Any) -> Run:
    known = problems.infeasible()
    problem, (split,), cells = problems.table_of([known])
    sampler = problems.sampler_for(split, cells, 1)
    return run(
        problem,
        METHODS,
        sampler,
        known.start,
        STEPS,
        every=1,
        compile=False,
        checkpoint=checkpoint,
        **settings,
    )


def at(path: Path, every_s: float = 0.0) -> Checkpoint:
    return Checkpoint(path, lambda: "mine", lambda own: None, every_s)


def interrupted_after(steps: int, checkpoint: Checkpoint, **settings: Any) -> None:
    """The checkpoint of a step is written after the caller has seen its record."""
    going = begun(checkpoint, **settings)
    for record in going:
        if record.step == steps + 1:
            break
    going._records.close()


def same(left: Result, right: Result) -> None:
    for name in ("x", "output", "multipliers", "skipped"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    assert left.monitors == right.monitors
    assert left.infeasible == right.infeasible
    assert left.diverging == right.diverging


@pytest.mark.parametrize(
    ("steps", "settings"),
    [(3, {}), (STEPS - 2, {}), (60, {"primal": primal.Adam(lr=0.05)})],
    ids=str,
)
def test_a_resumed_run_has_the_end_and_the_diagnosis_of_the_whole(
    steps: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    whole = begun(None, **settings).result()
    if not settings:
        assert "the multipliers still grow" in str(whole.infeasible[0])
        assert whole.infeasible[1] is None
        assert whole.diverging[0] is None
        assert "the run diverges; use a smaller step" in str(whole.diverging[1])
    interrupted_after(steps, at(tmp_path / "run.pt"), **settings)
    resumed = begun(at(tmp_path / "run.pt"), **settings)
    records = list(resumed)
    assert [record.step for record in records] == [*range(steps + 1, STEPS + 1)]
    same(resumed.result(), whole)


def test_what_the_caller_measured_is_given_back(tmp_path: Path) -> None:
    restored: list[Any] = []
    interrupted_after(
        5, Checkpoint(tmp_path / "run.pt", lambda: {"loss": [1.0, 2.0]}, restored.append, 0.0)
    )
    assert restored == []
    begun(Checkpoint(tmp_path / "run.pt", dict, restored.append, 0.0)).result()
    assert restored == [{"loss": [1.0, 2.0]}]


def test_it_is_written_when_it_is_due(tmp_path: Path) -> None:
    interrupted_after(20, at(tmp_path / "run.pt", every_s=3600.0))
    assert list(tmp_path.iterdir()) == []


# A disk that fails --------------------------------------------------------------------------------


def cut_off(error: Exception) -> Callable[..., None]:
    """`torch.save` that fails after some bytes."""

    def save(_: Any, path: Path) -> None:
        Path(path).write_bytes(b"PK" + bytes(100))
        raise error

    return save


def refuse(*_: Any) -> None:
    raise OSError("read-only file system")


FAILURES: dict[str, tuple[Any, str, Callable[..., None]]] = {
    "no space": (torch, "save", cut_off(OSError("no space left on device"))),
    "torch's writer": (
        torch,
        "save",
        cut_off(RuntimeError("PytorchStreamWriter failed writing file")),
    ),
    "no replacement": (os, "replace", refuse),
}
every_failure = pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)


@every_failure
def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    failure: tuple[Any, str, Callable[..., None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = at(tmp_path / "run.pt")
    kept.save({"step": 1, "x": torch.arange(3.0)})
    monkeypatch.setattr(*failure)
    kept.save({"step": 2, "x": torch.zeros(3)})
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]
    found = kept.load(CPU)
    assert found is not None
    assert (found["step"], found["own"]) == (1, "mine")
    assert torch.equal(found["x"], torch.arange(3.0))
    kept.save({"step": 3, "x": torch.ones(3)})
    assert kept.load(CPU)["step"] == 3  # type: ignore[index]


@every_failure
def test_a_first_checkpoint_that_cannot_be_written_is_none(
    failure: tuple[Any, str, Callable[..., None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*failure)
    whole, going = begun(None).result(), begun(at(tmp_path / "run.pt")).result()  # the run goes on
    same(going, whole)
    assert list(tmp_path.iterdir()) == []
    assert at(tmp_path / "run.pt").load(CPU) is None


@pytest.mark.parametrize("share", [0.0, 0.99])
def test_a_file_that_was_cut_off_counts_as_none(share: float, tmp_path: Path) -> None:
    interrupted_after(50, at(tmp_path / "run.pt"))
    file = tmp_path / "run.pt"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    resumed = begun(at(file))
    assert next(iter(resumed)).step == 1
    same(resumed.result(), begun(None).result())
