"""The synthetic census: published facts, valid codes, seeds, dependence, and true probabilities and
losses.

Statistical tests have fixed seeds. Their limits are 4.5 standard errors (7 in a million by chance
for one comparison), or a chi-square quantile that is named.
"""

import numpy as np
import pytest
from census import extract, needs_extract

from fairbound.columns import _codebook as codebook
from fairbound.data._synthetic import FEATURES, LABEL, band_of, facts, load, pick, population

STATES = ("OK", "VA")
SIGMAS = 4.5

# Published: ACSIncome 2018, sizes and shares of positive labels.
ROWS = {"OK": 17_917, "VA": 46_144}
WHITE_OK = {"sizes": [13_350, 4_567], "rates": [0.30794, 0.20758]}
MARITAL_VA = {
    "sizes": [26_061, 931, 4_485, 903, 13_764],
    "rates": [0.5549, 0.3921, 0.4700, 0.3455, 0.2121],
}


def non_white(columns):
    return (columns["RAC1P"] != 1).astype(int)


def marital(columns):
    return columns["MAR"] - 1


PUBLISHED = [("OK", non_white, WHITE_OK), ("VA", marital, MARITAL_VA)]


@pytest.fixture(scope="module", params=STATES)
def people(request):
    return population(request.param)


@pytest.fixture(scope="module")
def drawn(people):
    return people.draw(200_000, seed=11)


# Facts


@pytest.mark.parametrize(("state", "groups", "published"), PUBLISHED)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_sample_has_the_published_group_sizes(state, groups, published, seed):
    table = load(state, seed)
    assert table.rows == ROWS[state]
    assert np.bincount(groups(table.columns)).tolist() == published["sizes"]


@pytest.mark.parametrize(("state", "groups", "published"), PUBLISHED)
def test_the_population_has_the_published_rates_to_within_two_thousandths(state, groups, published):
    """As many people of every group, however small: the standard errors are .0006 (250,000 people
    each)."""
    people, random = population(state), np.random.default_rng(1)
    pairs = np.repeat(np.arange(len(people.counts)), people.counts)
    group = groups({"RAC1P": people.races, "MAR": people.marital})[pairs]
    for key, rate in enumerate(published["rates"]):
        own = pairs[group == key]
        p = people.probability(people.complete(random, np.resize(own, 250_000)).columns)
        # whole repetitions of the group: its races in their proportions
        p = p[: len(p) - len(p) % len(own)]
        assert abs(p.mean() - rate) < 0.002 + SIGMAS * p.std() / np.sqrt(len(p))


@pytest.mark.parametrize(("state", "groups", "published"), PUBLISHED)
def test_fresh_people_have_the_published_groups_and_rate(state, groups, published):
    people = population(state)
    drawn, sizes = people.draw(200_000, seed=0).columns, np.array(published["sizes"]) / ROWS[state]
    shares = np.bincount(groups(drawn)) / 200_000
    assert (np.abs(shares - sizes) < SIGMAS * np.sqrt(sizes * (1 - sizes) / 200_000)).all()
    overall = sizes @ published["rates"]
    # .32: its spread
    assert abs(people.probability(drawn).mean() - overall) < 0.002 + SIGMAS * 0.32 / np.sqrt(
        200_000
    )


def test_no_embedded_count_stands_for_fewer_than_ten_people():
    for state in STATES:
        counts = np.array(facts()["states"][state]["counts"])
        assert counts.sum() == ROWS[state]
        assert counts[counts > 0].min() >= 10


# Columns and codes


def test_columns_are_those_of_acsincome(people, drawn):
    assert (
        drawn.features
        == FEATURES
        == ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P")
    )
    assert drawn.label == LABEL
    assert list(drawn.columns) == [*FEATURES, "ST", LABEL]
    assert drawn.columns[LABEL].dtype == bool
    assert {str(drawn.columns[name].dtype) for name in (*FEATURES, "ST")} == {"int64"}
    assert (drawn.columns["AGEP"] - 40).min() < 0  # unsigned codes would wrap around
    assert set(drawn.columns["ST"]) == {{"OK": 40, "VA": 51}[people.state]}
    assert drawn.source == f"synthetic:{people.state}"
    assert drawn.synthetic


def test_every_code_is_in_the_code_book(people, drawn):
    codes = {variable.name: variable.codes for variable in people.variables}
    for name in FEATURES:
        known = codes.get(name, np.unique(drawn.columns[name]))
        assert all(map(codebook.variable(name).holds, known)), name
    assert drawn.columns["AGEP"].min() == 17  # of the task


@needs_extract("OK")
@pytest.mark.parametrize("state", STATES)
def test_margins_and_correlations_are_near_those_of_the_extract(state):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(extract(state))
    real, drawn = {name: frame[name].to_numpy() for name in frame}, load(state).columns
    bands = {
        "AGEP": [17, 25, 35, 45, 55, 65],
        "SCHL": [1, 16, 18, 20, 21, 22],
        "COW": list(range(1, 9)),
        "SEX": [1, 2],
        "WKHP": [1, 20, 35, 40, 41, 50, 60],
        "OCCP": [10, 1005, 2001, 3000, 3601, 4700, 6005],
        "RELP": [0, 1, 2],
        "POBP": [1, 60, 100, 200, 300],
    }
    for name, starts in bands.items():
        shares = [
            np.bincount(band_of(table[name], starts), minlength=len(starts))
            for table in (real, drawn)
        ]
        # in total variation; about .01 is chance
        distance = np.abs(shares[0] - shares[1]).sum() / 2 / len(frame)
        assert distance < 0.04, name
    names = (*FEATURES, LABEL)
    gap = np.corrcoef([real[n] for n in names]) - np.corrcoef([drawn[n] for n in names])
    assert np.abs(gap).max() < 0.12  # the dependence that the tables leave out


# Seeds


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    first, again, other = load("OK", 3), load("OK", 3), load("OK", 4)
    for name in first.columns:
        np.testing.assert_array_equal(first.columns[name], again.columns[name])
    assert (first.columns["OCCP"] != other.columns["OCCP"]).mean() > 0.5


def test_rows_are_in_random_order():
    white = non_white(load("OK").columns) == 0
    share, rows = 13_350 / 17_917, 8_000
    assert abs(white[:rows].mean() - share) < SIGMAS * np.sqrt(share * (1 - share) / rows)


def test_rows_of_one_seed_for_different_uses_are_unrelated():
    """A model trained on load(state, 0) and judged on fresh rows with seed 0 must not meet its
    training rows."""
    same = load("OK", 0).columns["OCCP"] == population("OK").draw(17_917, 0).columns["OCCP"]
    assert same.mean() < 0.03, (
        "independent people share an occupation by chance in about 2 % of rows"
    )


def test_a_short_draw_is_what_it_was():
    """The same numbers on every platform: a change here is a change of everybody's synthetic
    data."""
    table = population("VA").draw(5, seed=2020)
    found = np.stack([table.columns[name].astype(int) for name in FEATURES], axis=1).tolist()
    assert found == [
        [45, 5, 21, 5, 1050, 51, 0, 40, 1, 1],
        [67, 6, 16, 3, 4760, 36, 0, 22, 2, 2],
        [61, 3, 18, 1, 5000, 51, 0, 45, 1, 1],
        [18, 1, 19, 5, 9620, 51, 17, 16, 1, 2],
        [23, 1, 16, 5, 7700, 51, 17, 50, 1, 1],
    ]
    assert table.columns[LABEL].tolist() == [True, False, True, False, False]


# Dependence


def test_columns_depend_on_each_other_as_people_do(drawn):
    columns = drawn.columns
    age = {mar: columns["AGEP"][columns["MAR"] == mar].mean() for mar in range(1, 6)}
    assert age[5] + 10 < age[1] < age[2] - 10, "the never married are young, widows old"
    assert set(columns["RELP"][columns["MAR"] == 5]).isdisjoint({1}), "nobody's spouse is unmarried"
    physicians = (columns["OCCP"] >= 3000) & (columns["OCCP"] < 3500)
    assert columns["SCHL"][physicians].mean() > columns["SCHL"][columns["OCCP"] >= 9005].mean() + 2


# The truth


def test_labels_follow_the_true_probability(people, drawn):
    p, label = people.probability(drawn.columns), drawn.columns[LABEL]
    assert 0 < p.min() < 0.02 < 0.9 < p.max() < 1
    decile = np.searchsorted(np.quantile(p, np.arange(0.1, 1, 0.1)), p)
    surplus = np.bincount(decile, weights=label - p)
    spread = np.bincount(decile, weights=p * (1 - p))
    # chi-square with 10 degrees of freedom: one in ten thousand
    assert (surplus**2 / spread).sum() < 35.6


def test_pick_inverts_each_row_of_the_distribution_functions():
    random = np.random.default_rng(0)
    shares = random.random((7, 5)) * (random.random((7, 5)) < 0.7) + np.eye(7, 5)
    shares[5:, 2] = 1
    table = np.cumsum(shares, axis=1) / shares.sum(axis=1, keepdims=True)
    table[:, -1] = 1
    cell, uniform = random.integers(0, 7, 500), random.random(500)
    expected = [
        next(code for code in range(5) if u < table[c, code])
        for c, u in zip(cell, uniform, strict=True)
    ]
    assert pick(table, cell, uniform).tolist() == expected


# Refusals


def test_the_truth_is_refused_for_rows_of_another_kind():
    people = population("OK")
    columns = dict(people.draw(10, seed=0).columns)
    columns["OCCP"] = np.where(np.arange(10) == 4, 9920, columns["OCCP"])
    with pytest.raises(
        ValueError, match="OCCP holds 9920 in row 4, which synthetic:OK never draws"
    ):
        people.probability(columns)
    del columns["WKHP"]
    with pytest.raises(KeyError, match="WKHP"):
        people.probability(
            {name: columns[name] for name in columns if name != "OCCP"} | {"OCCP": np.full(10, 10)}
        )


def test_empty_draws_and_negative_seeds_are_refused():
    people = population("OK")
    with pytest.raises(ValueError, match="rows=0"):
        people.draw(0, seed=0)
    with pytest.raises(ValueError, match="got -1"):
        load("OK", seed=-1)
