"""Group-balanced batches: coverage, equal use of rows, processes, resuming, weights, and what is
refused."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fairbound.data._balanced_batch_sampler import BalancedBatchSampler

T = TypeVar("T")
few = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Groups of 1 to 30 rows in scattered order, some rows in none; any shares; epochs of any
    length; 1 to 3 processes.

    Small numbers, so that permutations end within batches in every way, also groups smaller than a
    batch.
    """
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    groups = [group for group, size in enumerate(sizes) for _ in range(size)] + [-1] * draw(
        st.integers(0, 3)
    )
    counts = draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    return {
        "groups": draw(st.permutations(groups)),
        "batch_size": sum(counts),
        "shares": [count / sum(counts) for count in counts],
        "seed": draw(st.integers(0, 2**40)),
        "batches": draw(st.none() | st.integers(1, 12)),
        "world_size": draw(st.integers(1, 3)),
    }


def processes(case: dict[str, Any]) -> list[BalancedBatchSampler]:
    return [BalancedBatchSampler(**case, rank=rank) for rank in range(case["world_size"])]


def steps_of(samplers: Sequence[BalancedBatchSampler], epochs: int) -> list[list[list[int]]]:
    """[epoch][step]: the rows of all processes together."""
    return [
        [[*np.concatenate(rows)] for rows in zip(*samplers, strict=True)] for _ in range(epochs)
    ]


def joined(lists: Sequence[list[T]]) -> list[T]:
    return list(chain.from_iterable(lists))


def of_group(rows: Sequence[int], groups: Sequence[int], group: int) -> list[int]:
    return [row for row in rows if groups[row] == group]


@few
@given(cases())
def test_every_batch_of_every_process_has_the_rows_of_each_group(case: dict[str, Any]) -> None:
    groups = np.array(case["groups"])
    expected = [round(share * case["batch_size"]) for share in case["shares"]]
    for sampler in processes(case):
        batches = list(sampler)
        assert len(batches) == len(sampler)
        for rows in batches:
            # group by group
            assert groups[rows].tolist() == np.repeat(np.arange(len(expected)), expected).tolist()


@few
@given(cases())
def test_the_first_epoch_covers_every_group_it_can_cover_and_the_smallest_always(
    case: dict[str, Any],
) -> None:
    samplers, groups = processes(case), case["groups"]
    sizes = Counter(groups)
    taken = [case["world_size"] * rows * len(samplers[0]) for rows in samplers[0].per_batch]
    covered = [group for group, rows in enumerate(taken) if rows >= sizes[group]]
    assert covered or case["batches"] is not None
    (epoch,) = steps_of(samplers, 1)
    for group in covered:
        assert len(set(of_group(joined(epoch), groups, group))) == sizes[group]
    if case["batches"] is None:  # and no shorter epoch would do
        assert all(
            rows - case["world_size"] * own < sizes[group]
            for group, (rows, own) in enumerate(zip(taken, samplers[0].per_batch, strict=True))
        )


@few
@given(cases())
def test_rows_are_seen_equally_often_after_every_step(case: dict[str, Any]) -> None:
    groups = case["groups"]
    seen: Counter[int] = Counter({row: 0 for row, group in enumerate(groups) if group >= 0})
    for step in joined(steps_of(processes(case), 12)):
        seen.update(step)
        for group in range(len(case["shares"])):
            often = [seen[row] for row in seen if groups[row] == group]
            assert max(often) - min(often) <= 1
    assert all(groups[row] >= 0 for row in seen)


@few
@given(cases())
def test_processes_together_draw_what_one_process_would(case: dict[str, Any]) -> None:
    one = BalancedBatchSampler(
        **case | {"batch_size": case["world_size"] * case["batch_size"], "world_size": 1}, rank=0
    )
    samplers = processes(case)
    assert {len(sampler) for sampler in samplers} == {len(one)}
    for combine, alone in zip(steps_of(samplers, 3), steps_of([one], 3), strict=True):
        assert [sorted(rows) for rows in combine] == [sorted(rows) for rows in alone]


@few
@given(case=cases(), epoch=st.integers(0, 30), data=st.data())
def test_any_place_can_be_taken_up_in_a_fresh_sampler(
    case: dict[str, Any], epoch: int, data: st.DataObject
) -> None:
    """The rows do not depend on what was drawn before."""
    walked, jumped = (BalancedBatchSampler(**case, rank=0) for _ in range(2))
    start = data.draw(st.integers(0, len(walked) - 1))
    for _ in range(epoch):
        list(walked)
    jumped.set_epoch(epoch, start)
    assert list(walked)[start:] == list(jumped)
    assert list(walked) == list(jumped)  # and the epochs go on alike
    walked.set_epoch(epoch, start)  # back again, with the permutations of a later epoch kept
    jumped = BalancedBatchSampler(**case, rank=0)
    jumped.set_epoch(epoch, start)
    assert list(walked) == list(jumped)


@few
@given(case=cases(), epochs=st.integers(0, 5), data=st.data())
def test_resumed_equals_uninterrupted(
    case: dict[str, Any], epochs: int, data: st.DataObject
) -> None:
    sampler = BalancedBatchSampler(**case, rank=0)
    for _ in range(epochs):
        list(sampler)
    under_way = iter(sampler)
    list(islice(under_way, data.draw(st.integers(0, len(sampler)))))
    state = json.loads(json.dumps(sampler.state_dict()))  # plain numbers
    resumed = BalancedBatchSampler(**case, rank=0)
    resumed.load_state_dict(state)
    resumed.set_epoch(state["epoch"])  # as a loop does at the head of every epoch: keeps the place
    left = list(under_way) or list(sampler)  # all handed out: the next epoch
    assert list(resumed) == left
    assert list(resumed) == list(sampler)


LARGE = [0] * 1000 + [1] * 10  # a large group and a small one


def mixed(z: int) -> int:
    """SplitMix64's finaliser on Python's integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return z ^ (z >> 31)


def shuffled(rows: list[int], seed: int, group: int, number: int) -> list[int]:
    """A permutation as the module promises it, a function of (seed, group, number): a
    transcription."""
    gamma = 0x9E3779B97F4A7C15
    key = mixed(mixed((mixed(seed + gamma) + gamma * group) % (1 << 64)))
    key = mixed((key + gamma * number) % (1 << 64))
    bits = [mixed((key + gamma * place) % (1 << 64)) for place in range(len(rows))]
    signed = [b - (1 << 64) if b >> 63 else b for b in bits]
    return [row for _, row in sorted(zip(signed, rows, strict=True))]


def test_rows_are_those_of_the_written_rule() -> None:
    """Group 1 (4 rows, 2 a batch) takes a permutation an epoch, group 0 (8 rows) half of one."""
    groups = [0, 1, 0] * 4
    large, small = ([row for row in range(12) if groups[row] == group] for group in (0, 1))
    sampler = BalancedBatchSampler(groups, batch_size=4, seed=42)
    for epoch in range(6):
        a = shuffled(large, 42, 0, epoch // 2)[epoch % 2 * 4 :]
        b = shuffled(small, 42, 1, epoch)
        assert list(sampler) == [a[:2] + b[:2], a[2:4] + b[2:]]


# Iterating ----------------------------------------------------------------------------------------


def test_set_epoch_repeats_an_epoch_and_plain_loops_go_on() -> None:
    sampler = BalancedBatchSampler(LARGE, batch_size=10)
    first, second = list(sampler), list(sampler)
    assert sampler.epoch == 2
    sampler.set_epoch(0)
    assert [list(sampler), list(sampler)] == [first, second]
    next(iter(sampler))  # epoch 2, left after one batch
    third = list(sampler)
    sampler.set_epoch(3)
    assert list(sampler) == third
    sampler.set_epoch(3, start=1)
    sampler.set_epoch(3, start=0)
    assert list(sampler) == third
    sampler.set_epoch(3)
    next(iter(sampler))  # left after one batch: to repeat the epoch is to begin it again
    sampler.set_epoch(3)
    assert list(sampler) == third


@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_data_loader(workers: int) -> None:
    """Workers ask for two iterators and read ahead; the batches are the same."""
    dataset = TensorDataset(torch.arange(1010), torch.tensor(LARGE))
    sampler = BalancedBatchSampler(LARGE, batch_size=10, seed=2)
    loader = DataLoader(
        dataset, batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )
    plain = BalancedBatchSampler(LARGE, batch_size=10, seed=2)
    assert len(loader) == 2
    for _ in range(2):
        batches = list(loader)
        assert [rows.tolist() for rows, _ in batches] == list(plain)
        assert all(groups.sum() == 5 for _, groups in batches)


def test_pickles() -> None:
    sampler = BalancedBatchSampler(LARGE, batch_size=10, seed=9)
    list(sampler)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


# Shares and weights -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "shares", "expected"),
    [
        (8, None, (3, 3, 2)),  # a tie: the first groups
        (10, [0.5, 0.3, 0.2], (5, 3, 2)),
        (7, [0.5, 0.3, 0.2], (4, 2, 1)),  # 3.5, 2.1, 1.4
        (100, [0.29, 0.57, 0.14], (29, 57, 14)),  # 100 * .29 is below 29 in floating point
        (9, [1 / 3, 1 / 3, 1 / 3], (3, 3, 3)),
        (4, [0.5, 0, 0.5], (2, 0, 2)),
        (4, torch.tensor([0.25, 0.25, 0.5]), (1, 1, 2)),
    ],
)
def test_shares_become_rows_by_largest_remainders(
    batch_size: int, shares: Sequence[float] | None, expected: tuple[int, ...]
) -> None:
    assert BalancedBatchSampler([0, 1, 2] * 5, batch_size, shares=shares).per_batch == expected


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 500))
@few
def test_rounding_keeps_the_sum_and_is_off_by_less_than_one(
    parts: list[int], batch_size: int
) -> None:
    shares = np.array(parts) / sum(parts)
    groups = np.arange(len(parts))
    try:
        rows = BalancedBatchSampler(groups, batch_size, shares=list(shares)).per_batch
    except ValueError as refused:
        enough = int(str(refused).split("batch_size=")[1].split()[0])
        assert enough > batch_size
        rows, batch_size = (
            BalancedBatchSampler(groups, enough, shares=list(shares)).per_batch,
            enough,
        )
    assert sum(rows) == batch_size
    assert min(rows) >= 1
    assert np.abs(np.array(rows) - batch_size * shares).max() < 1 + 1e-9


def test_a_group_left_out_and_rows_of_no_group_are_never_drawn() -> None:
    groups = torch.tensor([0, 1, 2, -1, 0, 1, 2, -1])
    # group 3 has no row, and needs none
    sampler = BalancedBatchSampler(groups, 4, shares=[0.5, 0, 0.5, 0])
    drawn = {row for _ in range(5) for rows in sampler for row in rows}
    assert drawn == {0, 4, 2, 6}
    assert sampler.weights.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    "groups", [np.array([0, 0, 1], np.uint8), torch.tensor([0, 0, 1], dtype=torch.int32)]
)
def test_groups_of_any_whole_type(groups: Any) -> None:
    assert list(BalancedBatchSampler(groups, 2)) == list(BalancedBatchSampler([0, 0, 1], 2))


@pytest.mark.parametrize("shares", [None, [0.25, 0.75]])
def test_weighted_means_are_unbiased(shares: list[float] | None) -> None:
    """After 3 epochs of 4 batches every row of a group was seen equally often, so that the mean is
    exact."""
    groups = torch.tensor([0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0])  # 12 and 4 rows
    values = torch.arange(16.0).square()
    sampler = BalancedBatchSampler(groups, 4, shares=shares, batches=4)
    weighted, plain, weights = [], [], sampler.weights
    for _ in range(3):
        for rows in sampler:
            weighted.append((weights[groups[rows]] * values[rows]).mean())
            plain.append(values[rows].mean())
    torch.testing.assert_close(torch.stack(weighted).mean(), values.mean())
    assert abs(torch.stack(plain).mean() - values.mean()) > 1


# Processes ----------------------------------------------------------------------------------------


def test_reads_the_process_from_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (BalancedBatchSampler(LARGE, 4).rank, BalancedBatchSampler(LARGE, 4).world_size) == (
        0,
        1,
    )
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert list(BalancedBatchSampler(LARGE, 4)) == list(
        BalancedBatchSampler(LARGE, 4, rank=1, world_size=3)
    )


def test_a_state_serves_every_process() -> None:
    first, second = (BalancedBatchSampler(LARGE, 2, rank=rank, world_size=2) for rank in range(2))
    rows = iter(second)
    next(rows), next(iter(first))
    resumed = BalancedBatchSampler(LARGE, 2, rank=1, world_size=2)
    resumed.load_state_dict(first.state_dict())
    assert list(resumed) == list(rows)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"groups": []}, "groups must be numbered 0, 1, ... (-1: in no group), got"),
        ({"groups": [-1, -1]}, "no example is in a group: all are -1"),
        ({"groups": [0, 2]}, "group 1 has no examples; number the groups without gaps"),
        ({"groups": [0, 10**12]}, "group 1 has no examples"),
        ({"groups": [0, -2]}, "groups must be numbered 0, 1, ... (-1: in no group), found -2"),
        ({"groups": ["a", "b"]}, "got text (<U1)"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
        ({"shares": [0.99, 0.01]}, "no example for group 1, whose share is 0.01; batch_size=100"),
        ({"shares": [0.5, 0.4]}, "divide them by their sum), got [0.5, 0.4]"),
        ({"shares": [1.5, -0.5]}, "got [1.5, -0.5]"),
        ({"shares": [[0.5, 0.5]]}, "got [[0.5, 0.5]]"),
        ({"shares": [1.0]}, "groups go up to 1 but there are 1 shares; give one for each group"),
        ({"shares": [0.5, 0.25, 0.25]}, "group 2 has no examples"),
        ({"batches": 0}, "batches must be a whole number >= 1, got 0"),
        ({"seed": 1 << 63}, "seed must be a whole number from"),
        ({"rank": 2, "world_size": 2}, "rank must be a whole number from 0 to 1, got 2"),
        ({"rank": 0, "world_size": 0}, "world_size must be a whole number >= 1, got 0"),
        ({"rank": 1}, "give rank and world_size, or neither; got rank=1, world_size=None"),
    ],
)
def test_refusals(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the sentence follows)
        BalancedBatchSampler(**{"groups": [0, 0, 0, 1], "batch_size": 2} | changes)
    assert sentence in str(error.value)


def test_refuses_places_that_are_not_there() -> None:
    sampler = BalancedBatchSampler(LARGE, batch_size=10)
    for place in ((-1, 0), (0, -1), (0, 2)):
        with pytest.raises(
            ValueError, match=r"an epoch has batches 0 to 1, .* set_epoch\(\*divmod\(steps, 2\)\)"
        ):
            sampler.set_epoch(*place)
    with pytest.raises(TypeError):
        sampler.set_epoch(0.5)  # type: ignore[arg-type]


def test_refuses_states_of_another_sampler() -> None:
    sampler = BalancedBatchSampler(LARGE, batch_size=10)
    state = sampler.state_dict()
    with pytest.raises(
        ValueError,
        match="saved with seed 0, here it is 1; build the sampler with the same settings",
    ):
        BalancedBatchSampler(LARGE, batch_size=10, seed=1).load_state_dict(state)
    with pytest.raises(
        ValueError, match=r"saved with group_sizes \[1000, 10\], here it is \[1000, 11\]"
    ):
        BalancedBatchSampler([*LARGE, 1], batch_size=10, batches=2).load_state_dict(state)
    with pytest.raises(ValueError, match="saved with seed None"):
        sampler.load_state_dict({"epoch": 1})
