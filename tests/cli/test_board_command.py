"""`fairbound board` as its user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import call

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "board.md"
PROBLEM = PAGE.read_text().split("```python\n")[1].split("```")[0]


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "five_means.py"
    path.write_text(PROBLEM)
    return path


def board(problem: Path, *more: str | Path, code: int = 0) -> str:
    there = problem.parent
    options = ("--jobs", "1", "--out", there / "results", "--to", there / "board", "--seeds", "2", "--epochs", "5")
    return call("board", problem, *options, *more, code=code)


def test_a_problem_of_ones_own_gives_a_ranking_and_a_page(problem: Path, tmp_path: Path) -> None:
    said = board(problem, "--method", "Descent-ascent", "--method", "SGD")
    assert "2 methods x 1 problems, 2 seeds, default rules" in said
    assert "a short run" in said
    assert "Descent-ascent" in said
    assert max(map(len, said.splitlines())) <= 80 or str(tmp_path) in max(said.splitlines(), key=len)
    page = (tmp_path / "board" / "index.html").read_text()
    assert "five-means" in page
    assert "A short run" in page
    assert (tmp_path / "board" / "data" / "scores.csv").read_text().count("\n") == 3
    runs = sorted((tmp_path / "results" / "runs").iterdir())
    assert len(runs) == 4
    before = [path.stat().st_mtime_ns for path in runs]
    assert board(problem, "--method", "Descent-ascent", "--method", "SGD").count("SGD")
    assert [path.stat().st_mtime_ns for path in runs] == before


def test_a_method_of_ones_own_beside_the_others(problem: Path, tmp_path: Path) -> None:
    own = Path(__file__).parents[2] / "examples" / "own_algorithm.py"
    said = board(problem, "--method", "SGD", "--algorithm", f"{own}:ExponentiatedAscent")
    assert "ExponentiatedAscent" in said
    entry = tmp_path / "entry.toml"
    entry.write_text(f'[[entries]]\nname = "Mine"\nmethod = "{own}:ExponentiatedAscent"\n')
    assert "Mine" in board(problem, "--method", "SGD", "--entry", entry)


def test_the_list() -> None:
    said = call("board", "--list")
    assert "income-ok-race" in said
    assert "hs71" in said
    assert "SSL-ALM, lagged" in said


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--method", "SSLALM"), "there is no entry 'SSLALM'; the nearest is 'SSL-ALM'"),
        (("--algorithm", "nowhere.py:Mine"), "there is no file nowhere.py"),
        (("--entry", "nowhere.toml"), "there is no file nowhere.toml, which was to be a list of entries"),
        (("hs72",), "there is no problem 'hs72'; the nearest is 'hs7"),
        (("nowhere.toml",), "there is no file nowhere.toml, which was to be a problem"),
    ],
)
def test_wrong_input_is_a_sentence(problem: Path, more: tuple[str, ...], sentence: str) -> None:
    said = " ".join(board(problem, *more, code=1).split())
    assert said.startswith("Error: ")
    assert sentence in said
