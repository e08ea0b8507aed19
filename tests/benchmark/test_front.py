"""The front of loss against violation."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from fairbound.benchmark import _plan as plan
from fairbound.benchmark._engine import Engine
from fairbound.benchmark._front import on_front
from fairbound.benchmark._results import Results
from fairbound.benchmark._sections import study_section
from fairbound.benchmark._store import Store

from ..small_study import small_plan, small_study

SGD = '{ name = "SGD", method = "SGD", steps = 30, settings = { tau = 0.05 } }'
ASCENT = (
    '{ name = "Ascent", method = "DescentAscent", steps = 10, settings = { tau = 0.05, eta = 0.1,'
    " y_max = inf, second = false } }"
)


def test_the_front_by_hand() -> None:
    points = [
        (1.0, 3.0),
        (2.0, 2.0),
        (3.0, 1.0),
        (2.0, 2.5),
        (3.5, 1.0),
        (1.0, 3.0),
        (0.0, math.inf),
        (math.nan, 0.0),
    ]
    #         on          on          on          by (2, 2)   by (3, 1)   equal to the first: on;
    # not finite: off
    assert on_front(points) == [True, True, True, False, False, True, False, False]
    assert on_front([]) == []
    assert on_front([(math.inf, 1.0)]) == [False]


def test_the_front_against_its_other_description() -> None:
    """Sorted by loss, a point is on the front where its violation is below all before it; 50 random
    sets."""
    rng = random.Random(0)
    for _ in range(50):
        points = [(rng.random(), rng.random()) for _ in range(12)]  # no two are equal
        found = {point for point, there in zip(points, on_front(points), strict=True) if there}
        lowest, wanted = math.inf, set()
        for point in sorted(points):
            if point[1] < lowest:
                lowest = point[1]
                wanted.add(point)
        assert found == wanted


def results_of(folder: Path, entries: str) -> Results:
    (folder / "small.toml").write_text(small_study(entries, seeds=2, records=2))
    made, store = small_plan(folder), Store(folder / "results")
    made.compute(store, Engine())
    return Results.read(made.stored(store), store)


def test_the_front_is_shown_where_examples_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of 40 examples: as many as 30 of 8, and 10 of 24
    monkeypatch.setattr(plan, "REFERENCE_STEPS", 6)
    results = results_of(tmp_path, f"{SGD}, {ASCENT}")
    section = study_section(results)
    assert section.variant == "examples"  # though its runs were planned by the entries' own steps
    frame = section.tables["loss"].frame
    assert frame["row"].tolist() == ["SGD", "Ascent"]
    assert (frame["steps"] * frame["examples per step"]).tolist() == [240, 240]
    assert frame["CPU seconds"].tolist() == [
        30 * results.seconds["SGD"],
        10 * results.seconds["Ascent"],
    ]
    assert frame["CPU seconds"].min() > 0
    fields = {
        part: [(f"{part} loss", "mean"), (f"{part} violation", "mean")]
        for part in ("train", "test")
    }
    points = {part: frame[columns].to_numpy() for part, columns in fields.items()}
    wanted = [
        " and ".join(part for part in points if on_front(points[part].tolist())[i]) or None
        for i in range(2)
    ]
    assert frame["front"].tolist() == wanted
    assert any(wanted)


def test_no_front_where_examples_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "REFERENCE_STEPS", 6)
    results = results_of(tmp_path, f"{SGD.replace('30', '31')}, {ASCENT}")
    section = study_section(results)
    assert section.variant == "paper"
    assert "front" not in section.tables["loss"].frame


def test_runs_that_diverged_are_named_and_keep_their_row_off_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "REFERENCE_STEPS", 6)
    results = results_of(tmp_path, f"{SGD}, {ASCENT}")
    lost = results.runs["SGD"][1].result
    assert lost is not None
    lost.tables["records"]["train"][:] = math.inf
    table = study_section(results).tables["loss"]
    assert table.frame["front"].tolist()[0] in (None, "test")
    assert table.frame["front"].tolist()[1] in ("train", "train and test")
    assert "Runs that diverged: SGD (1 of 2)." in table.notes
