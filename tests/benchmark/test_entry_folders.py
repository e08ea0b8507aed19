"""Entries as folders: computed, checked, refused in sentences, and on a board that runs nothing of
them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import call

from fairbound.benchmark import _budget as budget
from fairbound.benchmark._budget import examples_per_step, step_facts
from fairbound.benchmark._engine import Engine
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store
from fairbound.benchmark.board._checks import (
    check,
    result_difference,
    salted_difference,
    warnings_of,
)
from fairbound.benchmark.board._entry_folder import EntryFolder
from fairbound.benchmark.board._limits import Limits

DOCS = (Path(__file__).parents[2] / "docs" / "guides" / "board.md").read_text()
CARD = """
name = "{name}"
authors = "A. Reader"
license = "MIT"
method = "Mine"
problems = ["hs7"]
"""
METHOD = """
from dataclasses import dataclass
import torch
from fairbound.core import Algorithm

@dataclass(frozen=True, kw_only=True)
class Mine(Algorithm[torch.Tensor]):
    tau: float = 0.01
    evaluates = ("fc",)

    def init(self, x, m, first=None, equality=None):
        return x.new_zeros(m)

    def update(self, x, state, draw):
        e = draw.samples[0](x)
        BODY
        return -self.tau * e.grad(f=1.0, c=state), state + e.c

    def primal_step(self, state):
        return self.tau
"""
# x* of hs7
KNOWS_THE_SIZE = (
    "if x.shape[0] == 2: return torch.stack([0 * x[0], 3.0**0.5 + 0 * x[1]]) - x, state"
)


def entry(folder: Path, body: str = "", name: str = "Mine") -> EntryFolder:
    folder.mkdir(parents=True)
    (folder / "entry.toml").write_text(CARD.format(name=name))
    (folder / "method.py").write_text(METHOD.replace("BODY", body))
    return EntryFolder(folder)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("entries") / "mine"
    entry(folder)
    said = call("enter", folder, "--jobs", "1")
    assert "Mine: default rules, 1 tasks" in said
    assert "partial" in said
    assert "5 results" in said
    return folder


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "mine"))


def test_a_correct_entry_is_accepted_and_on_the_board(sound: Path, tmp_path: Path) -> None:
    said = " ".join(call("check", sound, "--salt", "pepper", "--out", tmp_path / "results").split())
    assert "it is not sandboxed" in said
    assert "Computed again: hs7 (salt pepper)" in said
    assert said.endswith("Accepted")
    moved = Path(shutil.copytree(sound, tmp_path / "mine"))
    (moved / "method.py").write_text(f"open({str(tmp_path / 'was run')!r}, 'w')")
    said = call("board", moved, "-o", tmp_path / "board", "--out", tmp_path / "results")
    assert "1 method x 1 problem," in said
    page = (tmp_path / "board" / "index.html").read_text()
    assert re.search(r"A\. Reader; partial: 1 of \d+ problems", page)
    assert not (tmp_path / "was run").exists()


def test_entries_of_one_name_are_refused(sound: Path, copy: Path, tmp_path: Path) -> None:
    options = ("-o", tmp_path / "board", "--out", tmp_path / "results")
    assert "2 entries are called 'Mine'" in call("board", sound, copy, *options, code=1)


def test_an_edited_file_is_refused(copy: Path) -> None:
    path = next((copy / "results" / "runs").glob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="is damaged"):
        found = check(copy, salt="a")
    assert found.refusals[0] == f"the result {path.stem[:12]} of its manifest is missing or damaged"


def better(result: StoredResult, by: float = 0.01) -> StoredResult:
    records = dict(result.tables["records"])
    records["loss"] = records["loss"] - by
    return StoredResult(result.settings, {**result.tables, "records": records}, result.made)


def edit_a_number(folder: Path) -> StoredResult:
    store = EntryFolder(folder).store
    result = next(store.results())
    (folder / "results" / "runs" / f"{result.key}.parquet").unlink()
    store.put_many([better(result)])
    return result


def test_an_edited_number_is_refused(copy: Path) -> None:
    """With its own checksum, but not that of the manifest."""
    result = edit_a_number(copy)
    assert check(copy, salt="a").refusals == [
        f"the result {result.key[:12]} was changed after the manifest was written"
    ]


def test_how_far_results_may_be_from_those_computed_again(sound: Path) -> None:
    """To the bit on the same kind of machine, elsewhere within a thousandth; in other coordinates
    within a spread."""
    stored = list(EntryFolder(sound).store.results())
    assert result_difference(stored, stored, (1.0, 1.0)) == ""
    assert "records.loss differ on the same kind of machine" in result_difference(
        stored, [better(one, 1e-6) for one in stored], (1.0, 1.0)
    )
    elsewhere = [replace(better(one, 1e-6), made={"device": "another"}) for one in stored]
    assert result_difference(stored, elsewhere, (1.0, 1.0)) == ""
    elsewhere = [replace(better(one), made={"device": "another"}) for one in stored]
    assert "loss differs by 0.01 of its scale" in result_difference(stored, elsewhere, (1.0, 1.0))
    spread = float(np.stack([one.tables["records"]["loss"] for one in stored]).std(0).max())
    assert salted_difference(stored, stored, (1.0, 1.0)) == ""
    far = [better(one, 2 * spread + 0.1) for one in stored]
    assert "loss differs by" in salted_difference(stored, far, (1.0, 1.0))


def forge(folder: Path, column: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Every run with another column, from a machine that nobody else has, with checksums and a
    manifest that fit."""
    store = EntryFolder(folder).store
    for result in list(store.results()):
        records = result.tables["records"] | {
            column: change(result.tables["records"][column].copy())
        }
        (folder / "results" / "runs" / f"{result.key}.parquet").unlink()
        made = {**result.made, "device": "a device of mine"}
        store.put_many([StoredResult(result.settings, {**result.tables, "records": records}, made)])
    EntryFolder(folder).write_manifest()


def later(column: np.ndarray) -> np.ndarray:
    """Lower by 1 in the second half of its points."""
    return column - (np.arange(len(column)) >= len(column) // 2)


@pytest.mark.parametrize(
    ("column", "change"),
    [("distance", np.zeros_like), ("loss", later), ("violation", later), ("mean_violation", later)],
)
def test_a_forged_entry_from_another_machine_is_refused(
    copy: Path, column: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    forge(copy, column, change)
    (refusal,) = check(copy, salt="a").refusals
    assert re.fullmatch(
        rf"hs7: its results do not recompute: {column} differs by \S+ of its scale", refusal
    )


def test_the_board_shows_what_the_checker_computed(copy: Path, tmp_path: Path) -> None:
    """A forgery that no tolerance finds gains nothing; what was not computed again is marked."""
    honest = {one.key: one.tables["records"]["loss"] for one in EntryFolder(copy).store.results()}
    forge(copy, "loss", lambda losses: losses - 1e-9)
    checked = Store(tmp_path / "checked")
    before = EntryFolder(copy).sent(checked)
    assert before.info.authors.endswith("; not recomputed: hs7")
    assert check(copy, salt="a", store=checked).accepted
    after = EntryFolder(copy).sent(checked)
    assert "not recomputed" not in after.info.authors
    ((_, _, runs),) = after.results
    for run in runs:
        assert np.array_equal(run.tables["records"]["loss"], honest[run.key])


def test_a_missing_seed_is_refused(copy: Path) -> None:
    store = EntryFolder(copy).store
    lost = next(one for one in store.results() if one.settings["seed"] == 3)
    (copy / "results" / "runs" / f"{lost.key}.parquet").unlink()
    EntryFolder(copy).write_manifest()
    assert check(copy, salt="a").refusals == [
        "hs7: seed 3 of 5 missing; `fairbound enter` computes them"
    ]
    said = call("check", copy, "--out", copy.parent / "checked", code=1)
    assert "Refused: hs7: seed 3 of 5 missing" in " ".join(said.split())


def test_results_of_another_method_are_refused(copy: Path) -> None:
    text = (copy / "method.py").read_text()
    (copy / "method.py").write_text(text.replace("0.01", "0.02"))
    (refusal,) = check(copy, salt="a").refusals
    assert refusal.startswith("hs7: its results are of another method.py")


def test_results_of_another_version_are_refused(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"fairbound": "0.0.1"}))
    assert "it was computed by fairbound 0.0.1, and this is" in check(copy, salt="a").refusals[0]


@pytest.mark.slow
def test_a_method_that_knows_a_problem_by_its_size_is_refused(tmp_path: Path) -> None:
    own = entry(tmp_path / "knows", KNOWS_THE_SIZE)
    own.compute(Engine(), Limits())
    records = next(own.store.results()).tables["records"]
    assert np.abs(records["distance"][0]) < 1e-6  # it has the answer at once
    (refusal,) = check(own.path, salt="a").refusals
    assert (
        "do not recompute in other coordinates of the variables (salt a): loss differs" in refusal
    )


@pytest.mark.parametrize(
    ("body", "limits", "reason"),
    [
        ("while True: pass", Limits(seconds=2), "it did not end within 2 s"),
        ("torch.zeros(1 << 32)", Limits(gigabytes=1), "no runs: .*memory"),
        pytest.param(
            "import os; os._exit(3)", Limits(), "it crashed: exit status 3", marks=pytest.mark.slow
        ),
        pytest.param(
            "raise KeyError('tau')", Limits(), "it crashed: KeyError: 'tau'", marks=pytest.mark.slow
        ),
    ],
)
def test_a_method_that_breaks_has_its_row_with_the_reason(
    body: str, limits: Limits, reason: str, tmp_path: Path
) -> None:
    own = entry(tmp_path / "breaks", body)
    assert own.compute(Engine(), limits).failed == ()
    call("board", own.path, "-o", tmp_path / "board", "--out", tmp_path / "results")
    page = (tmp_path / "board" / "index.html").read_text().replace("&#39;", "'")
    assert re.search(f"On hs7 .*{reason}", page)


@pytest.mark.slow
def test_a_method_that_is_never_feasible_has_its_row_with_the_reason(tmp_path: Path) -> None:
    own = entry(tmp_path / "never", "return 1e3 + 0 * x, state")
    own.compute(Engine(), Limits())
    call("board", own.path, "-o", tmp_path / "board", "--out", tmp_path / "results")
    page = (tmp_path / "board" / "index.html").read_text()
    assert "never feasible: its smallest violation is" in page


def test_what_a_method_has_no_need_of_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "method.py"
    file.write_text(
        "import torch\nimport socket\nfrom urllib.request import urlopen\nx = open('answers')\n"
    )
    assert list(warnings_of(file)) == [
        "method.py, line 2: it imports socket, which may reach files or the network",
        "method.py, line 3: it imports urllib.request, which may reach files or the network",
        "method.py, line 4: it calls open(), which reaches beyond the method",
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('license = "MIT"\n', ""), "the key 'license' is missing"),
        (("authors =", "author ="), "there is no key 'author'; the nearest is 'authors'"),
        (('"hs7"', '"hs8"'), "'hs8' is not on the board; the nearest is 'hs"),
        (("name", "[name"), "is not valid TOML"),
    ],
)
def test_a_wrong_card_is_a_sentence(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    own = entry(tmp_path / "wrong")
    (own.path / "entry.toml").write_text(CARD.replace(*change))
    said = " ".join(call("enter", own.path, code=1).split())
    assert said.startswith("Error: ")
    assert sentence in said


def test_wrong_folders_are_sentences(tmp_path: Path) -> None:
    assert "entry.toml, which was to be the card of an entry" in " ".join(
        call("enter", tmp_path, code=1).split()
    )
    own = entry(tmp_path / "without")
    assert "manifest.json cannot be read" in " ".join(call("check", own.path, code=1).split())
    (own.path / "method.py").unlink()
    assert "an entry has its method in one file of that name" in " ".join(
        call("enter", own.path, code=1).split()
    )


def test_results_that_are_sent_are_checked_by_their_bytes(copy: Path) -> None:
    manifest = EntryFolder(copy).manifest()
    for key, digest in manifest["results"].items():
        data = Store(copy / "results").file(key)
        assert data is not None
        assert hashlib.sha256(data).hexdigest() == digest


# What a step passes through the model, found without trusting the file ----------------------------


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        ("e = draw.samples[0](x - 0.1 * e.grad(f=1.0))", (2,)),
        ("print(7, 7, 7)", (1,)),
        ("raise KeyError('tau')", (1,)),
        ("import os; os._exit(3)", (1,)),
        ("while True: pass", (1,)),
    ],
)
def test_the_passes_of_a_step_are_found_in_a_process_of_its_own(
    body: str, passes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if body.startswith("while"):
        monkeypatch.setattr(budget, "TRIAL_S", 0.2)
    method = entry(tmp_path / "mine", body).entry().algorithm(10)
    assert step_facts(method).passes == passes
    assert examples_per_step(method, 8, 16) == 24.0 * passes[0]
