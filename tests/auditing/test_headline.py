"""Who is flagged wrongly, who is missed wrongly: the published counts of COMPAS as numbers,
sentences and screens."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from browsing import browsed, needs_browser
from commands import call

from fairbound.auditing import Audit, audit, audit_columns
from fairbound.auditing._findings import compared_groups, finding, questions
from fairbound.auditing._tables import audit_page
from fairbound.columns._rows import rows_where
from fairbound.metrics._counts import Counts
from fairbound.metrics._reference_gaps import reference_gaps

# ProPublica 2016, two-year recidivism: race -> true negatives, false positives, false negatives,
# true positives
PUBLISHED = {"African-American": (990, 805, 532, 1369), "Caucasian": (1139, 349, 461, 505)}
KNOWN = ("44.8 %", "23.5 %", "28.0 %", "47.7 %")  # 44.85, 23.45, 27.99, 47.72
OPTIONS = shlex.split("--label two_year_recid --score decile_score --threshold 5 --group race")


@pytest.fixture(scope="module")
def compas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published counts, and 18 and 32 people of two other groups who are all flagged
    wrongly."""
    lines = [
        (race, decile, label)
        for race, counts in PUBLISHED.items()
        for count, decile, label in zip(counts, (2, 8, 2, 8), (0, 0, 1, 1), strict=True)
        for _ in range(count)
    ]
    lines += [
        (race, 9 - i % 9, int(i % 9 == 8))
        for race, n in (("Native American", 18), ("Asian", 32))
        for i in range(n)
    ]
    path = tmp_path_factory.mktemp("compas") / "compas.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("race", "decile_score", "two_year_recid"), *lines])
    return path


@pytest.fixture(scope="module")
def audited(compas: Path) -> Audit:
    rows = list(csv.DictReader(compas.open()))
    columns = {name: np.array([row[name] for row in rows], dtype=object) for name in rows[0]}
    for name in ("decile_score", "two_year_recid"):
        columns[name] = columns[name].astype(int)
    return audit_columns(
        columns,
        label="two_year_recid",
        score="decile_score",
        threshold=5,
        groups="race",
        reference="Caucasian",
        min_size=50,
        source="compas.csv",
    )


def findings(found: Audit) -> list[str]:
    return [finding(found, rate) for rate in questions(found)]


def test_differences_and_ratios_against_the_reference(audited: Audit) -> None:
    gap = next(g for g in audited.groups if g.name == "African-American").against_reference
    flagged, missed = gap["false_positive_rate"], gap["false_negative_rate"]
    assert flagged.difference.value == pytest.approx(805 / 1795 - 349 / 1488)
    assert flagged.ratio.value == pytest.approx(805 / 1795 / (349 / 1488))
    assert missed.difference.value == pytest.approx(532 / 1901 - 461 / 966)
    assert flagged.beyond_chance
    assert missed.beyond_chance
    # Wald's interval of the difference and Katz's of the ratio, which are right for so many
    # examples
    a, b = 805 / 1795, 349 / 1488
    half = 1.96 * math.sqrt(a * (1 - a) / 1795 + b * (1 - b) / 1488)
    assert flagged.difference[1:] == pytest.approx((a - b - half, a - b + half), abs=0.002)
    spread = math.exp(1.96 * math.sqrt((1 - a) / 805 + (1 - b) / 349))
    assert flagged.ratio[1:] == pytest.approx((a / b / spread, a / b * spread), abs=0.02)


def test_small_groups_do_not_drive_the_headline(audited: Audit) -> None:
    for rate in questions(audited):
        assert [group.name for group, _ in compared_groups(audited, rate)] == ["African-American"]
    assert audited.metrics["equalized_odds_difference"].value == pytest.approx(
        805 / 1795 - 349 / 1488
    )
    assert findings(audited) == [
        (
            "44.8\xa0% of those with label 0 in group African-American are predicted 1, against"
            " 23.5\xa0% in group Caucasian: 21.4 points more [+18.2, +24.6], 1.91 times the rate"
            " [1.73, 2.13]."
        ),
        (
            "28.0\xa0% of those with label 1 in group African-American are predicted 0, against"
            " 47.7\xa0% in group Caucasian: 19.7 points less [-23.4, -16.0], 0.59 times the rate"
            " [0.53, 0.65]."
        ),
    ]


def test_many_groups_alike_are_seldom_called_different() -> None:
    """At 95 %, some group is beyond chance in 5 % of samples; of 400 with 15 groups each, in at
    most 9 %."""
    rng, names, alarms = np.random.default_rng(0), [f"g{i}" for i in range(15)], 0
    for _ in range(400):
        flagged, missed = rng.binomial(200, 0.3, 15), rng.binomial(200, 0.4, 15)
        cells = {
            n: (f, 200 - f, m, 200 - m) for n, f, m in zip(names, flagged, missed, strict=True)
        }
        found = reference_gaps(Counts.from_cells(cells), "g0", draws=500)
        alarms += any(gaps["false_positive_rate"].beyond_chance for gaps in found.values())
    assert alarms <= 36


def test_the_largest_of_many_noisy_differences_is_no_headline() -> None:
    rng = np.random.default_rng(0)
    y, g, made = rng.integers(0, 2, 2_000), rng.integers(0, 20, 2_000), rng.integers(0, 2, 2_000)
    found = audit(y, g, predictions=made, draws=500)
    gaps = [
        group.against_reference["false_positive_rate"].difference
        for group in found.groups[1:]
        if group.against_reference
    ]
    assert max(abs(gap.value) for gap in gaps) > 0.1
    assert findings(found)[0].startswith("None of 19 groups differs from")
    assert "points" not in findings(found)[0]
    sizes = [group.examples for group, _ in compared_groups(found, questions(found)[0])]
    assert sizes == sorted(sizes, reverse=True)


def test_the_clearest_difference_is_the_headline_not_that_of_the_largest_group() -> None:
    flagged = {"A": (1000, 200), "B": (800, 208), "C": (300, 120)}  # of so many with label 0
    g = np.repeat([*flagged], [n for n, _ in flagged.values()])
    made = np.concatenate([np.arange(n) < k for n, k in flagged.values()]).astype(int)
    found = audit(np.zeros(len(g), dtype=int), g, predictions=made, reference="A", draws=2000)
    sentence = findings(found)[0]
    assert sentence.startswith(
        "The clearest difference: 40.0\xa0% of those with label 0 in group C are predicted 1,"
        " against 20.0"
    )
    assert sentence.endswith("2 of 2 groups differ from A beyond chance.")


def test_what_an_attribute_alone_shows_is_said_where_its_intersections_are_too_small() -> None:
    rng = np.random.default_rng(0)
    race, sex, age = (
        rng.choice(["A", "B"], 1_500),
        rng.choice(["f", "m"], 1_500),
        rng.choice(["1", "2", "3"], 1_500),
    )
    y = rng.integers(0, 2, 1_500)
    wrong = rng.random(1_500) < np.where((y == 1) & (race == "B"), 0.36, 0.25)
    columns = {"race": race, "sex": sex, "age": age, "y": y, "p": np.where(wrong, 1 - y, y)}
    found = audit_columns(columns, label="y", prediction="p", groups="race,sex,age", draws=500)
    flagged, missed = findings(found)
    assert flagged.startswith("None of 11 groups differs")
    assert "alone" not in flagged
    assert missed.startswith("None of 11 groups differs")
    assert re.search(
        r"By race alone: .* in group A are predicted 0, against .* in group B: .* points", missed
    )
    assert "sex alone" not in missed
    assert "age alone" not in missed


def test_no_ratio_to_a_rate_of_0_and_no_rate_without_examples() -> None:
    found = audit(
        [0, 0, 0, 0, 1],
        [0, 0, 1, 1, 0],
        predictions=[0, 0, 1, 0, 1],
        names=["A", "B"],
        reference="A",
    )
    gaps = found.groups[1].against_reference
    assert gaps["false_positive_rate"].difference.value == 0.5
    assert gaps["false_positive_rate"].ratio.value is None
    assert "false_negative_rate" not in gaps  # B has no label 1
    words = unescape(re.sub("<[^>]*>", " ", audit_page(found)))
    assert "the reference group's is 0" in words
    assert "none with label 1" in words
    assert not re.search(r"undefined\s*(\d|$)", words)
    plain = audit([0, 1, 0, 1], [0, 0, 1, 1], predictions=[1, 0, 0, 0], intervals=False)
    assert findings(plain)[0].startswith(
        "0.0\xa0% of those with label 0 in group 1 are predicted 1, against 100.0"
    )


def test_the_page_says_what_was_audited_and_how(
    compas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = ["--title", "Risk <scores>", "--where", "race != 'Asian'"]
    command = [*OPTIONS, "--reference", "Caucasian", *title]
    monkeypatch.setattr("sys.argv", ["/bin/fairbound", "audit", "compas.csv", *command])
    printed = call(
        "audit", compas, *command, "-o", tmp_path / "a.html", "--json", tmp_path / "a.json"
    )
    assert "African-American 44.8 [42.6, 47.2] +21.4* [+18.2, +24.6] 1.91 [1.73, 2.13]" in printed
    assert "group 'Native American' (18) has fewer than 50 examples (--min-size)" in " ".join(
        printed.split()
    )
    html = (tmp_path / "a.html").read_text()
    assert len(html) < 1_500_000
    words = " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())
    for expected in (
        "Risk <scores>",
        "6,168 examples, 3 groups by race; scores, threshold 5",
        "Rows 6,200",
        "Condition race != 'Asian'",
        "Reference group Caucasian",
        "fairbound 0.1",
        "Not compared, with fewer than 50 examples: Native American (18)",
        "Command fairbound audit compas.csv --label two_year_recid",
        "--where \"race != 'Asian'\"",
    ):
        assert expected in words
    assert "Independence printed" not in words
    assert " Wd" not in words
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["label"], found["made"], found["where"]) == (
        "two_year_recid",
        "decile_score",
        "race != 'Asian'",
    )
    assert found["groups"]["African-American"]["against_reference"]["false_positive_rate"][
        "beyond_chance"
    ]
    assert found["groups"]["Native American"]["against_reference"] == {}


FIRST_SCREEN = """[...document.querySelectorAll("p, td, th")].filter(part => {
  const {left, right, top, bottom} = part.getBoundingClientRect();
  return bottom <= innerHeight && left >= 0 && right <= innerWidth;
}).map(part => part.innerText).join(" ")"""
WHOLE_NAMES = """[...document.querySelectorAll("tbody th")].filter(part =>
  part.scrollWidth > part.clientWidth + 1).map(part => part.innerText)"""


@needs_browser
@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_known_rates_are_on_the_first_screen(
    audited: Audit, tmp_path: Path, width: int, height: int, dark: bool
) -> None:
    (tmp_path / "a.html").write_text(audit_page(audited))
    seen = browsed(
        tmp_path / "a.html", FIRST_SCREEN, width=width, height=height, dark=dark
    ).found.replace("\xa0", " ")
    for rate in KNOWN:
        assert rate in seen
    assert browsed(tmp_path / "a.html", WHOLE_NAMES, width=width, dark=dark).found == []


CONDITIONS = {
    "race in ('A', 'B')": [True, True, False, False],
    "race == 'A' or `years of age` > 50": [True, False, False, False],
    "not race == 'A' and 20 <= `years of age` < 50": [False, True, False, False],
    "race != 'A'": [False, True, True, False],
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions(condition: str) -> None:
    columns = {
        "race": np.array(["A", "B", "C", None], dtype=object),
        "years of age": np.array([60.0, 30, np.nan, 70]),
    }
    assert rows_where(condition, columns).tolist() == CONDITIONS[condition]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("rase == 'A'", "'rase'; did you mean race?"),
        ("race = 'A'", "equality is written =="),
        ("race ==", "; write it as"),
        ("race > 1", "cannot be read ("),
        ("race", "compares nothing"),
        ("race == 'Z'", "no row meets"),
        ("__import__('os').remove(race)", "no column '__import__'"),
        ("race == @x", "no column 'x'"),
    ],
)
def test_wrong_conditions(condition: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rows_where(condition, {"race": np.array(["A", "B"], dtype=object)})


def test_rows_are_numbered_as_in_the_file_after_a_condition(tmp_path: Path) -> None:
    rows = "1,.9,a\n0,.2,b\n0,.6,a\n1,.7,b\n" * 20
    (tmp_path / "some.csv").write_text(f"y,p,race\n{rows}1,high,a\n")
    options = ["--label", "y", "--score", "p", "--group", "race", "--where", "race == 'a'"]
    words = call("audit", tmp_path / "some.csv", *options, code=1).split()
    assert "'high' in 1 of 41 rows (first: row 82," in " ".join(words)
