"""Every code block of the README and of the pages of docs/ runs as it stands; links and files that
they name exist."""

from __future__ import annotations

import importlib
import inspect
import io
import re
import sys
import types
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import fairbound
from fairbound.benchmark import _study as study

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(ROOT / "tools")]
import check_site  # noqa: E402
import generate  # noqa: E402

README = ROOT / "README.md"
PAGES = [
    README,
    *sorted(page for page in DOCS.rglob("*.md") if not {"_build", "gallery"} & set(page.parts)),
]
RUN_ELSEWHERE = {  # pages that run where their subject is tested
    "guides/loop.md": "tests/test_examples.py",
    "guides/many_groups.md": "tests/test_examples.py",
    "guides/board.md": "tests/benchmark/test_board.py",
    "guides/from_cooper.md": "tests/test_peers.py",
    "guides/keras.md": "tests/integrations/keras/test_example.py",
    "guides/trainers.md": "tests/integrations/test_trainers_page.py",
    "background/capabilities.md": "tests/test_peers.py",
}
ROUND = {"0.001", "0.005", "0.010", "1.00"}  # bounds and tolerances
CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {  # what the code of a page must have reached
    "guides/stacked_runs.md": lambda space: bool(
        space["evaluation"].c.amax(1).median() < 0.02 and abs(float(space["x"]) - 1) < 1e-3
    ),
    "README.md": lambda space: space["fair"].verdict_.decision == "holds",
    "guides/classifier.md": lambda space: space["fair"].verdict_.decision in ("holds", "undecided"),
    "guides/data.md": lambda space: space["data"].X.shape[1] == len(space["data"].names),
    "background/metrics.md": lambda space: (
        space["audited"].metrics["demographic_parity_difference"].value > 0
    ),
    "reference/constraints.md": lambda space: "equalized_odds" in space["constraints"].NOTIONS,
}

# what they show is what their code prints
SHOW_OUTPUT = {"README.md", "start/loop.md", "guides/choosing_a_method.md"}


def named(page: Path) -> str:
    return str(page.relative_to(DOCS)) if DOCS in page.parents else page.name


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page) and named(page) not in RUN_ELSEWHERE], ids=named
)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    space: dict[str, Any] = {"__name__": "a page"}
    with chdir(tmp_path), redirect_stdout(io.StringIO()) as output:
        for block in blocks(page):
            exec(compile(block, f"a block of {named(page)}", "exec", dont_inherit=True), space)
    assert CHECKS.get(named(page), lambda _: True)(space)
    if named(page) in SHOW_OUTPUT:
        shown = re.findall(
            r"^```\n\n```\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE
        )
        assert shown
        printed = without_numbers(output.getvalue())
        assert [text for text in shown if without_numbers(text) not in printed] == []


def without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[-+]?\d[\d,]*(?:\.\d+)?", "#", text).split())


@pytest.mark.parametrize(("page", "test"), RUN_ELSEWHERE.items())
def test_a_page_that_is_run_elsewhere_is_named_there(page: str, test: str) -> None:
    assert blocks(DOCS / page)
    assert Path(page).name.removesuffix(".md") in (ROOT / test).read_text()


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=named
)
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\[[^]\"]+\]\(([^)#\s\"[]+)", text) if "://" not in link]
    files = re.findall(
        r"(?:src|tests|benchmarks|examples|docs|tools)/[\w/.-]+\.(?:py|toml|md)", text
    )
    missing = [
        link for link in links if not (page.parent / link).exists() and link != "gallery/index.rst"
    ]
    missing += [
        name for name in files if not (ROOT / name).exists() and not (page.parent / name).exists()
    ]
    assert not missing


def test_the_study_of_the_data_page_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(
        r"```toml\n(.*?)```", (DOCS / "guides" / "data.md").read_text(), flags=re.DOTALL
    )
    (tmp_path / "loans.toml").write_text(text)
    spec = study.load_study(tmp_path / "loans.toml").problem
    assert spec is not None
    assert (spec.label, spec.group) == ("approved", "sex")


def test_the_commands_are_at_the_top_of_the_readme() -> None:
    top = README.read_text()[:800]
    assert all(command in top for command in ("make test ", "make bench"))


def measured(page: Path) -> dict[str, list[str]]:
    """The measured figures, such as 0.415 or 1.27, of each line outside code that has two or more,
    in their order."""
    lines = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines()
    figure = re.compile(r"(?<![\w.,])(?:0\.\d{3,}|[1-9]\d*\.\d{2,})(?![\w.])")
    figures = {
        line: [n for n in dict.fromkeys(figure.findall(line)) if n not in ROUND] for line in lines
    }
    return {line: numbers for line, numbers in figures.items() if len(numbers) >= 2}


def test_no_figure_is_typed_twice() -> None:
    lines = [(page, line, numbers) for page in PAGES for line, numbers in measured(page).items()]
    twice = [
        f"{named(page)}: {line}\n{named(other)}: {again}"
        for (page, line, numbers), (other, again, copied) in combinations(lines, 2)
        if page != other
        and len(shared := [n for n in numbers if n in copied]) >= 2
        and shared == [n for n in copied if n in numbers]  # in another order they agree by chance
    ]
    assert not twice, "\n\n".join(twice)


def tables(page: Path) -> list[list[str]]:
    """The rows of a page's tables."""
    lines = [line for line in page.read_text().splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_readme_tells_what_peers_have_and_we_do_not() -> None:
    (_, ours, *peers), _, *capabilities = tables(DOCS / "background" / "capabilities.md")
    assert ours == "fairbound"
    compared = {row[0].split(" ")[0]: row[1] for row in tables(README) if len(row) == 3}
    for peer in ("Cooper", "humancompatible-train", "TFCO"):
        column = 2 + peers.index(peer)
        missing_here = " ".join(
            row[column] for row in capabilities if row[1] == "no" and row[column] != "no"
        )
        assert missing_here
        assert all(name in missing_here for name in re.findall(r"`([^`]+)`", compared[peer]))
    assert {"Fairlearn", "AIF360", "TorchJD"} <= compared.keys()


# The site -----------------------------------------------------------------------------------------


def test_every_example_has_a_place_in_the_gallery() -> None:
    assert sorted(generate.GALLERY) == sorted(
        path.stem for path in (ROOT / "examples").glob("*.py")
    )


def test_reference_pages_are_made_from_the_code() -> None:
    text = generate.command_line()
    assert "## `fairbound audit`" in text
    assert "--compare-file" in text
    text = generate.file_keys()
    for key in ("last_states", "equal_examples", "shares", "min_size", "space", "license"):
        assert f"| `{key}` |" in text
    assert "| `batch` | whole number, at least 1 | `64` |" in text


@pytest.mark.parametrize("name", [name for name in fairbound.__all__ if name != "ALGORITHMS"])
def test_a_public_name_has_an_example_and_says_what_its_parameters_are(name: str) -> None:
    thing = getattr(fairbound, name)
    text = inspect.getdoc(thing) or ""
    if elsewhere := re.search(r"`(\w+)` has\s+an\s+example", text):
        text += inspect.getdoc(getattr(fairbound, elsewhere[1])) or ""
    assert ">>> " in text
    if inspect.isfunction(thing) and len(inspect.signature(thing).parameters) > 3:
        assert "Args:" in text
    page = "".join(page.read_text() for page in (DOCS / "reference" / "api").glob("*.md"))
    assert re.search(rf"[ .]{fairbound._HOME[name]}[ \n]", page), (
        "no page of the API has its module"
    )


# the packages whose public names are held to the two tests
DESCRIBED = ("columns", "data", "metrics", "auditing")
# a docstring that begins so is a fragment: it does not say what is returned or done
FRAGMENTS = {
    *("And", "As", "At", "Because", "By", "For", "From", "In", "Of", "On", "Or", "To"),
    *("Where", "Whether", "With", "Without"),
}


def public_callables(package: str) -> dict[str, Any]:
    """The functions, classes and public methods that a package and its public modules define."""
    folder = Path(fairbound.__file__).parent / package
    listed: dict[str, Any] = {}
    for path in folder.glob("[!_]*.py"):
        module = importlib.import_module(f"fairbound.{package}.{path.stem}")
        public = {k: v for k, v in vars(module).items() if k[0] != "_" and callable(v)}
        listed |= {k: v for k, v in public.items() if v.__module__ == module.__name__}
    module = importlib.import_module(f"fairbound.{package}")
    listed |= {name: getattr(module, name) for name in module.__all__}
    listed = {name: thing for name, thing in listed.items() if callable(thing)}
    methods = {
        f"{name}.{key}": getattr(thing, key)
        for name, thing in listed.items()
        if inspect.isclass(thing)
        for key, part in vars(thing).items()
        if key[0] != "_" and isinstance(part, types.FunctionType | staticmethod | classmethod)
    }
    return listed | methods


@pytest.mark.parametrize("package", DESCRIBED)
def test_three_or_more_parameters_are_all_described(package: str) -> None:
    missing = {}
    for name, thing in public_callables(package).items():
        if not inspect.isroutine(thing):
            continue
        parameters = [key for key in inspect.signature(thing).parameters if key != "self"]
        _, _, section = (inspect.getdoc(thing) or "").partition("\nArgs:\n")
        absent = [key for key in parameters if f"    {key}: " not in f"\n{section}"]
        if len(parameters) >= 3 and absent:
            missing[name] = absent
    assert not missing


@pytest.mark.parametrize("package", DESCRIBED)
def test_docstrings_are_no_fragments(package: str) -> None:
    first = {name: inspect.getdoc(thing) or "" for name, thing in public_callables(package).items()}
    assert [name for name, text in first.items() if not text] == []
    assert [name for name, text in first.items() if text.split()[0] in FRAGMENTS] == []


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("`run` and x_, *y", "``run`` and x\\_, \\*y"),
        (
            "Text:\n\n    x+ = x - tau d\n\nmore",
            "Text:\n\n.. code-block:: text\n\n    x+ = x - tau d\n\nmore",
        ),
        ("Args:\n    x: `(n,)`", "Args:\n    x: ``(n,)``"),
        (">>> 2 * 3\n6", ">>> 2 * 3\n6"),
    ],
)
def test_docstrings_become_markup(text: str, made: str) -> None:
    lines = text.split("\n")
    generate.as_rst(None, "function", "f", None, None, lines)
    assert "\n".join(lines) == made


def test_missing_targets_of_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a><a href="b.html#there">2</a><a href="c.html">3</a>'
    )
    (tmp_path / "b.html").write_text(
        '<p id="here"><a href="https://example.org/no">4</a><img src="no.png">'
    )
    assert list(check_site.broken_links(tmp_path)) == [
        "a.html links to b.html#there, whose anchor does not exist",
        "a.html links to c.html, which does not exist",
        "b.html links to no.png, which does not exist",
    ]
