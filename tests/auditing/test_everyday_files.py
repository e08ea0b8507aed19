"""Files as they are published: columns twice, scores of any scale, missing values, several classes,
other encodings."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from commands import call

from fairbound.auditing import audit, audit_columns
from fairbound.columns import _files as table_files
from fairbound.data import read_columns

HEADER = "id,name,sex,race,dob,decile_score,priors_count,c_jail_in,text,decile_score,priors_count,two_year_recid"


CLASSES = ["low", "mid", "high"]


def compas(rows: int = 600, seed: int = 0) -> list[str]:
    """Lines like those of the published file: decile_score is there twice and the same,
    priors_count is not."""
    rng = np.random.default_rng(seed)
    lines = [HEADER]
    for i in range(rows):
        race, sex = (
            rng.choice(["African-American", "Caucasian", "Other"]),
            rng.choice(["Female", "Male"]),
        )
        y, priors = int(rng.random() < 0.45), int(rng.integers(0, 9))
        decile = int(np.clip(rng.integers(1, 8) + 3 * y, 1, 10))
        jail = "" if i % 7 == 0 else f"2013-08-{1 + i % 28:02} 06:03:42"
        text = f'"said ""no"", then{chr(10)}left"' if i % 50 == 0 else "none"
        who = f"{i},j. doe,{sex},{race},19{50 + i % 45}-01-02"
        lines.append(f"{who},{decile},{priors},{jail},{text},{decile},{priors + i % 2},{y}")
    return lines


@pytest.fixture
def published(tmp_path: Path) -> Path:
    path = tmp_path / "compas-scores-two-years.csv"
    path.write_bytes("\n".join(compas()).replace("j. doe", "Zo\u00eb").encode("latin-1"))
    return path


def run(
    path: Path, *options: str, code: int = 0, label: str = "two_year_recid", group: str = "race"
) -> str:
    scored = [] if "--prediction" in options else ["--score", "decile_score"]
    words = call("audit", path, "--label", label, "--group", group, *scored, *options, code=code)
    return " ".join(words.split())


def test_a_file_like_the_published_one_audits_with_one_command(
    published: Path, tmp_path: Path
) -> None:
    outputs = ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    printed = run(published, "--threshold", "5", *outputs)
    assert "600 examples, 3 groups by race; scores, threshold 5" in printed
    assert "was read as latin-1" in printed
    found = json.loads((tmp_path / "a.json").read_text())
    frame = [
        line.split(",")
        for line in "\n".join(compas()).replace('"said ""no"", then\nleft"', "x").splitlines()[1:]
    ]
    high = {
        race: np.mean([int(row[5]) >= 5 for row in frame if row[3] == race])
        for race in found["groups"]
    }
    rates = {
        race: group["rates"]["positive_rate"]["value"] for race, group in found["groups"].items()
    }
    assert rates == pytest.approx(high)


def test_the_threshold_is_asked_for_where_scores_are_no_probabilities(published: Path) -> None:
    assert "the default threshold 0.5 does not fit scores from 1 to 10; try --threshold 5" in run(
        published, code=1
    )
    assert "every prediction is 1 (scores from 1 to 10; try --threshold 5)" in run(
        published, "--threshold", "0.5"
    )
    assert "--threshold is for scores" in run(
        published, "--prediction", "sex", "--threshold", "5", code=1
    )
    with pytest.raises(ValueError, match=r"from -2 to 3.5; try `threshold=0`"):
        audit([0, 1], [0, 1], scores=[-2.0, 3.5])


def write(folder: Path, content: str) -> Path:
    path = folder / "some.csv"
    path.write_text(content)
    return path


ROWS = "y,decile_score,race\n" + "1,.9,a\n0,.2,b\n0,.6,a\n1,.7,b\n" * 20


def test_missing_values_are_dropped_with_a_count(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS + ",.3,a\n1,,b\n1,?,b\n0,.1,\n")
    out = tmp_path / "a.json"
    words = run(path, "--missing", "?", label="y", code=1)
    assert (
        "the column 'y' is missing in 1 of 84 rows (first: row 82, with the header as row 1); drop"
        " those rows" in words
    )
    words = run(path, "--missing", "?", "--drop-missing", "--json", str(out), label="y")
    assert (
        "4 of 84 examples were dropped, with missing values (y 1, decile_score 2, race 1)" in words
    )
    found = json.loads(out.read_text())
    assert (found["examples"], found["missing"]) == (80, 4)
    assert set(found["groups"]) == {"a", "b"}
    path = write(tmp_path, "y,decile_score,race\n1,,a\n,0.5,b\n")
    assert "every example lacks a value in y, decile_score:" in run(
        path, "--drop-missing", label="y", code=1
    )


def test_the_text_among_numbers_is_named(tmp_path: Path) -> None:
    words = run(write(tmp_path, ROWS + "1,high,a\n"), label="y", code=1)
    assert (
        "decile_score must hold numbers, found 'high' in 1 of 81 rows (first: row 82, with" in words
    )
    words = run(
        write(tmp_path, "y,decile_score,race\n" + "1,.5,30\n" * 3 + "0,.2,old\n"),
        label="y",
        group="race:40",
        code=1,
    )
    assert (
        "race holds text, 'old' in 1 of 4 rows (first: row 5, with the header as row 1); only"
        " numbers" in words
    )


def test_percentages_are_numbers(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    for sep, scores in (
        (",", ("90%", "20%", "60.5%", "70%")),
        (";", ("90 %", "20,5 %", "60 %", "70,0%")),
    ):
        lines = [sep.join(row) for row in zip("1001", scores, "abab", strict=True)]
        path = write(tmp_path, "\n".join([sep.join(("y", "decile_score", "race")), *lines * 20]))
        words = run(path, "--json", str(out), label="y")
        assert "the column 'decile_score' has percentages: 45% was read as 0.45" in words
        assert json.loads(out.read_text())["threshold"] == 0.5
        assert json.loads(out.read_text())["groups"]["a"]["rates"]["positive_rate"]["value"] == 1.0
    words = run(write(tmp_path, ROWS + "1,45%,a\n"), label="y", code=1)
    assert "found '45%' in 1 of 81 rows (first: row 82, with the header as row 1)" in words


def test_a_small_file_does_not_unpack_to_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.csv.gz"
    path.write_bytes(gzip.compress(ROWS.encode()))
    assert "80 examples" in run(path, label="y")
    monkeypatch.setattr(table_files, "STREAMED_BYTES", 1 << 20)
    path.write_bytes(gzip.compress((ROWS + "1,.9,a\n" * 2_000_000).encode()))
    for options in ((), ("--encoding", "utf-8")):
        tracemalloc.start()
        words = run(path, *options, label="y", code=1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert "unpacks to more than" in words
        assert "unpack it yourself" in words
        assert peak < 16 << 20


def test_census_exports_show_labels(tmp_path: Path) -> None:
    rows = "".join(
        f"{i % 2},{i % 3 % 2},{1 + i % 2},{(1, 2, 9)[i % 3]},{20 + i % 50}\n" for i in range(300)
    )
    path = write(tmp_path, f"y,made,SEX,RAC1P,AGEP\n{rows}")
    options = ["--prediction", "made", "--json", str(tmp_path / "a.json")]
    words = run(path, *options, label="y", group="SEX,RAC1P")
    assert "Female, Two or more races" in json.loads((tmp_path / "a.json").read_text())["groups"]
    assert "named by the labels of the American Community Survey's code book" in words
    # the reason of an undefined metric stands in its row
    assert "it is defined for two groups only" in words
    assert "Male" in " ".join(call("groups", path, "--by", "SEX").split())
    assert "25 to < 35" in run(path, "--prediction", "made", label="y", group="AGEP")
    # no code of the survey
    path = write(tmp_path, f"y,made,SEX,RAC1P,AGEP\n{rows.replace(',9,', ',99,')}")
    assert "races" not in run(path, "--prediction", "made", label="y", group="SEX,RAC1P")
    path = write(tmp_path, f"y,made,SEX,race,age\n{rows}")  # 1 and 2 may mean anything
    assert "Male" not in run(path, "--prediction", "made", label="y", group="SEX")


def test_one_class_against_the_rest() -> None:
    rng = np.random.default_rng(0)
    truth, guess, group = (rng.choice(values, 300) for values in (CLASSES, CLASSES, ["a", "b"]))
    columns = {"risk": truth, "guess": guess, "g": group, "is": (guess == "high").astype(int)}
    plain = audit(
        (truth == "high").astype(int), group, predictions=(guess == "high").astype(int), draws=50
    )
    for name in ("guess", "is"):
        found = audit_columns(
            columns, label="risk", groups="g", prediction=name, positive="high", draws=50
        )
        assert found.metrics == plain.metrics
        assert found.notes[0] == "the label 'risk' has 3 classes: high counts as 1, all others as 0"
    with pytest.raises(ValueError, match="3 different values in 300 rows; name"):
        audit_columns(columns, label="risk", groups="g", prediction="guess")
    with pytest.raises(ValueError, match="'risk' is 'top'; it holds 'high', 'low' and 'mid'"):
        audit_columns(columns, label="risk", groups="g", prediction="guess", positive="top")
    columns["guess"] = np.where(guess == "low", "none", guess)
    with pytest.raises(ValueError, match="give predictions in the label's classes, or 0 and 1"):
        audit_columns(columns, label="risk", groups="g", prediction="guess", positive="high")


def test_one_group_and_groups_that_are_the_label_get_a_note(tmp_path: Path) -> None:
    columns = read_columns(write(tmp_path, ROWS)) | {"all": np.full(80, "x")}
    found = audit_columns(columns, label="y", groups="all", score="decile_score", draws=50)
    assert str(found).startswith("80 examples, 1 group by all; scores, threshold 0.5\n")
    assert (
        found.notes[0]
        == "there is one group only, 'x': nothing is compared, and every gap is undefined"
    )
    found = audit_columns(columns, label="y", groups="y", score="decile_score", draws=50)
    assert found.notes[0].startswith("the group column 'y' is the label itself")
