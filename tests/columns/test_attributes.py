"""Attributes, intersections, minimum sizes; billions of definable groups; the real census."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbound.columns import _codebook as codebook
from fairbound.columns._attributes import OTHER, Against, Banded, Coded, Intersection

SEX = Coded("SEX", (1, 2), ("male", "female"))
RACE = Coded("RACE", ("w", "b", "a"), ("white", "black", "asian"))


def digits(name: str, size: int) -> Coded:
    return Coded(name, tuple(range(size)), tuple(f"{name}{i}" for i in range(size)))


class TestAttributes:
    def test_codes_of_numbers_and_text(self) -> None:
        assert SEX.levels(np.array([2, 1])).tolist() == [1, 0]
        assert SEX.levels(np.array([2.0, 1.0])).tolist() == [1, 0]
        assert RACE.levels(np.array(["a", "w", "b"], dtype=object)).tolist() == [2, 0, 1]

    def test_levels_of_a_column_with_missing_values(self) -> None:
        found = Coded.of("RACE", np.array(["b", None, "a"], dtype=object))
        assert found.labels == ("a", "b", "(missing)")
        assert found.levels(np.array([None, "b"], dtype=object)).tolist() == [2, 1]
        numbers = Coded.of("n", np.array([3.0, np.nan, 1.0]))
        assert numbers.levels(np.array([np.nan, 3.0])).tolist() == [2, 1]

    def test_unknown_and_missing_codes(self) -> None:
        with pytest.raises(
            ValueError, match=r"SEX holds 3 in 1 of 2 rows \(first: row 3, .*1 male and 2 female"
        ):
            SEX.levels(np.array([1, 3]))
        with pytest.raises(ValueError, match="w white, b black"):
            RACE.levels(np.array(["ww"]))
        with pytest.raises(ValueError, match=r"missing in 1 of 2 rows \(first: row 3"):
            RACE.levels(np.array(["w", None], dtype=object))
        with pytest.raises(ValueError, match="a code twice"):
            Coded("x", (1, 1), ("a", "b"))

    def test_bands_hold_their_lower_edge(self) -> None:
        age = Banded("AGE", (25, 65))
        assert age.levels(np.array([24, 25, 64.9, 65])).tolist() == [0, 1, 1, 2]
        with pytest.raises(ValueError, match="must rise"):
            Banded("AGE", (65, 25))
        with pytest.raises(ValueError, match="holds text"):
            age.levels(np.array(["x"]))
        with pytest.raises(ValueError, match=r"missing in 1 of 2 rows \(first: row 3"):
            age.levels(np.array([1.0, np.nan]))

    def test_one_against_the_rest(self) -> None:
        assert Against("RACE", "w", ("w", "other")).levels(np.array(["w", "a"])).tolist() == [0, 1]
        with pytest.raises(ValueError, match="no row has RACE = z; it holds a, w"):
            Against("RACE", "z", ("z", "other")).levels(np.array(["w", "a"]))


class TestIntersection:
    @given(
        st.integers(1, 60), st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(0, 9)
    )
    @settings(max_examples=60, deadline=None)
    def test_groups_are_those_of_numpys_unique_rows(
        self, rows: int, sizes: list[int], seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        columns = {f"a{i}": rng.integers(0, size, rows) for i, size in enumerate(sizes)}
        found = Intersection(tuple(digits(f"a{i}", size) for i, size in enumerate(sizes))).group(
            columns
        )
        levels, ids, counts = np.unique(
            np.stack(list(columns.values()), 1), axis=0, return_inverse=True, return_counts=True
        )
        assert found.levels.tolist() == levels.tolist()
        assert found.ids.tolist() == ids.ravel().tolist()
        assert found.sizes.tolist() == counts.tolist()
        assert found.definable == np.prod(sizes)
        assert found.populated == len(found)

    def test_beyond_64_bits(self) -> None:
        """A thousand levels each: 10^24 definable groups are counted, and the populated ones still
        told apart."""
        rng = np.random.default_rng(0)
        many = Intersection(tuple(digits(f"a{i}", 1000) for i in range(8)))
        columns = {f"a{i}": rng.integers(0, 3, 500) for i in range(8)}
        found = many.group(columns)
        assert found.definable == 10**24
        levels = np.unique(np.stack(list(columns.values()), 1), axis=0)
        assert found.levels.tolist() == levels.tolist()

    def test_the_code_book_defines_billions(self) -> None:
        names = ("SEX", "RAC1P", "MAR", "AGEP", "SCHL", "POBP", "OCCP")
        assert Intersection(tuple(codebook.attribute(name) for name in names)).definable > 1e9

    def test_small_groups_are_merged_or_dropped(self) -> None:
        three = digits("a", 4)
        columns = {"a": np.repeat([0, 1, 2, 3], [10, 3, 2, 1])}
        merged = Intersection((three,)).group(columns, min_size=5)
        assert merged.names == ("a0", OTHER)
        assert merged.sizes.tolist() == [10, 6]
        assert (merged.merged, merged.dropped, merged.populated) == (3, 0, 4)
        out = Intersection((three,)).group(columns, min_size=5, small="drop")
        assert (out.names, out.dropped) == (("a0",), 6)
        assert out.ids.tolist() == [0] * 10 + [-1] * 6
        # the rest, 6 rows, is itself too small
        too_few = Intersection((three,)).group(columns, min_size=7)
        assert (too_few.names, too_few.dropped, too_few.merged) == (("a0",), 6, 0)
        with pytest.raises(ValueError, match="got 'skip'"):
            Intersection((three,)).group(columns, small="skip")

    def test_wrong_input(self) -> None:
        with pytest.raises(ValueError, match="no column 'SEX'; did you mean SEXX"):
            Intersection((SEX,)).group({"SEXX": np.array([1])})
        with pytest.raises(ValueError, match="differ in length"):
            Intersection((SEX, RACE)).group({"SEX": np.array([1]), "RACE": np.array(["w", "w"])})
        with pytest.raises(ValueError, match="named twice"):
            Intersection((SEX, SEX))
        with pytest.raises(ValueError, match="at least one"):
            Intersection(())


class TestCensus:
    def test_42_states_by_six_attributes(self, acs_42) -> None:
        names = ("SEX", "RAC1P", "MAR", "AGEP", "SCHL", "POBP")
        by = Intersection(tuple(codebook.attribute(name) for name in names))
        found = by.group(acs_42)
        assert int(found.sizes.sum()) == 960_360
        levels = np.stack([attribute.levels(acs_42[attribute.name]) for attribute in by.attributes])
        sizes = np.array([attribute.size for attribute in by.attributes])
        assert found.populated == len(np.unique(np.ravel_multi_index(levels, sizes)))

    def test_oklahoma_by_race(self, acs_ok) -> None:
        found = Intersection((Against("RAC1P", 1, ("white", "non-white")),)).group(acs_ok)
        assert found.sizes.tolist() == [13_350, 4_567]
        rates = [acs_ok["PINCP_GT_50K"][found.ids.numpy() == g].mean() for g in (0, 1)]
        assert np.round(rates, 5).tolist() == [0.30794, 0.20758]
