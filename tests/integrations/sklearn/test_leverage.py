"""Leverage: the interval of gaps that weights reach, in numbers, words and a plot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from two_groups import make_shifted, postprocessor

from fairbound import constraints
from fairbound.integrations.sklearn.corrections import Evaluated
from fairbound.integrations.sklearn.leverage import Leverage, Reach, measure_leverage

GAP = replace(constraints.pairwise_loss_parity(["A", "B"], bound=0.1), by="group")
LEVEL = replace(constraints.bounded_group_loss(["A", "B"], bound=0.5), by="group")


def evaluated(*values: float) -> Evaluated:
    return Evaluated(torch.tensor(values, dtype=torch.float64), 0.8, 0.4)


def test_the_reach_is_the_interval_of_the_values_without_each_group() -> None:
    asked: list[tuple[str, int]] = []
    without = {0: evaluated(0.05, -0.25, 0.3, -0.1), 1: evaluated(-0.04, -0.16, 0.0, 0.2)}

    def refit(by: str, group: int) -> Evaluated:
        asked.append((by, group))
        return without[group]

    found = measure_leverage((GAP, LEVEL), evaluated(0.1, -0.3, 0.1, 0.0), refit)
    assert asked == [("group", 0), ("group", 1)]
    a, b, of_a, of_b = found.reaches
    assert (a.name, a.bound, a.difference) == ("A - B", 0.1, True)
    np.testing.assert_allclose([a.unweighted, a.low, a.high], [0.2, 0.06, 0.2])  # c plus the bound
    np.testing.assert_allclose([b.unweighted, b.low, b.high], [-0.2, -0.2, -0.06])
    np.testing.assert_allclose([of_a.unweighted, of_a.low, of_a.high], [0.6, 0.5, 0.8])
    np.testing.assert_allclose([of_b.unweighted, of_b.low, of_b.high], [0.5, 0.4, 0.7])
    assert a.within
    assert not of_b.difference


def reach(unweighted: float, low: float, difference: bool = True) -> Reach:
    return Reach("A - B", 0.1, unweighted, low, unweighted + 0.05, difference)


@pytest.mark.parametrize(
    ("reaches", "words"),
    [
        ([reach(0.05, 0.0)], ["within every bound on out-of-fold data"]),
        ([reach(0.3, 0.05)], ["can reach every bound"]),
        (
            [reach(0.3, 0.05), reach(0.3, 0.25)],
            ["between 0.250 and 0.350", "its bound is 0.1: no weights", "bounded_group_loss", "the group as an input"],
        ),
        ([reach(0.3, 0.25, False)], ["no weights of the groups", "What can: other inputs", "looser bound"]),
    ],
)
def test_the_sentence_names_what_can_and_what_cannot(reaches: list[Reach], words: list[str]) -> None:
    found = Leverage(tuple(reaches))
    for word in words:
        assert word in found.sentence
    assert "[0" in str(found)
    assert len(str(found).splitlines()) == 1 + len(reaches)


def test_the_plot_shows_intervals_and_bounds() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    ax = Leverage((reach(0.3, 0.25), reach(0.05, 0.0))).plot()
    drawn = [line.get_xdata() for line in ax.get_lines()]
    assert [0.25, 0.35] in [list(x) for x in drawn]
    assert [0.1, 0.1] in [list(x) for x in drawn]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["A - B", "A - B"]
    plt.close(ax.figure)


def noisier_in_b(examples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The label depends on the group through x only, and B is where labels are uncertain."""
    X, _, group = make_shifted(examples, seed)
    rng = np.random.default_rng(seed + 1)
    return X, (rng.random(examples) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(int), group


def test_where_labels_depend_on_x_only_weights_have_no_leverage() -> None:
    X, y, group = noisier_in_b(3000)
    fair = postprocessor(constraint="pairwise_loss_parity", bound=0.02).fit(X, y, sensitive_features=group)
    assert fair.leverage_ is not None
    (reached,) = (one for one in fair.leverage_.reaches if one.name == "B - A")
    assert reached.unweighted > 0.1
    assert reached.low > reached.unweighted - 0.03
    assert not reached.within
    assert "no weights of the groups will keep it" in fair.leverage_.sentence
    assert fair.leverage_.sentence.split()[0] in fair.report()


def test_where_groups_have_rules_of_their_own_weights_have_leverage() -> None:
    rng = np.random.default_rng(0)
    group = np.where(rng.random(2000) < 0.3, "B", "A")
    X = rng.standard_normal((2000, 2))
    score = np.where(group == "A", X[:, 0], X[:, 1])
    y = (2 * score + rng.standard_normal(2000) > 0).astype(int)
    fair = postprocessor(LogisticRegression(), constraint="pairwise_loss_parity", bound=0.05)
    fair.fit(X, y, sensitive_features=group)
    assert fair.leverage_ is not None
    reached = {one.name: one for one in fair.leverage_.reaches}
    assert reached["B - A"].unweighted > 0.2
    assert reached["B - A"].low < 0
    assert "can reach every bound" in fair.leverage_.sentence


def test_no_leverage_without_enough_examples_of_a_label_in_the_other_groups() -> None:
    X, y, group = make_shifted(300)
    y[group == "A"] = 1
    y[:4] = 0
    fair = postprocessor(constraint="pairwise_loss_parity", bound=0.001).fit(X, y, sensitive_features=group)
    assert fair.leverage_ is None
