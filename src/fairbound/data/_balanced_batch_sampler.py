"""Batches with a fixed number of examples of every group, for
`torch.utils.data.DataLoader(batch_sampler=...)`.

A batch holds b_k examples of group k; with several processes, this is the global batch. Batch t
takes examples t b_k to (t + 1) b_k - 1 of an endless sequence of permutations of the group, which
goes on from epoch to epoch: after any number of batches the examples of a group have been drawn
equally often, up to a difference of one. By default an epoch has min_k ceil(n_k / b_k) batches, one
pass over the group that is exhausted first.

Everything is a function of seed, group and place: there is no generator state to save.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from fairbound._utils.rng import bits, keys
from fairbound._utils.settings import require_whole
from fairbound.columns._vectors import as_numbers

Indices = NDArray[np.int64]

AT_ONCE = 4096  # examples: so many permutations of a small group are drawn together


class BalancedBatchSampler(Sampler[list[int]]):
    """Indices of batches with equal, or given, shares of every group.

    `groups` numbers the group of every example of the dataset 0, 1, ...; an example with -1 is in
    no group and is never drawn. `shares`, one for each group, sum to 1 and become numbers of
    examples in a batch by largest remainders; a group with share 0 is not drawn. `batches` is the
    length of an epoch. A batch lists the examples of group 0, then of group 1, and so on.

    `per_batch` and `group_sizes` count the examples of each group in a batch and in the dataset.
    Every `iter()` is the next epoch, unless `set_epoch` names another.

    With several processes `batch_size` is that of one process, as with `DistributedSampler`, and
    every process draws equally many examples of a group. Together they draw in a step what one
    process with `world_size` times as many examples of each group would draw. `rank` and
    `world_size` come from `torch.distributed` where it is initialized.

    >>> from torch.utils.data import DataLoader
    >>> batches = BalancedBatchSampler([0, 0, 0, 0, 0, 1, 1, 1], batch_size=4, seed=1)
    >>> batches.per_batch, len(batches)
    ((2, 2), 2)
    >>> for batch in DataLoader(range(8), batch_sampler=batches):
    ...     print((batch < 5).sum().item(), (batch >= 5).sum().item())
    2 2
    2 2
    """

    def __init__(
        self,
        groups: Tensor | NDArray[Any] | Sequence[int],
        batch_size: int,
        *,
        shares: Sequence[float] | None = None,
        seed: int = 0,
        batches: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.batch_size, self.seed = batch_size, seed
        self.rank, self.world_size = _process(rank, world_size)
        require_whole(self, 1, None, "batch_size", "world_size")
        require_whole(self, 0, self.world_size - 1, "rank")
        require_whole(self, -(1 << 63), (1 << 63) - 1, "seed")
        members, wanted = _members_and_shares(groups, shares)
        self.group_sizes = tuple(map(len, members))
        self.per_batch = _per_batch(self.batch_size, wanted)

        # examples of a step, of all processes
        widths = [self.world_size * size for size in self.per_batch]
        drawn = [group for group, width in enumerate(widths) if width]
        passes = [-(-self.group_sizes[k] // widths[k]) for k in drawn]  # batches of one pass
        self.batches = min(passes) if batches is None else batches
        require_whole(self, 1, None, "batches")
        self._groups = [
            (_Permutations(members[k], self.seed, k), widths[k], self.per_batch[k]) for k in drawn
        ]
        self._place = (0, 0)  # the next epoch and batch
        # whether an iterator has started that epoch: the next iterator takes the epoch after it
        self._started = False

    def __len__(self) -> int:
        """The batches of an epoch, for each process."""
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        # Nothing happens before the first batch: a DataLoader with workers makes two iterators and
        # uses one.
        if self._started:
            self._place = (self.epoch + 1, 0)
        self._started = True
        epoch, start = self._place
        for batch in range(start, self.batches):
            self._place = (epoch, batch + 1)
            step = epoch * self.batches + batch
            parts = [
                group.part(step * width + self.rank * size, size)
                for group, width, size in self._groups
            ]
            yield np.concatenate(parts).tolist()
        self._place, self._started = (epoch + 1, 0), False

    @property
    def epoch(self) -> int:
        """The current epoch, else the next one."""
        return self._place[0]

    def set_epoch(self, epoch: int, start: int | None = None) -> None:
        """Make `epoch`, from its batch `start` on, the one that the next `iter()` takes.

        Without `start` it begins at its first batch, or where `load_state_dict` resumed if that was
        in this epoch. After any number of steps, `set_epoch(*divmod(steps, len(batches)))`
        continues after them.
        """
        if start is None:
            start = self._place[1] if epoch == self.epoch and not self._started else 0
        epoch, start = operator.index(epoch), operator.index(start)
        if not (epoch >= 0 and 0 <= start < self.batches):
            raise ValueError(
                f"an epoch has batches 0 to {self.batches - 1}, and epochs are numbered from 0; got"
                f" epoch {epoch}, start {start}; after `steps` steps use set_epoch(*divmod(steps,"
                f" {self.batches}))"
            )
        self._place, self._started = (epoch, start), False

    def state_dict(self) -> dict[str, Any]:
        """What continues after the last batch that was yielded: plain numbers, the same on every
        process.

        A DataLoader with workers prefetches batches. There, save the number of steps, and
        continue with `set_epoch(*divmod(steps, len(batches)))`.

        >>> batches = BalancedBatchSampler([0, 0, 0, 1, 1, 1], batch_size=2)
        >>> iterator = iter(batches)
        >>> first, state = next(iterator), batches.state_dict()
        >>> resumed = BalancedBatchSampler([0, 0, 0, 1, 1, 1], batch_size=2)
        >>> resumed.load_state_dict(state)
        >>> list(resumed) == list(iterator)
        True
        """
        later, batch = divmod(self._place[1], self.batches)
        return {"epoch": self.epoch + later, "batch": batch, "settings": self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the sampler must have the same examples and
        settings."""
        for name, setting in self._settings().items():
            saved = state.get("settings", {}).get(name)
            if saved != setting:
                raise ValueError(
                    f"the state was saved with {name} {saved}, here it is {setting}; build the"
                    " sampler with the same settings, or use set_epoch(epoch, start) to begin at"
                    " another place"
                )
        self.set_epoch(state["epoch"], state["batch"])

    def _settings(self) -> dict[str, Any]:
        """What determines the batches, apart from the rank."""
        return {
            "seed": self.seed,
            "batches": self.batches,
            "world_size": self.world_size,
            "per_batch": list(self.per_batch),
            "group_sizes": list(self.group_sizes),
        }

    @property
    def weights(self) -> Tensor:
        """(groups,) share of the group among the examples of drawn groups / its share of a batch; 0
        if not drawn.

        A batch over-represents small groups. `(weights[groups] * losses).mean()` over it is
        unbiased for the mean loss over all examples, except those of no group or of a group with
        share 0.

        >>> BalancedBatchSampler([0, 0, 0, 0, 0, 0, 1, 1], batch_size=4).weights
        tensor([1.5000, 0.5000])
        """
        per_batch = torch.tensor(self.per_batch, dtype=torch.float64)
        sizes = torch.tensor(self.group_sizes, dtype=torch.float64) * (per_batch > 0)
        ratio = (sizes / sizes.sum()) / (per_batch / self.batch_size).clamp(min=1 / self.batch_size)
        return ratio.to(torch.get_default_dtype())


class _Permutations:
    """The examples of one group, permutation after permutation without end."""

    def __init__(self, examples: Indices, seed: int, group: int) -> None:
        self.examples = examples
        self.many = max(1, AT_ONCE // len(examples))
        self.key = bits(keys(torch.tensor(seed)), torch.tensor(group), torch.tensor(0))
        # the last block of `many` permutations: its number, its examples
        self._drawn = (-1, examples)

    def part(self, start: int, size: int) -> Indices:
        """(size,) the examples from place `start` of the sequence on."""
        parts = [self.examples[:0]]
        while size:
            block, at = divmod(start, self.many * len(self.examples))
            parts.append(self._block(block)[at : at + size])
            start, size = start + len(parts[-1]), size - len(parts[-1])
        return np.concatenate(parts)

    def _block(self, number: int) -> Indices:
        if self._drawn[0] != number:
            first, place = number * self.many, torch.arange(len(self.examples))
            permutation = torch.arange(first, first + self.many)[:, None]
            # Within a permutation the bits are all different, so that their order does not depend
            # on the sorting.
            order = np.argsort(bits(self.key, permutation, place).numpy(), axis=-1)
            self._drawn = (number, self.examples[order].ravel())
        return self._drawn[1]


def _process(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, from torch.distributed, or 0 and 1."""
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise ValueError(
            f"give rank and world_size, or neither; got rank={rank}, world_size={world_size}"
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _checked(shares: Sequence[float]) -> NDArray[np.float64]:
    """(groups,) shares that sum to 1."""
    fractions = np.asarray(shares, dtype=np.float64)
    total = fractions.sum()
    if fractions.ndim != 1 or not ((fractions >= 0).all() and abs(total - 1) <= 1e-6):
        raise ValueError(
            "shares are numbers >= 0, one for each group, that sum to 1 (divide them by their"
            f" sum), got {fractions.tolist()}"
        )
    return np.asarray(fractions / total)


def _members_and_shares(
    groups: Any, shares: Sequence[float] | None
) -> tuple[list[Indices], NDArray[np.float64]]:
    """The examples of each group, ascending, and its share; a group with a share has some."""
    numbers = as_numbers(groups).cpu().numpy()
    present = np.unique(numbers[numbers >= 0])
    if len(present) == 0:
        raise ValueError("no example is in a group: all are -1; number the groups 0, 1, ...")
    # Without shares the groups are 0 to len(present) - 1; counting to the largest would make 10**12
    # groups of a typo.
    wanted = np.full(len(present), 1 / len(present)) if shares is None else _checked(shares)
    empty = np.setdiff1d(np.flatnonzero(wanted), present)
    if len(empty):
        raise ValueError(
            f"group {empty[0]} has no examples; number the groups without gaps, or give it share 0"
        )
    if len(wanted) <= present[-1]:
        raise ValueError(
            f"groups go up to {present[-1]} but there are {len(wanted)} shares; give one for each"
            " group"
        )
    order = np.argsort(numbers, kind="stable")  # examples of no group first
    ends = np.searchsorted(numbers[order], np.arange(len(wanted) + 1))
    return [order[low:high] for low, high in pairwise(ends)], wanted


def _per_batch(batch_size: int, shares: NDArray[np.float64]) -> tuple[int, ...]:
    """Examples of each group in a batch, by largest remainders."""
    exact = batch_size * shares
    counts = np.floor(exact).astype(np.int64)
    # equal shares tie, and the first groups get the remaining examples
    remainder = (exact - counts).round(9)
    counts[np.argsort(-remainder, kind="stable")[: batch_size - counts.sum()]] += 1
    without = np.flatnonzero((counts == 0) & (shares > 0))
    if len(without):
        group, enough = without[0], ceil(1 / shares[shares > 0].min())
        raise ValueError(
            f"a batch of {batch_size} has no example for group {group}, whose share is"
            f" {shares[group]:.3g}; batch_size={enough} has one for every group"
        )
    return tuple(counts.tolist())
