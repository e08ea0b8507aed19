"""What is measured of runs that went wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fairbound.benchmark.evaluation import Evaluator, Recorder
from fairbound.benchmark.executor import Job, plan
from fairbound.training.functional import initial_points

from ..small_experiment import small_experiment

SGD = '{ name = "SGD", method = "SGD", steps = 2, settings = { tau = 0.05 } }'


@pytest.fixture
def evaluator(tmp_path: Path) -> tuple[Evaluator, torch.Tensor]:
    path = tmp_path / "mine.toml"
    path.write_text(small_experiment(SGD))
    prepared = plan(Job(experiment=str(path), source="synthetic:OK")).prepared
    return prepared.evaluator(0, ("train", "test")), initial_points(prepared.network, [0, 1])


@pytest.mark.parametrize("factor", [1e30, float("nan")])
def test_a_run_that_diverged_leaves_the_others_of_its_batch(
    evaluator: tuple[Evaluator, torch.Tensor], factor: float
) -> None:
    """Infinite or NaN scores have no distances: the losses of the run say so, and the other run is whole."""
    measure, x = evaluator
    recorder, alone = (Recorder({0: measure}, [0] * runs) for runs in (2, 1))
    both = torch.stack([x[0], x[1] * factor])
    recorder.add(1, [0, 1], both)
    alone.add(1, [0], x[:1])
    good, bad = recorder.tables(both, torch.zeros(2, 2), torch.zeros(2))
    (wanted,) = alone.tables(x[:1], torch.zeros(1, 2), torch.zeros(1))
    assert not np.isfinite(bad["records"]["train"]).any()
    assert bad["end"]["counts"].sum() == good["end"]["counts"].sum()
    for name, column in wanted["end"].items():
        np.testing.assert_array_equal(good["end"][name], column)
