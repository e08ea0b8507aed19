"""`fairbound new algorithm`: the file that it writes is certified, and runs beside the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import OWN_PROBLEM, call

from fairbound import Algorithm, MultiplierMethod, check_algorithm
from fairbound.benchmark._custom_algorithm import load_custom_algorithm


@pytest.mark.parametrize(("options", "kind"), [((), MultiplierMethod), (("--general",), Algorithm)])
def test_the_template_is_certified_and_runs_on_a_board(
    options: tuple[str, ...], kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = call("new", "algorithm", "my_file.py", *options)
    assert "fairbound board income-ok-race --short --algorithm my_file.py:MyMethod" in said
    method = load_custom_algorithm("my_file.py:MyMethod").method
    assert issubclass(method, MultiplierMethod) == (kind is MultiplierMethod)
    assert check_algorithm(method()).startswith("MyMethod passes 11 checks")
    Path("five_means.py").write_text(OWN_PROBLEM)
    short = ("--method", "SGD", "--seeds", "2", "--steps", "100", "--jobs", "1")
    assert "MyMethod" in call(
        "board", "five_means.py", *short, "--algorithm", "my_file.py:MyMethod"
    )


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "my_file.py"
    file.write_text("mine")
    said = " ".join(call("new", "algorithm", file, code=1).split())
    assert f"{file} already exists; choose another name" in said
    assert file.read_text() == "mine"
    assert "a method is a Python file" in call("new", "algorithm", tmp_path / "my_file", code=1)
    assert "there is no folder" in call(
        "new", "algorithm", tmp_path / "nowhere" / "my_file.py", code=1
    )
