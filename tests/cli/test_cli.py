"""The commands as a person types them: what they print in 80 columns, what they write, and wrong
inputs."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import RUNNER, call
from scipy.stats import binomtest

from fairbound.cli._app import app


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["race,sex,age,y,p,yhat"]
    for _ in range(600):
        race, sex = rng.choice(["white", "black"], p=[0.7, 0.3]), rng.choice(["f", "m"])
        y = int(rng.random() < 0.4)
        p = round(min(1.0, rng.beta(2, 4) + 0.3 * y), 3)
        lines.append(f"{race},{sex},{rng.integers(18, 90)},{y},{p},{int(p >= 0.5)}")
    path = tmp_path / "predictions.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def audit(file: Path, *more: str | Path, group: str = "race", code: int = 0) -> str:
    """Of the predictions in the column yhat."""
    options = ("--label", "y", "--prediction", "yhat", "--group", group)
    return call("audit", file, *options, *more, code=code)


class TestAudit:
    def test_table_json_and_page(self, predictions: Path, tmp_path: Path) -> None:
        out, page = tmp_path / "out.json", tmp_path / "out.html"
        printed = call(
            "audit",
            predictions,
            "--label",
            "y",
            "--score",
            "p",
            "--group",
            "race,sex",
            "--json",
            out,
            "--html",
            page,
        )
        assert "600 examples, 4 groups by race x sex" in printed
        assert "equalized_odds_difference" in printed
        # the last lines name the files
        assert all(len(line) <= 80 for line in printed.splitlines()[:-2])
        found = json.loads(out.read_text())
        assert set(found["groups"]) == {"white, f", "white, m", "black, f", "black, m"}
        assert found["metrics"]["w1"]["value"] > 0
        assert page.read_text().startswith("<!DOCTYPE html>")

    def test_json_on_the_terminal_and_through_a_link(
        self, predictions: Path, tmp_path: Path
    ) -> None:
        words = f"audit {predictions} --label y --prediction yhat --group race --json -"
        assert json.loads(RUNNER.invoke(app, words.split()).stdout)["examples"] == 600
        (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
        audit(predictions, "--json", tmp_path / "link.json")
        assert (tmp_path / "link.json").is_symlink()
        assert json.loads((tmp_path / "real.json").read_text())["examples"] == 600

    def test_names_are_not_emojis(self, predictions: Path) -> None:
        renamed = predictions.with_name("acs:OK:x.csv")
        renamed.write_text(predictions.read_text())
        assert "acs:OK:x.csv" in audit(renamed)

    def test_escape_sequences_do_not_reach_the_terminal(self, tmp_path: Path) -> None:
        rows = "".join(
            f"{i % 2},{i % 3 % 2},{name}\n"
            for i in range(60)
            for name in ("\x1b[2Ja", "b\u202e\x9b1m")
        )
        (tmp_path / "bad\x1b[1m.csv").write_text(f"y,p,race\n{rows}", encoding="utf-8")
        options = ["--label", "y", "--prediction", "p", "--group"]
        for command in (["audit"], ["groups", "--by"]):
            asked = [
                command[0],
                tmp_path / "bad\x1b[1m.csv",
                *(options if command[0] == "audit" else command[1:]),
            ]
            printed = call(*asked, "race")
            assert "\\x1b[2Ja" in printed
            assert not {"\x1b", "\x9b", "\u202e"} & set(printed)
        printed = call("audit", tmp_path / "bad\x1b[1m.csv", *options, "\x1b]0;race", code=1)
        assert "\x1b" not in printed

    def test_formulas_in_the_csv_are_text(self, tmp_path: Path) -> None:
        names = ("=1+1", "+1", "-1", "@x", "plain")
        rows = "".join(f"{i % 2},{i % 3 % 2},{name}\n" for i in range(60) for name in names)
        (tmp_path / "in.csv").write_text(f"y,yhat,race\n{rows}")
        out = tmp_path / "out.csv"
        audit(tmp_path / "in.csv", "--csv", out, group="race=plain")
        audit(tmp_path / "in.csv", "--csv", out)
        head, *lines = csv.reader(out.read_text().splitlines())
        assert {line[0] for line in lines} == {"'=1+1", "'+1", "'-1", "'@x", "plain"}
        assert head[:2] == ["group", "examples"]
        assert float(lines[0][head.index("positive_rate_low")]) <= float(
            lines[0][head.index("positive_rate")]
        )

    def test_outputs_are_checked_first_and_written_before_printing(
        self, predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "b").symlink_to(tmp_path / "a")
        for other in ("a", "b"):  # two names of one file
            outputs = ("--json", tmp_path / "a", "--html", tmp_path / other)
            assert "is named for two outputs" in audit(predictions, *outputs, code=1)
        printed = audit(predictions, "--csv", "/dev/full", code=1)
        assert (
            "/dev/full cannot be written (No space left on device); name another file"
            in " ".join(printed.split())
        )
        assert "Metrics" not in printed

        def full(**_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("fairbound._utils.files.tempfile.TemporaryFile", full)
        monkeypatch.setattr("fairbound.data._readers.read_columns", None)  # nothing is read
        assert "cannot be written" in audit(predictions, "--json", tmp_path / "a.json", code=1)

    @pytest.mark.parametrize("way", ["same", "relative", "symlink", "hardlink", "folder link"])
    def test_no_output_replaces_an_input(
        self, predictions: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sub").mkdir()
        out = {"same": predictions, "relative": Path("sub/../predictions.csv")}.get(
            way, tmp_path / "link"
        )
        if way == "symlink":
            out.symlink_to(predictions.name)
        elif way == "hardlink":
            out.hardlink_to(predictions)
        elif way == "folder link":
            out.symlink_to(tmp_path)
            out /= predictions.name
        before, first = predictions.read_bytes(), tmp_path / "first.csv"
        first.write_bytes(before)
        for option in ("--html", "-o", "--csv", "--json"):
            for inputs in ([predictions], [first, "--compare-file", predictions]):
                printed = " ".join(audit(*inputs, option, out, code=1).split())  # type: ignore[arg-type]
                assert (
                    f"the output {out} is the input {predictions}, which would be lost" in printed
                )
        assert "which would be lost" in call(
            "groups", predictions, "--by", "race", "--json", out, code=1
        )
        assert predictions.read_bytes() == before

    @pytest.mark.parametrize(
        "words",
        [
            ["report", "income-ok-race", "--source"],
            ["board"],
            ["board", "income-ok-race", "--algorithm"],
        ],
    )
    def test_a_folder_of_outputs_holds_no_input(self, tmp_path: Path, words: list[str]) -> None:
        (tmp_path / "mine").mkdir()
        source = tmp_path / "mine" / ("mine.csv" if "report" in words else "mine.py")
        source.write_text("")
        named = f"{source}:MyMethod(tau=0.1)" if "--algorithm" in words else source
        for folder in (tmp_path, tmp_path / "mine" / ".." / "mine"):
            printed = " ".join(call(*words, named, "-o", folder, code=1).split())
            assert f"the input {source} lies in the output folder" in printed
        assert "is a file; name a folder" in call(*words, named, "-o", source, code=1)
        assert list((tmp_path / "mine").iterdir()) == [source]

    def test_many_groups_are_cut_short(self, predictions: Path) -> None:
        printed = audit(predictions, "--top", "1", group="race,sex")
        assert "and 3 smaller groups" in printed
        assert "... and 1 smaller group\n" in audit(predictions, "--top", "1")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"--label": "Y"}, "there is no column 'Y'; did you mean y"),
            ({"--group": "rase"}, "did you mean race"),
            ({"--reference": "whit"}, "no group is called 'whit'; did you mean white?"),
            ({"--group": "age"}, "cut it into bands"),
            ({"--json": "/nowhere/x.json"}, "there is no folder /nowhere"),
            ({"--prediction": "yhat"}, "either --score or --prediction"),
            ({"--seed": "-1"}, "--seed must be 0 or more"),
        ],
    )
    def test_wrong_options(self, predictions: Path, change: dict[str, str], message: str) -> None:
        options = {"--label": "y", "--score": "p", "--group": "race"} | change
        printed = call(
            "audit", predictions, *(word for pair in options.items() for word in pair), code=1
        )
        assert message in printed
        assert "Traceback" not in printed

    def test_no_such_file(self, predictions: Path) -> None:
        wrong = predictions.with_name("prediction.csv")
        printed = call("audit", wrong, "--label", "y", "--score", "p", "--group", "race", code=1)
        assert "predictions.csv" in printed


class TestGroups:
    def test_synthetic(self, tmp_path: Path) -> None:
        printed = call(
            "groups", "synthetic:OK", "--by", "RAC1P=1,SEX", "--json", tmp_path / "g.json"
        )
        assert "synthetic" in printed
        assert "4 definable groups, 4 populated" in printed
        found = json.loads((tmp_path / "g.json").read_text())
        assert sum(group["rows"] for group in found["groups"]) == 17_917

    def test_billions(self) -> None:
        printed = call(
            "groups", "synthetic:OK", "--by", "SEX,RAC1P,MAR,AGEP,SCHL,POBP,OCCP", "--top", "3"
        )
        assert "1,605,744,000 definable groups" in printed

    def test_a_file_with_and_without_a_label(self, predictions: Path, tmp_path: Path) -> None:
        """The rate of label 1 has Wilson's interval, at 95 %."""
        assert "label = 1" not in call("groups", predictions, "--by", "race")
        printed = call(
            "groups", predictions, "--by", "race", "--label", "y", "--json", tmp_path / "g.json"
        )
        assert "label = 1" in printed
        assert "95 %" in printed
        rows = list(csv.DictReader(predictions.read_text().splitlines()))
        for group in json.loads((tmp_path / "g.json").read_text())["groups"]:
            labels = [int(row["y"]) for row in rows if row["race"] == group["group"]]
            ends = binomtest(sum(labels), len(labels)).proportion_ci(0.95, method="wilson")
            assert [group["base_rate"][end] for end in ("low", "high")] == pytest.approx(
                [ends.low, ends.high]
            )

    def test_groups_with_uncertain_rates_are_counted(self, tmp_path: Path) -> None:
        (tmp_path / "people.csv").write_text("\n".join(["race", *["a"] * 50, *["b"] * 49]) + "\n")
        assert "1 of 2 with fewer than 50 rows" in call(
            "groups", tmp_path / "people.csv", "--by", "race"
        )

    def test_small_groups(self, predictions: Path) -> None:
        asked = ("groups", predictions, "--by", "race,age:30:60,sex", "--min-size", "60")
        assert "merged into (other)" in call(*asked)
        assert "rows dropped" in call(*asked, "--small", "drop")

    def test_wrong_input(self, predictions: Path) -> None:
        assert "did you mean SEX" in call("groups", "synthetic:OK", "--by", "SXE", code=1)
        assert "did you mean SEX" in call("groups", "synthetic:OK", "--by", "sex", code=1)
        assert "--label is for files" in call(
            "groups", "synthetic:OK", "--by", "SEX", "--label", "y", code=1
        )
        assert "did you mean" in call(
            "groups", predictions, "--by", "race", "--label", "yy", code=1
        )


class TestData:
    def test_list(self, tmp_path: Path) -> None:
        printed = call("data", "list", "--data", tmp_path)
        assert "synthetic:OK" in printed
        assert "fairbound data fetch" in printed

    def test_fetch_without_a_network(self, tmp_path: Path) -> None:
        printed = call(
            "data",
            "fetch",
            "OK",
            "--data",
            tmp_path,
            "--url",
            "http://127.0.0.1:9",
            "--retries",
            "0",
            code=1,
        )
        words = " ".join(printed.split())
        assert "csv_pok.zip" in words
        assert "2018" in words

    @pytest.mark.parametrize("folder", ["nowhere", "."])
    def test_a_named_folder_without_census_data_is_an_error(
        self, tmp_path: Path, folder: str
    ) -> None:
        printed = " ".join(
            call(
                "run",
                "paper-ok-race",
                "--data",
                tmp_path / folder,
                "--out",
                tmp_path / "out",
                code=1,
            ).split()
        )
        assert "no file of OK" in printed
        assert "synthetic data" not in printed


class TestBenchmark:
    FILE = """
title = "Two methods"
seeds = 2
records = 2
common = { steps = 6 }

[problem]
state = "OK"
group = "RAC1P=1"
groups = ["white", "non-white"]
notion = "pairwise"
bound = 0.005
hidden = [4]
batch = 4
split.seed = 42

[[entries]]
name = "SGD"
method = "SGD"
settings = { tau = 0.05 }

[[entries]]
name = "Descent-ascent"
method = "DescentAscent"
settings = { tau = 0.05, eta = 0.01 }
"""

    def test_run_resume_and_report(self, tmp_path: Path) -> None:
        (tmp_path / "two [a].toml").write_text(self.FILE)
        options = [
            tmp_path / "two [a].toml",
            "--source",
            "synthetic:OK",
            "--out",
            tmp_path / "results",
        ]
        assert "4 runs computed, 0 were there" in call("run", *options)
        again = call("run", *options)
        assert "0 runs computed, 4 were there" in again
        report = call("report", *options, "--to", tmp_path / "[report]")
        assert str(tmp_path / "[report]" / "index.html") in report
        assert "Descent-ascent" in report
        data = "Data: synthetic, not real: synthetic:OK, 17,917 rows"
        assert again.splitlines()[0] == report.splitlines()[0] == data
        page = (tmp_path / "[report]" / "index.html").read_text()
        assert page.partition("<h1>")[0].count(data) == 1
        assert (tmp_path / "[report]" / "tables" / "two-a-fairness.csv").exists()
        assert (tmp_path / "[report]" / "figures" / "two-a-curves.pdf").stat().st_size > 1000

    def test_a_study_without_a_result_says_why_and_has_no_page(self, tmp_path: Path) -> None:
        (tmp_path / "fails.py").write_text(
            "from fairbound.algorithms import DescentAscent\n"
            "class Fails(DescentAscent):\n"
            "    def step(self, *args, **kwargs):\n"
            "        raise RuntimeError('no luck')\n"
        )
        entry = '[[entries]]\nname = "Fails"\nmethod = "fails.py:Fails"\n'
        (tmp_path / "one.toml").write_text(self.FILE.partition("[[entries]]")[0] + entry)
        options = [
            "--source",
            "synthetic:OK",
            "--jobs",
            "1",
            "--out",
            tmp_path / "results",
            "--to",
            tmp_path / "page",
        ]
        said = call("run", tmp_path / "one.toml", *options, code=1)
        assert "1 task failed" in said
        assert "no luck" in said
        assert not (tmp_path / "page").exists()

    def test_wrong_input(self, tmp_path: Path) -> None:
        assert "'paper-ok-race'" in call("run", "paper-ok-rac", code=1)
        (tmp_path / "two.toml").write_text(self.FILE.replace("tau =", "tua ="))
        assert "tau" in call("run", tmp_path / "two.toml", code=1)
        (tmp_path / "two.toml").write_text(self.FILE)
        options = [tmp_path / "two.toml", "--source", "synthetic:OK", "--out", tmp_path / "none"]
        assert "compute them first" in call("report", *options, code=1)


def test_the_command_is_installed_and_says_what_it_lacks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from fairbound.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("fairbound 0")
    without = "import sys; sys.modules['typer'] = None; from fairbound.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'fairbound[cli]'" in done.stderr
