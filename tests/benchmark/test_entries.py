"""Entries of a board as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairbound.algorithms import primal
from fairbound.benchmark._entry import primal_step
from fairbound.benchmark._store import Store
from fairbound.benchmark._study import load_entries, load_study
from fairbound.benchmark._task import Task, TaskRun

OWN = Path(__file__).parents[2] / "examples" / "own_algorithm.py"


def written(folder: Path, text: str) -> Path:
    path = folder / "entry.toml"
    path.write_text("[[entries]]\n" + text)
    return path


def test_ours_are_the_classes_own_defaults() -> None:
    """The default rules: beside the variants, no setting is stated."""
    ours = load_study("board").entries
    stated = {entry.name: dict(entry.settings) for entry in ours if entry.settings}
    assert stated == {"SSL-ALM, lagged": {"samples": 1, "lag": True}, "ALM": {"mu": 0}}
    for entry in ours:
        if not entry.settings:
            assert entry.algorithm(100) == entry.algorithm_type()
        assert (1 if entry.method not in ("SGD", "AdaptivePI") else 0) <= len(entry.space) <= 5


def test_an_entry_names_how_x_moves(tmp_path: Path) -> None:
    """The step is part of what is asked for: results of another one are not reused."""
    head = 'name = "A"\nmethod = "DescentAscent"\n'
    own, adam, slow = (
        load_entries(written(tmp_path, head + line))[0]
        for line in (
            "",
            'primal = { name = "Adam", lr = 0.02 }\n',
            'primal = { name = "SGD", lr = 0.001, momentum = 0.5 }\n',
        )
    )
    assert own.primal_on({}) is None
    assert adam.primal_on({}) == primal.Adam(lr=0.02)
    assert slow.primal_on({}) == primal.SGD(lr=0.001, momentum=0.5)
    assert adam.described(10) == f"{own.described(10)} under {primal.Adam(lr=0.02)!r}"
    store = Store(tmp_path)
    for entry in (own, adam, slow):
        Task("hs7", (entry,), (TaskRun(0, 0),), "solve", limit=80).complete(
            store, lambda share: None
        )
    results = list(store.results())
    assert len(results) == 3
    assert len({float(result.tables["records"]["loss"][-1]) for result in results}) == 3


def test_the_primal_step_of_a_problem_is_that_of_multiplier_methods(tmp_path: Path) -> None:
    """Which say no other; general algorithms have steps of their own."""
    of_problem = {"name": "Adam", "lr": 0.02}
    multipliers, sgd, general = load_entries(
        written(
            tmp_path,
            'name = "A"\nmethod = "DescentAscent"\n[[entries]]\nname = "B"\nmethod = "SGD"\nprimal'
            ' = { name = "SGD" }\n[[entries]]\nname = "C"\nmethod = "StochasticGhost"\n',
        )
    )
    assert multipliers.primal_on(of_problem) == primal_step(of_problem) == primal.Adam(lr=0.02)
    assert multipliers.described(10, of_problem).endswith(f" under {primal.Adam(lr=0.02)!r}")
    assert sgd.primal_on(of_problem) == primal.SGD()
    assert general.primal_on(of_problem) is None


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.read_text())
    (entry,) = load_entries(
        written(tmp_path, 'name = "Mine"\nmethod = "mine.py:ExponentiatedAscent"\nauthors = "me"\n')
    )
    assert entry.algorithm(10).__class__.__name__ == "ExponentiatedAscent"
    assert entry.authors == "me"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('name = "A"\nmethod = "SSLAML"\n', "there is no method 'SSLAML'; the nearest is 'SSLALM'"),
        (
            'name = "A"\nmethod = "SGD"\nsetings = {}\n',
            "there is no key 'setings'; the nearest is 'settings'",
        ),
        (
            'name = "A"\nmethod = "SGD"\nsettings = { tau = -1 }\n',
            "tau must be a finite number >= 0",
        ),
        (
            'name = "A"\nmethod = "SGD"\nsettings = { eta = 1 }\n',
            "there is no setting of SGD 'eta'",
        ),
        (
            'name = "A"\nmethod = "SGD"\nspace = { tau = [1, 0.1] }\n',
            "the space of tau is low < high, both positive",
        ),
        ('name = "A"\nmethod = "SGD"\nspace = { eta = [0.1, 1] }\n', "there is no setting 'eta'"),
        ('name = "A"\nmethod = "nowhere.py:Mine"\n', "there is no file"),
        (
            'name = "A"\nmethod = "SGD"\n[[entries]]\nname = "A"\nmethod = "SGD"\n',
            "2 entries are called 'A'",
        ),
        ('name = "A"\n', "entry 'A': the key 'method' is missing"),
        (
            'name = "A"\nmethod = "SGD"\nprimal = { name = "Adamm" }\n',
            "there is no primal 'Adamm'; the nearest is 'Adam'",
        ),
        ('name = "A"\nmethod = "SGD"\nprimal = { lr = 0.1 }\n', "there is no primal ''"),
        (
            'name = "A"\nmethod = "SGD"\nprimal = { name = "Adam", lr = -1.0 }\n',
            "Adam: lr must be a finite number >= 0",
        ),
        ('name = "A"\nmethod = "SGD"\nprimal = { name = "Adam", tau = 0.1 }\n', "tau"),
        (
            'name = "A"\nmethod = "StochasticGhost"\nprimal = { name = "Adam", lr = 0.02 }\n',
            "StochasticGhost has a step of its own",
        ),
    ],
)
def test_wrong_entries_are_sentences(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        load_entries(written(tmp_path, text))
