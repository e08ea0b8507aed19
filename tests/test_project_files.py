"""What stands beside the package: citation, workflow and issue forms say what is true of it."""

import re
from pathlib import Path

import pytest
import yaml

import fairbound

ROOT = Path(__file__).parents[1]


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    assert str(citation["version"]) == fairbound.__version__
    assert [author["family-names"] for author in citation["references"][0]["authors"]] == [
        "Kliachkin",
        "Lepšová",
        "Bareilles",
        "Mareček",
    ]


def test_the_workflow_calls_targets_of_the_makefile():
    text = (ROOT / ".github/workflows/test.yml").read_text()
    targets = {
        *re.findall(r"run: make ([a-z-]+)", text),
        *read(".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["target"],
    }
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"test", "test-slow", "test-keras", "test-trainers", "package"} <= targets
    assert targets <= known, "a target that the Makefile has not"


@pytest.mark.parametrize("form", ["bug", "method", "problem"])
def test_issue_forms_have_what_github_requires(form):
    found = read(f".github/ISSUE_TEMPLATE/{form}.yml")
    assert {"name", "description", "body"} <= found.keys()
    ids = [part["id"] for part in found["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    assert all(
        "label" in part["attributes"] for part in found["body"] if part["type"] != "markdown"
    )
