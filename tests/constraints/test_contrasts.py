"""Contrasts: the structured ones are their dense matrix, and nothing of size groups x groups is
made."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairbound import Constrained, DescentAscent, MiniBatch, constraints
from fairbound.constraints._contrasts import (
    Contrast,
    Each,
    Matrix,
    against_mean,
    against_pooled,
    each,
    pairwise,
    sums_of_pairs,
)

F64 = torch.float64
NAMES = ["A", "B", "C", "D"]
STRUCTURED: dict[str, Contrast] = {
    "each": each(NAMES),
    "each, from below": Each(tuple(NAMES), -1.0),
    "against the mean": against_mean(NAMES),
    "against the mean, one-sided": against_mean(NAMES, two_sided=False),
    "against the pooled mean": against_pooled([0.4, 0.3, 0.2, 0.1])(NAMES),
    "against the pooled mean, one-sided": against_pooled([0.4, 0.3, 0.2, 0.1], two_sided=False)(
        NAMES
    ),
}


def written_out(name: str) -> Tensor:
    """The same contrast, entry by entry."""
    one = torch.eye(4, dtype=F64)
    if name.startswith("each"):
        return -one if "below" in name else one
    shares = [0.4, 0.3, 0.2, 0.1] if "pooled" in name else [0.25] * 4
    gaps = one - torch.tensor(shares, dtype=F64)
    return gaps if "one-sided" in name else torch.stack([gaps, -gaps], 1).flatten(0, 1)


@pytest.mark.parametrize("name", STRUCTURED)
def test_a_structured_contrast_is_its_matrix(name: str) -> None:
    contrast, generator = STRUCTURED[name], torch.Generator().manual_seed(0)
    dense = Matrix(contrast.names, written_out(name))
    assert torch.allclose(contrast.matrix(), dense.entries)
    assert (len(contrast.names), contrast.cells) == dense.entries.shape
    for batch in ((), (3,)):  # of means alone, and of the gradients of means
        means = torch.randn(*batch, 4, dtype=F64, generator=generator)
        w = torch.randn(*batch, len(contrast.names), dtype=F64, generator=generator)
        assert torch.allclose(contrast.apply(means), dense.apply(means))
        assert torch.allclose(contrast.transpose(w), dense.transpose(w))
    for bits in range(16):
        present = torch.tensor([bits >> k & 1 for k in range(4)]).bool()
        assert torch.equal(contrast.observed(present), dense.observed(present)), present
    assert (
        contrast.to(torch.device("cpu"), torch.float32).apply(means.float()).dtype == torch.float32
    )


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.floats(0, 1))
def test_contrasts_see_differences_only(values: list[float], shift: float) -> None:
    """A constant added to every cell changes nothing, and rows come in opposite pairs."""
    means, names = torch.tensor(values, dtype=F64), [str(i) for i in range(len(values))]
    for build in (pairwise, against_mean):
        gaps = build(names).apply(means)
        assert torch.allclose(gaps, build(names).apply(means + shift), atol=1e-12)
        assert torch.allclose(gaps[::2], -gaps[1::2])


@pytest.mark.parametrize("build", [pairwise, against_mean])
def test_one_side_is_every_other_row(build: Callable[..., Contrast]) -> None:
    both, one = build(NAMES), build(NAMES, two_sided=False)
    assert one.names == both.names[::2]
    assert torch.equal(one.matrix(), both.matrix()[::2])


def test_pairs_and_sums_of_pairs() -> None:
    assert pairwise(NAMES).matrix().shape == (12, 4)  # m (m - 1) pairs and signs, not m (m + 1)
    four = sums_of_pairs(["A, y=1", "B, y=1", "A, y=0", "B, y=0"])
    assert four.names[1] == "A - B: +pos -neg"
    assert four.matrix().tolist() == [
        [1, -1, 1, -1],
        [1, -1, -1, 1],
        [-1, 1, 1, -1],
        [-1, 1, -1, 1],
    ]
    with pytest.raises(ValueError, match="two groups, got 1"):
        pairwise(["A"])
    with pytest.raises(ValueError, match="two groups, got 1"):
        sums_of_pairs(["A, y=1", "A, y=0"])
    with pytest.raises(ValueError, match=r"sum to 1, got \[100, 300\]"):
        against_pooled([100, 300])
    with pytest.raises(ValueError, match="2 groups and 3 shares"):
        against_pooled([0.2, 0.3, 0.5])(["A", "B"])


# Very many groups ---------------------------------------------------------------------------------

MANY = 200_000
LARGEST = 4 * MANY + 1000  # elements of a tensor: the two rows of every group, and a copy


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation gives."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if isinstance(one, Tensor):
                self.largest = max(
                    self.largest, one.untyped_storage().nbytes() // one.element_size()
                )
        return found


@pytest.mark.parametrize("notion", [constraints.loss_parity, constraints.bounded_group_loss])
def test_with_200_000_groups_nothing_is_groups_by_groups(
    notion: Callable[..., constraints.Constraint],
) -> None:
    """Three steps of a loop on mini-batches of 512, by the sizes of tensors and by Python's own
    memory."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(3, 1)
    fair = Constrained(model, notion(MANY, bound=0.1), DescentAscent())
    tracemalloc.start()
    with LargestTensor() as seen:
        for _ in range(3):
            losses = model(torch.randn(512, 3, generator=generator))[:, 0].square()
            info = fair.backward(losses, torch.randint(MANY, (512,), generator=generator))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not info.skipped
    assert fair.steps == 3
    assert 512 < seen.largest <= LARGEST
    # a few Python objects for every group; a matrix would be 200 kB for each
    assert peak < 400 * MANY


def test_with_200_000_groups_a_mini_batch_is_evaluated_as_with_few() -> None:
    """The groups that are there, numbered anew: each against its bound; one that is absent is not
    observed."""
    generator = torch.Generator().manual_seed(1)
    losses, groups = (
        torch.rand(512, generator=generator),
        torch.randint(MANY, (512,), generator=generator),
    )
    shown, few = groups.unique(return_inverse=True)
    c = constraints.bounded_group_loss(MANY, bound=0.5).evaluate(MiniBatch(losses, groups))
    assert torch.equal(
        c[shown],
        constraints.bounded_group_loss(len(shown), bound=0.5).evaluate(MiniBatch(losses, few)),
    )
    assert int(c.isfinite().sum()) == len(shown)
    assert (
        constraints.loss_parity(MANY, bound=0.5).evaluate(MiniBatch(losses, groups)).isnan().all()
    )
    everybody = torch.cat([torch.arange(MANY), groups])
    values = torch.cat([torch.rand(MANY, generator=generator), losses])
    c = constraints.loss_parity(MANY, bound=0.5).evaluate(MiniBatch(values.double(), everybody))
    assert c.isfinite().all()
    assert torch.allclose(c[::2] + c[1::2], torch.tensor(-1.0, dtype=F64))
