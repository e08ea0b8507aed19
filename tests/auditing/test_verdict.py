"""Verdicts: the three decisions, several constraints on the same examples, columns of any kind, and
what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from tables import skewed, two

from fairbound import constraints
from fairbound.auditing import Gap, Verdict, examples_needed, verdict
from fairbound.auditing._tables import verdict_table
from fairbound.constraints import Cell, Cells, Constraint
from fairbound.constraints._contrasts import Matrix

ROOT = Path(__file__).parents[2]
TWO = ["A", "B"]


def test_weights_count_the_population_not_examples() -> None:
    groups, losses = skewed(np.random.default_rng(3), 400, 200)
    plain = verdict(two(0.3), groups, losses=losses)
    tripled = verdict(two(0.3), groups, losses=losses, weight=np.full(600, 3.0))
    assert tripled.gaps[0].at_most == pytest.approx(plain.gaps[0].at_most)
    uneven = verdict(two(0.3), groups, losses=losses, weight=np.tile([0.2, 1.8], 300))
    assert uneven.gaps[0].high - uneven.gaps[0].low > 1.1 * (plain.gaps[0].high - plain.gaps[0].low)
    without = verdict(two(0.3), groups, losses=losses, weight=np.tile([0.0, 1.0], 300))
    half = verdict(two(0.3), groups[1::2], losses=losses[1::2])
    assert without.gaps == half.gaps


# Decisions ----------------------------------------------------------------------------------------


def test_457_examples_never_show_that_a_bound_of_005_holds() -> None:
    """Even where the groups do not differ at all; and the verdict says how many examples it would
    take."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        groups, losses = skewed(rng, 1335, 457)
        found = verdict(
            constraints.loss_parity(["white", "other"], bound=0.005), groups, losses=losses
        )
        assert found.decision != "holds"
        if all(gap.estimate <= gap.bound for gap in found.gaps):
            assert found.decisive.needed > 10 * 457


def test_the_three_decisions_follow_from_the_limits_of_gaps() -> None:
    groups, losses = skewed(np.random.default_rng(6), 3000, 1000, shift=0.3)
    decisions = {}
    for bound in np.linspace(0.05, 0.6, 40):
        found = verdict(two(bound), groups, losses=losses)
        ours = found.gaps[1]
        assert (found.decision == "holds") == all(gap.at_most <= bound for gap in found.gaps)
        assert (found.decision == "violated") == any(gap.low > bound for gap in found.gaps)
        # one-sided and alone: nearer than all at once
        assert ours.low < ours.estimate < ours.at_most < ours.high
        decisions[found.decision] = found
    assert list(decisions) == ["violated", "undecided", "holds"]
    assert "more examples of 'B'" in decisions["undecided"].sentence
    assert decisions["holds"].decisive.name == decisions["violated"].decisive.name == "B - A"


def test_an_estimate_on_its_bound_is_never_decided() -> None:
    losses = np.tile([0.0, 0.5, 1.0, 1.5], 50)
    found = verdict(two(0.25), np.repeat([0, 1], 100), losses=losses + np.repeat([0.0, 0.25], 100))
    assert found.decision == "undecided"
    assert math.isinf(found.gaps[1].needed)
    assert "perhaps more than a billion more examples" in found.sentence


@pytest.mark.parametrize(
    ("rows", "losses", "reason"),
    [
        (0, lambda n: np.empty(0), "no examples"),
        (1, lambda n: np.ones(1), "1 example,"),
        (29, lambda n: np.random.default_rng(0).random(n), "29 examples"),
        (500, lambda n: np.full(n, 0.6931), "are the same"),
    ],
)
def test_a_cell_that_tells_nothing_is_never_said_to_hold(
    rows: int, losses: Any, reason: str
) -> None:
    others = np.random.default_rng(1).random(400)
    given = np.concatenate([others, losses(rows)])
    found = verdict(two(10.0), np.repeat([0, 1], [400, rows]), losses=given)
    assert found.decision == "undecided"
    assert all(reason in gap.reason and gap.at_most is None for gap in found.gaps)
    assert reason in found.sentence
    assert all(len(line) <= 80 for line in str(found).splitlines())


def test_a_small_group_does_not_hide_that_two_others_differ() -> None:
    groups, losses = skewed(np.random.default_rng(7), 2000, 2000, 5)
    found = verdict(
        constraints.pairwise_loss_parity(3, bound=0.1), groups, losses=losses + (groups == 0)
    )
    assert found.decision == "violated"
    assert {gap.decision for gap in found.gaps if "2" in gap.name} == {"undecided"}


def test_few_effective_examples_are_few_examples() -> None:
    groups, losses = skewed(np.random.default_rng(8), 100, 100)
    found = verdict(
        two(5.0), groups, losses=losses, weight=np.where(np.arange(200) % 100 < 5, 1000.0, 1.0)
    )
    assert found.decision == "undecided"
    assert "effective number is 5" in found.gaps[0].reason


def test_a_rate_whose_heavy_examples_are_the_rare_ones_has_its_larger_error() -> None:
    """It is less certain than Kish's number of examples says, 200 of 400 for each group."""
    positive = np.tile(np.arange(400) % 10 == 0, 2)
    weight = np.where(positive, 6.0, 1.0)
    groups = np.repeat(TWO, 400)
    parity = constraints.demographic_parity(TWO, bound=0.5)
    gap = verdict(parity, groups, predictions=positive, weight=weight).gaps[0]
    rate = np.average(positive[:400], weights=weight[:400])
    share = weight[:400] / weight[:400].sum()
    error = np.sqrt(2 * np.square(share * (positive[:400] - rate)).sum())
    assert gap.at_most - gap.estimate == pytest.approx(1.645 * error, rel=0.1)


def test_a_rate_of_nobody_in_many_holds() -> None:
    """0 of n is no certainty, but Cai's limit stays sensible there: about 3 in n."""
    groups = np.repeat([0, 1], 5000)
    found = verdict(
        constraints.demographic_parity(TWO, bound=0.01), groups, predictions=np.zeros(10_000)
    )
    assert found.decision == "holds"
    assert 0.0005 < found.gaps[0].at_most < 0.0012
    tight = verdict(
        constraints.demographic_parity(TWO, bound=0.0003), groups, predictions=np.zeros(10_000)
    )
    assert tight.decision == "undecided"


def test_minimum_rates_read_as_they_are_meant() -> None:
    y, made = np.ones(400), np.tile([1, 1, 1, 0, 1], 80)
    recall = constraints.minimum_rate(0.7, groups=TWO, group="B", label=1)
    found = verdict(recall, np.repeat(TWO, 200), predictions=made, labels=y)
    (gap,) = found.gaps
    assert (gap.estimate, gap.bound, gap.minimum) == (pytest.approx(-0.8), -0.7, True)
    assert found.decision == "holds"
    assert re.search(r"0\.800 \[0\.7\d\d, 0\.8\d\d\] >= 0\.7\d\d 0\.700 holds", str(found))
    assert "at least 0.7" in found.sentence


@pytest.mark.parametrize("bound", [0.01, 0.2, 3.0])
def test_the_table_fits_and_has_whole_names_and_intervals(bound: float) -> None:
    groups, losses = skewed(np.random.default_rng(9), 60, 80, 200, 300, 20, 1000)
    names = [f"a group with a long name {g}" for g in range(6)]
    for limit in (
        constraints.pairwise_loss_parity(names, bound=bound),
        constraints.bounded_group_loss(6, bound=bound),
    ):
        found = verdict({"race": limit}, groups, losses=1000 * losses, level=0.999)
        lines = str(found).splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[-1].endswith(".")
        assert all(line.count("[") == line.count("]") for line in lines)


def test_a_pair_has_one_row_the_nearest_to_its_bound_comes_first_and_few_examples_one_line() -> (
    None
):
    groups, losses = skewed(np.random.default_rng(9), 300, 300, 300, 5)
    found = verdict(
        constraints.pairwise_loss_parity(list("ABCD"), bound=0.2), groups, losses=losses + groups
    )
    assert len(found.gaps) == 12
    table = verdict_table(found.gaps, 0.95)
    rows = table.records()
    assert [row["constraint"] for row in rows] == ["C - A", *(r["constraint"] for r in rows[1:])]
    assert len(rows) == 3
    gaps = {gap.name: gap for gap in found.gaps}
    for row in rows:
        gap = gaps[row["constraint"]]
        assert row["value"] == {"value": gap.estimate, "low": gap.low, "high": gap.high}
    assert any("6 gaps cannot be tested: fewer than 30 examples of 'D'" in n for n in table.notes)


# Several constraints on the same examples ---------------------------------------------------------


def test_the_same_constraint_twice_costs_nothing() -> None:
    """Examples that count in two constraints make these correlated: a copy of a column leaves the
    intervals as they are, an unrelated column widens them."""
    rng = np.random.default_rng(10)
    groups, losses = skewed(rng, 300, 300)
    alone = verdict(two(0.3), groups, losses=losses)
    both = {
        name: constraints.pairwise_loss_parity(TWO, bound=0.3, by=name) for name in ("race", "sex")
    }
    copy = verdict(both, {"race": groups, "sex": groups}, losses=losses)
    other = verdict(both, {"race": groups, "sex": rng.permutation(groups)}, losses=losses)
    assert copy.gaps[0].low == pytest.approx(alone.gaps[0].low, abs=1e-9)
    assert copy.gaps[2].high == pytest.approx(alone.gaps[0].high, abs=1e-9)
    assert other.gaps[0].low < alone.gaps[0].low - 0.01
    # "holds" needs no such account
    assert other.gaps[0].at_most == pytest.approx(alone.gaps[0].at_most)


def test_a_group_against_all_groups() -> None:
    """Cells that overlap within one gap: the group's own examples are part of all."""
    contrast, bound = torch.tensor([[1.0, -1.0]]).double(), torch.tensor([0.2]).double()
    cells = Cells((Cell("B", 1), Cell("all")), groups=2)
    limit = Constraint(cells, Matrix(("B - all",), contrast), bound)
    rng, gaps = np.random.default_rng(11), []
    for _ in range(300):
        groups, losses = skewed(rng, 100, 300)
        gaps.append(verdict(limit, groups, losses=losses).gaps[0])
    spread = np.std([gap.estimate for gap in gaps])
    widths = np.mean([gap.at_most - gap.estimate for gap in gaps])
    assert widths == pytest.approx(1.645 * spread, rel=0.15)
    all_are_b = verdict(limit, np.ones(300, dtype=int), losses=losses[:300])
    assert all_are_b.decision == "holds"
    assert all_are_b.gaps[0].estimate == 0


def test_rates_and_losses_together() -> None:
    rng = np.random.default_rng(12)
    groups, losses = skewed(rng, 800, 800)
    made = rng.random(1600) < 0.4
    several = [two(0.5), constraints.demographic_parity(["a", "b"], bound=0.2)]
    found = verdict(several, groups, losses=losses, predictions=made)
    assert [gap.name for gap in found.gaps] == ["A - B", "B - A", "a - b", "b - a"]
    assert found.decision == "holds"


# Columns ------------------------------------------------------------------------------------------


def test_columns_of_any_kind_tell_the_same() -> None:
    rng = np.random.default_rng(13)
    groups, losses = skewed(rng, 500, 200)
    text = np.array(TWO)[groups]
    plain = verdict(two(0.3), groups, losses=losses)
    for column in (text.tolist(), pd.Categorical(text), pl.Series(text), torch.tensor(groups)):
        assert verdict(two(0.3), column, losses=losses).gaps == plain.gaps
    for values in (torch.tensor(losses, requires_grad=True), pd.Series(losses), losses[:, None]):
        assert verdict(two(0.3), groups == 1, losses=values).gaps == plain.gaps


def test_decisions_from_logits_classes_and_predictions() -> None:
    rng = np.random.default_rng(14)
    groups, logits = np.repeat([0, 1], 300), rng.normal(size=600)
    parity = constraints.demographic_parity(TWO, bound=0.1)
    assert verdict(parity, groups, outputs=logits) == verdict(
        parity, groups, predictions=logits > 0
    )
    classes = rng.normal(size=(600, 3))
    third = constraints.demographic_parity(TWO, bound=0.1, outcome=2)
    assert verdict(third, groups, outputs=classes) == verdict(
        third, groups, predictions=classes.argmax(1)
    )


def test_examples_of_no_group_are_left_out() -> None:
    groups, losses = skewed(np.random.default_rng(15), 200, 200, 50)
    numbered = verdict(two(0.5), np.where(groups == 2, -1, groups), losses=losses)
    missing = verdict(two(0.5), pd.Series(["A", "B", None])[groups], losses=losses)
    assert (
        numbered.gaps == missing.gaps == verdict(two(0.5), groups[:400], losses=losses[:400]).gaps
    )


LOSSES = {"losses": [1.0, 2.0]}
PARITY = constraints.demographic_parity(2, bound=0.1)
OPPORTUNITY = constraints.equal_opportunity(2, bound=0.1, of="loss")
REFUSED = {
    "a function": (constraints.weight_norm(3.0), [0, 1], LOSSES, "function"),
    "no numbers": (two(0.1), [0, 1], {}, "give losses="),
    "losses for a rate": (PARITY, [0, 1], LOSSES, "predictions="),
    "decisions for a loss": (two(0.1), [0, 1], {"predictions": [1, 0]}, "needs losses="),
    "probabilities": (PARITY, [0, 1], {"outputs": [0.2, 0.9]}, "probabilities"),
    "no decisions": (PARITY, [0, 1], {"predictions": [0.2, 1.0]}, "0 or 1"),
    "NaN": (two(0.1), [0, 1], {"losses": [1.0, math.nan]}, "1 of 2 losses"),
    "infinite logits": (PARITY, [0, 1], {"outputs": [math.inf, 1.0]}, "1 of 2 outputs"),
    "lengths": (two(0.1), [0, 1, 1], LOSSES, "losses 2, groups 3"),
    "no groups": (two(0.1), None, LOSSES, "about groups"),
    "unknown number": (two(0.1), [0, 2], LOSSES, "up to 2"),
    "unknown name": (two(0.1), ["A", "C"], LOSSES, "'C'"),
    "no such column": (two(0.1), {"sex": [0, 1], "race": [0, 1]}, LOSSES, "by="),
    "no labels": (OPPORTUNITY, [0, 1], LOSSES, "give labels="),
    "negative weights": (two(0.1), [0, 1], LOSSES | {"weight": [1, -1]}, "not negative"),
    "a level": (two(0.1), [0, 1], LOSSES | {"level": 95}, "got 95"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_sentence(case: str) -> None:
    limit, groups, given, words = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        verdict(limit, groups, **given)


def test_examples_needed_refuses_what_no_examples_show() -> None:
    with pytest.raises(ValueError, match="not within its bound"):
        examples_needed(0.05, gap=0.05)


# The page -----------------------------------------------------------------------------------------


def test_the_table_of_the_guide_is_computed() -> None:
    guide = (ROOT / "docs" / "guides" / "does_it_hold.md").read_text().replace(",", "")
    rows = re.findall(r"\| (0\.\d+) \| (\d+) \| (\d+) \|", guide)
    assert len(rows) == 5
    for bound, half, none in rows:
        assert [examples_needed(float(bound)), examples_needed(float(bound), gap=0.0)] == [
            int(half),
            int(none),
        ]


def two_rates(bound: float) -> Verdict:
    """0.55 and 0.47, of 500 examples each: their difference is 0.08, its standard error 0.032."""
    decided = np.concatenate([np.arange(500) < 275, np.arange(500) < 235]).astype(int)
    parity = constraints.demographic_parity(["A", "B"], bound=bound)
    found = verdict(parity, ["A"] * 500 + ["B"] * 500, predictions=decided)
    assert found.decision == "undecided"
    return found


ERROR = np.sqrt((0.55 * 0.45 + 0.47 * 0.53) / 500)


def more_examples(true_gap: float, bound: float, gap: Gap) -> float:
    """As many as let the limit on the side of the bound, and 0.84 errors for power 0.8, fit between
    truth and bound."""
    half = gap.at_most - gap.estimate if true_gap < bound else gap.estimate - gap.low
    return 500 * ((half + 0.8416 * ERROR) / (true_gap - bound)) ** 2 - 500


def counts(pattern: str, found: Verdict) -> list[int]:
    return [int(count.replace(",", "")) for count in re.search(pattern, found.sentence).groups()]


@pytest.mark.parametrize("bound", [0.03, 0.13])
def test_how_many_more_examples_is_a_range(bound: float) -> None:
    """For a true gap a standard error to either side: of one sample the point alone varied by a
    factor of 50."""
    found = two_rates(bound)
    fewest, most = sorted(
        more_examples(0.08 + away, bound, found.decisive) for away in (-ERROR, ERROR)
    )
    both = counts(r"allowed. ([\d,]+) to ([\d,]+) more examples of '[AB]'", found)
    assert both == pytest.approx([max(1, fewest), most], rel=0.1)  # rounded up to two digits
    in_all = re.search(r"undecided +([\d,]+)-([\d,]+)\n", str(found)).groups()
    assert [int(count.replace(",", "")) for count in in_all] == pytest.approx(
        [both[0] + 500, both[1] + 500], rel=0.1
    )


@pytest.mark.parametrize("bound", [0.07, 0.079, 0.1])
def test_the_range_has_no_upper_end_where_the_bound_is_within_a_standard_error(
    bound: float,
) -> None:
    """Then the lower end is of the farther of the two truths, and the number next to it is of the
    estimate itself."""
    found = two_rates(bound)
    gap = found.decisive
    fewest = min(more_examples(0.08 + away, bound, gap) for away in (-ERROR, ERROR))
    likely = more_examples(0.08, bound, gap)
    assert gap.needed == pytest.approx(500 + likely, rel=0.01)
    both = counts(r"at least ([\d,]+), perhaps more than ([\d,]+) more examples of '[AB]'", found)
    assert both == pytest.approx([max(1, fewest), likely], rel=0.1)
    assert "if the true value is at the bound, no number of examples decides" in found.sentence
    assert re.search(r"undecided +[\d,]+\+\n", str(found))


def test_simultaneous_limits_of_three_equal_groups_are_tukey_s() -> None:
    """The studentized range of three means at 95 % is 3.314; each half width is 3.314 / sqrt(2)
    standard errors.

    At 97.5 % it would be 2.60 of them."""
    n = 20_000
    decided = np.tile(np.arange(n) % 2, 3)
    found = verdict(
        constraints.demographic_parity(["A", "B", "C"], bound=0.1),
        np.repeat(list("ABC"), n),
        predictions=decided,
    )
    error = np.sqrt(2 * 0.25 / n)
    for gap in found.gaps:
        assert gap.high is not None
        assert gap.low is not None
        assert (gap.high - gap.low) / 2 / error == pytest.approx(3.314 / np.sqrt(2), abs=0.06)
