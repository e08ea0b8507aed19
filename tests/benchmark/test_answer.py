"""The first command's answer: one table, three sentences, and the study that it is about."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from fairbound import verdict
from fairbound.benchmark import _answer as answer
from fairbound.benchmark import _study as study
from fairbound.benchmark._answer import NEXT, answer_table, findings
from fairbound.benchmark._engine import Engine
from fairbound.benchmark._measuring import held_out
from fairbound.benchmark._page import Page
from fairbound.benchmark._plan import Plan
from fairbound.benchmark._plots import PLOTS
from fairbound.benchmark._results import Results
from fairbound.benchmark._sections import QUESTION, study_section
from fairbound.benchmark._store import Store
from fairbound.benchmark._tables import TABLES
from fairbound.constraints import pairwise_loss_parity

from ..small_study import small_plan, small_study

ENTRIES = (
    '{ name = "SGD", method = "SGD", steps = 30 }, { name = "Ascent", method = "DescentAscent",'
    " steps = 10 }"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("answer")
    text = small_study(ENTRIES, seeds=3, records=2)
    (folder / "small.toml").write_text('shows = ["answer", "trade-off"]\n' + text)
    plan, store = small_plan(folder), Store(folder / "results")
    plan.compute(store, Engine())
    return Results.read(plan.stored(store), store)


def test_the_table_has_a_line_for_each_method(results: Results) -> None:
    frame = answer_table(results).frame
    assert frame["method"].tolist() == ["SGD", "Ascent"]
    assert frame["loss", "mean"].tolist() == results.summary("train")["loss", "mean"].tolist()
    assert (
        frame["held out", "mean"].tolist() == results.summary("test")["violation", "mean"].tolist()
    )
    test = results.final[results.final["part"] == "test"].groupby("row", sort=False)
    assert frame["accuracy"].tolist() == test["accuracy"].mean().tolist()
    assert frame["Sf"].tolist() == test["sufficiency_reported"].mean().tolist()
    assert frame["seconds"].tolist() == [
        30 * results.seconds["SGD"],
        10 * results.seconds["Ascent"],
    ]
    assert all(len(line) <= 80 for line in answer_table(results).to_text(80).splitlines())


def test_verdicts_are_counted(results: Results) -> None:
    assert all(counts.total() == 3 for counts in results.decisions.values())
    decided = Results(results.study, results.folder, results.runs)
    vars(decided)["decisions"] = {
        "SGD": Counter(violated=2, undecided=1),
        "Ascent": Counter(holds=3),
    }
    assert answer_table(decided).frame["verdict"].tolist() == ["2 violated, 1 undecided", "3 holds"]
    last = findings(decided).splitlines()[-1]
    assert (
        "holds at 95 % confidence in 3 of 6 runs, is violated in 2, and is undecided in 1" in last
    )
    assert last.endswith("it holds for Ascent (3 of 3 runs).")


def test_the_verdict_is_on_the_losses_of_the_held_out_examples() -> None:
    """As `verdict` decides from per-example losses."""
    spec = study.load_study("first").on(source="synthetic:OK")
    instance = Plan(replace(spec, seeds=1))._built
    x = instance.starts([0])[0]
    test, data = instance.splits[0].test, instance.problem.data
    losses = instance.problem.loss(instance.problem.forward(x, data.X[test]), data.y[test])
    parity = pairwise_loss_parity(["white", "non-white"], bound=0.005)
    expected = verdict(parity, next(iter(data.groups.values()))[test], losses=losses.detach())
    found = held_out(instance, 0, x)
    assert found["decision"][0] == expected.decision
    assert found["loss"][0] == pytest.approx(float(torch.mean(losses)), rel=1e-5)


def test_three_sentences_are_computed_and_name_no_winner(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = findings(results).splitlines()
    train = results.summary("train")
    ends = {
        row: (
            f"{row} (loss {train['loss', 'mean'][row]:.3f}, violation"
            f" {train['violation', 'mean'][row]:.3f})"
        )
        for row in ("SGD", "Ascent")
    }
    assert (
        f"Without constraints, SGD: the training loss ends at {train['loss', 'mean']['SGD']:.3f}"
        in first
    )
    everybody = "Every method exceeds the bound 0.005 by more than 0.01 on training examples."
    assert second == f"{everybody} The nearest: {ends['Ascent']}."
    assert "On 1,792 held-out examples" in third
    assert not any(word in findings(results) for word in ("rank", "best", "wins"))

    between = float(train["violation", "mean"].mean())
    monkeypatch.setattr(answer, "BOUND_TOLERANCE", between)
    second = findings(results).splitlines()[1]
    assert second.startswith(
        f"1 of 2 methods exceed the bound 0.005 by at most {between:g} on training examples: "
    )
    assert ends["Ascent"] in second
    assert second.endswith(f"The nearest of the others: {ends['SGD']}.")


def test_the_page_shows_what_the_study_asks_for(results: Results) -> None:
    section = study_section(results)
    assert (list(section.tables), list(section.figures)) == (["answer"], ["trade-off"])
    html = Page([section]).html()
    assert html.index("Data: synthetic, not real: synthetic:OK, 17,917 rows") < html.index("<h1>")
    assert QUESTION in html[: html.index("</title>")]
    assert all(command in html for command in NEXT)
    wrong = Results(replace(results.study, shows=("anwser",)), results.folder, results.runs)
    with pytest.raises(ValueError, match=r"anwser.*answer"):
        study_section(wrong)


def test_another_table_has_another_title_and_nothing_of_the_papers() -> None:
    first, paper = study.load_study("first"), study.load_study("paper-ok-race")
    assert first.on(source="synthetic:OK").title == first.title
    assert paper.on(source="synthetic:OK").reference == paper.reference
    by_sex = paper.on(group="SEX")
    assert (by_sex.title, by_sex.reference) == ("The methods of paper-ok-race, by SEX", "")
    assert any(entry.paper.train for entry in paper.entries)
    assert not any(
        figures
        for entry in by_sex.entries
        for figures in (entry.paper.train, entry.paper.validation)
    )
    assert (
        first.on(source="people/my.csv", label="y", group="g").title
        == "The methods of first on my.csv, by g"
    )


def test_the_first_study_is_the_papers_at_equal_examples() -> None:
    first, paper = study.load_study("first"), study.load_study("paper-ok-race")
    assert (first.problem, first.seeds) == (paper.problem, paper.seeds)
    assert set(first.shows) <= {*TABLES, *PLOTS}
    papers = {
        "SGD": "SGD",
        "Switching": "SSw",
        "Stochastic Ghost": "Ghost, rho 0.1",
        "ALM": "ALM",
        "SSL-ALM": "SSL-ALM",
    }
    settings = {entry.name: dict(entry.settings) for entry in paper.entries}
    plan = Plan(first.on(source="synthetic:OK"))
    for entry in first.entries:
        assert entry.steps == plan.equal_steps(entry), entry.name
        if entry.name in papers:
            assert dict(entry.settings) == settings[papers[entry.name]], entry.name
    chosen_elsewhere = {entry.name: entry for entry in study.load_study("methods-ok-race").entries}[
        "Penalty"
    ]
    own = {entry.name: entry for entry in first.entries}
    assert (own["Penalized SGD"].settings, own["AdaptivePI"].settings) == (
        chosen_elsewhere.settings,
        {},
    )
