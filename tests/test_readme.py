"""The examples of the README and the docs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fairbound.benchmark import config

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
# Other pages run where their subject is tested: loop.md in test_examples, verdict.md in auditing, keras.md in
# integrations/keras, trainers.md in integrations.
PAGES = [README, *(ROOT / "docs" / f"{name}.md" for name in ("algorithms", "data", "metrics", "classifier"))]
CHECKS = {  # by the name of a variable: what an example is about
    "result": lambda space: space["found"].c.amax(1).median() < 0.02,
    "x": lambda space: float(space["x"]) == pytest.approx(1.0, abs=1e-3),
    "fair": lambda space: space["fair"].verdict_.decision in ("holds", "undecided"),
    "found": lambda space: space["found"].metrics["demographic_parity_difference"].value > 0,
    "data": lambda space: space["data"].rows > 30 and space["data"].X.shape[1] == len(space["data"].names),
    "own": lambda space: len(space["recall"].names) == 1 and "equalized_odds" in space["constraints"].NOTIONS,
}


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=f"{page.stem}-{i}") for page in PAGES for i, block in enumerate(blocks(page))],
)
def test_example(block: str) -> None:
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(compile(block, str(README), "exec"), space)
    about = next((name for name in CHECKS if name in space), None)
    assert about is None or CHECKS[about](space)


@pytest.mark.parametrize(
    "page", [README, *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"], ids=lambda p: p.stem
)
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\[[^]\"]+\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"(?:src|tests|benchmarks|examples|docs|tools)/[\w/.-]+\.(?:py|toml|md)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [name for name in named if not (ROOT / name).exists() and not (page.parent / name).exists()]
    assert not missing


def test_the_experiment_file_of_the_data_page_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), flags=re.DOTALL)
    (tmp_path / "loans.toml").write_text(text)
    experiment = config.load(tmp_path / "loans.toml")
    assert (experiment.label, experiment.group) == ("approved", "sex")


def test_the_commands_are_at_the_top() -> None:
    top = README.read_text()[:800]
    assert all(command in top for command in ("make test ", "make test-slow", "make bench"))
