"""Columns of X as tensors: numbers, categories, missing values, and what is refused."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fairbound.integrations.sklearn import _features as features
from fairbound.integrations.sklearn._features import FeatureEncoder, Features

MISSING = [None, np.nan, pd.NA, pd.NaT, Decimal("NaN")]


def numeric_size(encoder: FeatureEncoder, X: Any) -> int:
    return int(encoder.transform(X).numeric.shape[1])


def mixed_frame(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(17, 95, n),
            "income": np.where(rng.random(n) < 0.2, np.nan, rng.lognormal(10, 1, n)),
            "work": rng.choice(["own", "state", "none"], n),
            "level": pd.Categorical(rng.choice([1, 2, 3], n)),
            "married": rng.random(n) < 0.5,
            "dummy": rng.integers(0, 2, n),
        }
    )


def encode(X: Any, *arguments: Any, **settings: Any) -> Features:
    return FeatureEncoder.fit(X, *arguments, **settings).transform(X)


def assert_equal(one: Features, other: Features) -> None:
    assert one.codes.dtype == other.codes.dtype == torch.int64
    assert one.numeric.dtype == other.numeric.dtype == torch.float32
    assert torch.equal(one.codes, other.codes)
    torch.testing.assert_close(one.numeric, other.numeric, rtol=1e-5, atol=1e-5)


# Properties ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bins", [0, 8])
def test_permuted_rows_give_permuted_features(bins: int) -> None:
    X = mixed_frame()
    order = np.random.default_rng(1).permutation(len(X))
    numeric, codes = encode(X, bins=bins)
    assert_equal(encode(X.iloc[order], bins=bins), Features(numeric[order], codes[order]))


@pytest.mark.parametrize("bins", [0, 8])
def test_rows_outside_train_have_no_influence(bins: int) -> None:
    X, train = mixed_frame().astype({"level": object}), np.arange(0, 300, 2)
    one = FeatureEncoder.fit(X, train=train, bins=bins)
    Y = X.copy()
    Y.loc[1::2, ["age", "income", "work", "level", "dummy"]] = [10**6, np.inf, "new", "text", 7]
    Y.loc[1::4, "work"] = None
    other = FeatureEncoder.fit(Y, train=torch.from_numpy(train), bins=bins)
    assert one.notes == other.notes
    assert one.sizes == other.sizes
    assert numeric_size(one, X) == numeric_size(other, X)
    assert_equal(one.transform(X), other.transform(X))


def test_notes_of_rows_outside_train_have_no_influence() -> None:
    rng = np.random.default_rng(0)
    X = rng.choice(rng.integers(0, 10_000, 40), (2000, 1)).astype(float)
    assert FeatureEncoder.fit(X).notes
    X[1000:] += 0.5  # not whole
    assert not FeatureEncoder.fit(X).notes
    assert FeatureEncoder.fit(X, train=np.arange(1000)).notes


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float64,
        st.tuples(st.integers(2, 30), st.just(2)),
        elements=st.floats(allow_infinity=False, width=64),
    ),
    st.integers(0, 5),
)
def test_numbers_of_any_size_give_finite_bounded_features(X: np.ndarray, bins: int) -> None:
    encoder = FeatureEncoder.fit(X, bins=bins)
    numeric, codes = encoder.transform(X)
    assert len(numeric) == len(X)
    assert codes.shape == (len(X), 0)
    assert numeric.isfinite().all()
    assert numeric.abs().max() <= features.MAX_DEVIATIONS


def test_a_pickled_encoder_is_the_same_and_holds_no_rows() -> None:
    X = mixed_frame(3000)
    encoder = FeatureEncoder.fit(X, bins=4)
    pickled = pickle.dumps(encoder)
    assert_equal(pickle.loads(pickled).transform(X), encoder.transform(X))
    assert len(pickled) < 3000  # a byte per row


# Numbers ------------------------------------------------------------------------------------------


def test_standardized_values_marks_and_dummies() -> None:
    X = np.array([[1.0, 0, 5, 1], [3, 1, 5, np.nan], [np.nan, 0, 5, 0]])
    encoder = FeatureEncoder.fit(X)
    expected = [[-1, 0, 0, 0, 1, 0], [1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert encoder.transform(X).numeric.tolist() == expected
    # missing where no training example was: 0 and no mark; values that a dummy or a constant never
    # had
    assert encoder.transform(np.array([[2, np.nan, 7, 2.0]])).numeric.tolist() == [
        [0, 0, 0, 2, 2, 0]
    ]


def test_bins_are_the_piecewise_linear_encoding_over_quantiles() -> None:
    rng = np.random.default_rng(0)
    v = rng.exponential(size=400)
    encoder = FeatureEncoder.fit(v[:, None], bins=4)
    new = np.array([-1.0, 0.1, 0.5, 1.0, 2.0, 50.0])
    edges = np.quantile(v, [0, 0.25, 0.5, 0.75, 1])
    expected = [[np.clip((x - a) / (b - a), 0, 1) for a, b in pairwise(edges)] for x in new]
    np.testing.assert_allclose(encoder.transform(new[:, None]).numeric[:, 1:], expected, atol=1e-6)


def test_equal_edges_are_merged_and_dummies_and_constants_have_no_bins() -> None:
    mostly_zero = np.r_[np.zeros(90), np.arange(1, 11)]
    X = np.c_[mostly_zero, mostly_zero > 0, np.full(100, 3.0)]
    encoder = FeatureEncoder.fit(X, bins=10)
    assert numeric_size(encoder, X) == (1 + 2) + 1 + 1  # eleven edges, of which nine are 0
    assert encoder.transform(X).numeric.isfinite().all()


def test_a_missing_value_is_encoded_as_the_mean_and_marked() -> None:
    X = np.array([[1.0], [2], [6], [np.nan]])
    numeric = FeatureEncoder.fit(X, bins=3).transform(np.array([[3.0], [np.nan]])).numeric
    assert numeric[:, 1].tolist() == [0, 1]
    torch.testing.assert_close(numeric[0, [0, 2, 3, 4]], numeric[1, [0, 2, 3, 4]])


def test_a_deviation_that_underflows_is_taken_as_1() -> None:
    assert encode(np.array([[5e-324], [0.0], [0.0]])).numeric.isfinite().all()


def test_far_values_are_clipped() -> None:
    encoder = FeatureEncoder.fit(np.array([[1.0], [2.0]]))
    assert encoder.transform(np.array([[1e300], [-1e300]])).numeric[:, 0].tolist() == [1e6, -1e6]


@pytest.mark.parametrize(
    "dtype", ["uint8", "int64", "float16", "float32", "float64", "longdouble", object]
)
def test_numeric_arrays_frames_and_lists_are_the_same(dtype: Any) -> None:
    X = np.random.default_rng(0).integers(0, 9, (40, 3)).astype(dtype)
    expected = encode(X.astype(float))
    assert_equal(encode(X), expected)
    assert_equal(encode(X.tolist()), expected)
    assert_equal(encode(pd.DataFrame(X, columns=list("abc"))), expected)
    assert_equal(encode(pl.DataFrame(X.astype(float), schema=list("abc"))), expected)


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "int64[pyarrow]", "double[pyarrow]", object])
def test_missing_numbers_of_extension_dtypes_and_polars(dtype: str) -> None:
    values = [4, None, 2, 9, None, 5]
    expected = encode(np.array(values, dtype=float)[:, None])
    assert expected.numeric.shape == (6, 2)
    assert_equal(encode(pd.DataFrame({"a": pd.Series(values, dtype=dtype)})), expected)
    assert_equal(encode(pl.DataFrame({"a": values})), expected)


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_array"])
@pytest.mark.parametrize("dtype", [float, "float32", int, bool])
def test_sparse_is_dense(form: str, dtype: Any) -> None:
    X = np.random.default_rng(0).poisson(0.4, (50, 6)).astype(dtype)
    assert_equal(encode(getattr(sparse, form)(X)), encode(X))
    assert_equal(encode(getattr(sparse, form)(X), [0, 3]), encode(X, [0, 3]))


def test_sparse_entries_given_twice_are_summed_and_the_input_is_unchanged() -> None:
    X = sparse.csc_array(
        (np.array([3.0, 4, 1]), np.array([1, 1, 0]), np.array([0, 3])), shape=(3, 1)
    )
    assert_equal(encode(X), encode(np.array([[1.0], [7], [0]])))
    assert X.indices.tolist() == [1, 1, 0]


# Categories ---------------------------------------------------------------------------------------


def test_categories_by_dtype_and_their_sizes() -> None:
    encoder = FeatureEncoder.fit(mixed_frame())
    assert encoder.sizes == (4, 4, 3)  # work, level, married
    assert numeric_size(encoder, mixed_frame()) == 1 + 2 + 1
    assert_equal(encode(mixed_frame(), "from_dtype"), encode(mixed_frame()))


@pytest.mark.parametrize("dtype", [object, "str", "string", "category", "string[pyarrow]"])
def test_text_of_every_dtype_and_polars_is_the_same(dtype: str) -> None:
    values = ["b", "a", None, "b", "a", "c", "c", "rare"]
    codes = [[2], [1], [0], [2], [1], [3], [3], [0]]
    assert encode(pd.DataFrame({"x": pd.Series(values, dtype=dtype)})).codes.tolist() == codes
    assert encode(pl.DataFrame({"x": values})).codes.tolist() == codes
    assert encode(pl.DataFrame({"x": values}, schema={"x": pl.Categorical})).codes.tolist() == codes
    assert encode(np.array(values, dtype=object)[:, None]).codes.tolist() == codes
    assert encode([[value] for value in values]).codes.tolist() == codes


def test_equal_numbers_are_one_category_and_text_is_another() -> None:
    X = pd.DataFrame(
        {"x": pd.Series([1, 1.0, 2, np.int8(2), "1", "1", "2", Decimal(2)], dtype=object)}
    )
    encoder = FeatureEncoder.fit(X, ["x"])
    assert encoder.transform(X).codes[:, 0].tolist() == [1, 1, 2, 2, 3, 3, 0, 2]
    for numbers in (
        np.array([1, 2, 3]),
        np.array([1.0, 2.0, np.nan]),
        np.array([1, 2, 0], dtype="uint8"),
    ):
        assert encoder.transform(pd.DataFrame({"x": numbers})).codes[:, 0].tolist() == [1, 2, 0]


@pytest.mark.parametrize("missing", MISSING, ids=repr)
def test_missing_of_every_kind_is_code_0(missing: Any) -> None:
    X = pd.DataFrame({"x": pd.Series(["a", "a", "b", "b", missing, missing], dtype=object)})
    assert encode(X).codes[:, 0].tolist() == [1, 1, 2, 2, 0, 0]
    Y = pd.DataFrame({"x": pd.Series([2, 2, 5, 5, missing, missing], dtype=object)})
    assert encode(Y, ["x"]).codes[:, 0].tolist() == [1, 1, 2, 2, 0, 0]
    assert encode(Y).numeric.tolist() == [[-1, 0], [-1, 0], [1, 0], [1, 0], [0, 1], [0, 1]]


def test_codes_follow_the_order_of_numbers_however_they_are_written() -> None:
    X = pd.DataFrame({"x": pd.Series([10, 2.0, 10.0, 2, "b", "a", "b", "a"], dtype=object)})
    assert encode(X, ["x"]).codes[:, 0].tolist() == [2, 1, 2, 1, 4, 3, 4, 3]
    assert encode(X[::-1], ["x"]).codes[:, 0].tolist() == [3, 4, 3, 4, 1, 2, 1, 2]


def test_a_list_of_numbers_and_text_keeps_its_numbers() -> None:
    X = [[1, "a"], [3, "a"]]
    encoder = FeatureEncoder.fit(X)
    assert (numeric_size(encoder, X), encoder.sizes) == (1, (2,))


def test_unknown_and_rare_categories_are_code_0() -> None:
    encoder = FeatureEncoder.fit(pd.DataFrame({"x": ["a", "a", "b", "b", "once"]}))
    assert encoder.sizes == (3,)
    assert encoder.transform(pd.DataFrame({"x": ["once", "new", "b"]})).codes[:, 0].tolist() == [
        0,
        0,
        2,
    ]


def test_a_column_of_categories_that_occur_once_is_noted() -> None:
    encoder = FeatureEncoder.fit(pd.DataFrame({"key": list("abcd"), "x": [1, 2, 3, 4]}))
    assert encoder.sizes == (1,)
    assert encoder.notes == (
        "column 'key' has no category with 2 training examples and is not used",
    )


def test_tuples_and_intervals_are_categories() -> None:
    X = pd.DataFrame({"pair": [(1, 2), (1, 2), (1,), (1,)], "band": pd.cut([1.0, 2, 8, 9], 2)})
    assert encode(X, ["pair", "band"]).codes.tolist() == [[1, 1], [1, 1], [2, 2], [2, 2]]


@pytest.mark.parametrize(
    "chosen", [["b", "c"], [1, 2], np.array([False, True, True]), pd.Index(["c", "b"])]
)
def test_categorical_features_by_name_position_and_mask(chosen: Any) -> None:
    X = pd.DataFrame({"a": [1, 2, 3, 3], "b": [7, 7, 9, 9], "c": [5.0, 5, 6, 6]})
    encoder = FeatureEncoder.fit(X, chosen)
    assert (encoder.sizes, numeric_size(encoder, X)) == ((3, 3), 1)
    assert encoder.transform(X).codes.tolist() == [[1, 1], [1, 1], [2, 2], [2, 2]]


def test_no_column_is_categorical_in_an_empty_list() -> None:
    X = pd.DataFrame({"a": [True, False]})
    assert numeric_size(FeatureEncoder.fit(X, []), X) == 1


# Sentences ----------------------------------------------------------------------------------------


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})


@pytest.mark.parametrize(
    ("X", "categorical", "sentence"),
    [
        (frame(income=[1.0, np.inf]), None, "column 'income' has infinite values; correct them"),
        (np.array([[1.0, -np.inf]]), None, "column 1 has infinite values"),
        (
            np.array([[1 + 2j]]),
            None,
            "Complex data not supported: column 0; give real and imaginary parts",
        ),
        (
            frame(born=pd.to_datetime(["2020-01-01"])),
            None,
            "column 'born' holds dates or times; make them numbers",
        ),
        (
            frame(born=pd.to_datetime(["2020-01-01"])),
            ["born"],
            "column 'born' holds dates or times",
        ),
        (frame(born=[datetime.date(2020, 1, 1)]), None, "column 'born' holds dates or times"),
        (
            frame(born=pd.period_range("2020", periods=1, freq="Y")),
            None,
            "column 'born' holds dates or times",
        ),
        (frame(took=pd.to_timedelta([3])), None, "column 'took' holds dates or times"),
        (
            pl.DataFrame({"born": [datetime.date(2020, 1, 1)]}),
            None,
            "column 'born' holds dates or times",
        ),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), None, "column 0 holds dates or times"),
        (
            frame(a=[1, "?", 3]),
            None,
            r"column 'a' is numeric but has '\?'; correct it, or use categorical_features",
        ),
        (frame(a=["x", "y"]), [], "column 'a' is numeric but has 'x'"),
        (
            frame(a=[[1], [2]]),
            ["a"],
            r"column 'a' holds no categories \(unhashable type: 'list'\); make it text",
        ),
        (np.ones(3), None, "Expected 2D array, got 1D array instead. Reshape your data"),
        (
            np.ones((0, 3)),
            None,
            r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is required",
        ),
        (np.ones((3, 0)), None, r"Found array with 0 feature\(s\) \(shape=\(3, 0\)\)"),
        (
            np.ones((2, 2)),
            ["a"],
            r"categorical_features has 'a', which is not a column of X: \[0, 1\]",
        ),
        (
            frame(a=[1], b=[2]),
            ["c"],
            r"categorical_features has 'c', which is not a column of X: \['a', 'b'\]",
        ),
        (np.ones((2, 2)), [2], "categorical_features has 2, which is not a column"),
        (np.ones((2, 2)), [-1], "categorical_features has -1, which is not a column"),
        (
            np.ones((2, 2)),
            [True],
            "categorical_features is a mask of 1 for 2 columns; give one entry each",
        ),
        (
            frame(race=[1]),
            "race",
            "categorical_features must be 'from_dtype', names, positions or a mask, got 'race'",
        ),
        (np.ones((2, 2)), [0.5], r"must be 'from_dtype', names, positions or a mask, got \[0.5\]"),
    ],
)
def test_what_is_refused_in_fit(X: Any, categorical: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        FeatureEncoder.fit(X, categorical)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["old", "12"], "column 'age' is numeric but has 'old'"),
        (["12", "13"], "column 'age' is numeric but has '12'"),
        ([1.0, np.inf], "column 'age' has infinite values"),
        (pd.to_datetime(["2020-01-01", "2020-01-02"]), "column 'age' holds dates or times"),
        ([1, {}], "column 'age' is numeric but has {}"),
    ],
)
def test_what_is_refused_in_transform(values: Any, sentence: str) -> None:
    encoder = FeatureEncoder.fit(frame(age=[20, 30]))
    with pytest.raises(ValueError, match=sentence):
        encoder.transform(frame(age=values))


def test_a_sparse_matrix_that_is_too_large_raises() -> None:
    with pytest.raises(ValueError, match=r"sparse.*\(100000, 5001\).*dense"):
        FeatureEncoder.fit(sparse.csr_array((100_000, 5001)))


# Notes --------------------------------------------------------------------------------------------


def test_whole_numbers_with_holes_are_noted_as_codes_and_quantities_are_not() -> None:
    rng = np.random.default_rng(0)
    n = 5000
    X = pd.DataFrame(
        {
            "age": rng.integers(17, 95, n),
            "hours": rng.choice([1, 5, 10, *range(15, 66), 70, 80, 99], n),
            "schooling": rng.integers(1, 25, n),
            "income": rng.lognormal(10, 1, n).round(),
            "occupation": rng.choice(np.sort(rng.choice(9830, 300, replace=False)), n),
            "half": rng.choice(np.arange(0, 9000, 30) + 0.5, n),
        }
    )
    found = X["occupation"].nunique(), X["occupation"].max()
    assert FeatureEncoder.fit(X).notes == (
        (
            f"column 'occupation' holds {found[0]} different whole numbers up to {found[1]} and is"
            " taken as numbers; if these are codes, name it in categorical_features"
        ),
    )
    assert not FeatureEncoder.fit(X, ["occupation"]).notes


def test_hours_of_few_examples_are_not_noted() -> None:
    # most of 1..99 is empty, as it is in a few hundred real examples
    hours = np.tile([*range(1, 60, 2), 99], 20)
    assert not FeatureEncoder.fit(hours[:, None]).notes
    assert FeatureEncoder.fit(hours[:, None] * 10).notes
