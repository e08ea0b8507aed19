"""docs/background/capabilities.md is true: a "yes" of ours has a test, and what peers are said to
have is in them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "background" / "capabilities.md").read_text()
HEAD, _, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|")
]


# The table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_yes_has_a_test_and_a_no_has_none(row: list[str]) -> None:
    assert len(row) == len(HEAD)
    ours, named = row[1], row[-1].strip("`")
    assert re.match(r"(yes|no)\b", ours)
    if ours.startswith("no"):
        assert named == ""
        return
    path, _, test = named.partition("::")
    assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), flags=re.MULTILINE), named


def test_the_table_has_the_rows_that_users_ask_for() -> None:
    text = " ".join(row[0] for row in ROWS)
    for word in (
        "equality",
        "proxy",
        "indexed",
        "implicit",
        "dual step for each",
        "dual optimizers",
        "restarts",
        "penalty updates",
        "switching",
        "SQP",
        "DDP",
        "FSDP",
        "resume by name",
        "KKT",
    ):
        assert word in text, word


def sources(package: ModuleType) -> str:
    found = [package.__file__] if package.__file__ else []
    found += [
        spec.origin
        for part in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if (spec := part.module_finder.find_spec(part.name, None)) and spec.origin  # type: ignore[call-arg]
    ]
    return "\n".join(Path(path).read_text() for path in found)


@pytest.mark.parametrize(
    ("peer", "package"), [("Cooper", "cooper"), ("humancompatible-train", "humancompatible.train")]
)
def test_what_a_peer_is_said_to_have_is_in_it(peer: str, package: str) -> None:
    pytest.importorskip(
        package, reason=f"{peer} is not installed: pip install -r benchmarks/requirements.txt"
    )
    text = sources(importlib.import_module(package))
    names = re.findall(r"`(\w+)[^`]*`", " ".join(row[HEAD.index(peer)] for row in ROWS))
    assert len(names) > 4
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
