"""What is measured of runs that went wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fairbound.benchmark._measuring import Evaluator, Recorder, by_group, parts_at_end
from fairbound.training._records import Record

from ..small_study import small_plan


@pytest.fixture
def evaluator(tmp_path: Path) -> tuple[Evaluator, torch.Tensor]:
    instance = small_plan(tmp_path)._built
    problem, column = instance.problem, next(iter(instance.problem.data.groups))
    made = Evaluator(
        problem.forward, problem.loss, problem.data, column, instance.splits[0], ("train", "test")
    )
    return made, instance.starts([0, 1])


@pytest.mark.parametrize("factor", [1e30, float("nan")])
def test_a_run_that_diverged_leaves_the_others_of_its_batch(
    evaluator: tuple[Evaluator, torch.Tensor], factor: float
) -> None:
    """Infinite or NaN scores have no distances: the losses of the run say so, and the other run is
    whole."""
    made, x = evaluator
    recorder, alone = (Recorder([0] * runs) for runs in (2, 1))
    both = torch.stack([x[0], x[1] * factor])
    for one, points in ((recorder, both), (alone, x[:1])):
        runs = tuple(range(len(points)))
        record = Record(1, runs, points, points, None, {}, torch.zeros(len(points)))
        one.add(record, by_group({0: made}))
    assert not np.isfinite(recorder.records(1, 1.0)["train"]).any()
    np.testing.assert_array_equal(recorder.records(0, 1.0)["train"], alone.records(0, 1.0)["train"])
    good, bad = (parts_at_end(made, point) for point in both)
    assert bad["counts"].sum() == good["counts"].sum()
    for name, column in parts_at_end(made, x[0]).items():
        np.testing.assert_array_equal(good[name], column)
