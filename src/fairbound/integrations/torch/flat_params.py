"""A model's trained parameters: their gradients, stashed, read and written; vectors of their size, flat or in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from fairbound._utils.pytree import tree_leaves, tree_unflatten
from fairbound.integrations.torch.vectors import Combination, Vector, add_sum, move

AT_ONCE = 1 << 24  # numbers of a temporary, where vectors are combined

Grads = list[Tensor | None]  # what `.grad` held, one entry for each parameter


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what `torch.compile` and DistributedDataParallel put around it: its names are those saved."""
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod  # type: ignore[assignment]
        model = inner
    return model


class FlatParams:
    """Parameters in their order; `.grad` in and out as flat vectors."""

    def __init__(self, model: nn.Module | Iterable[Tensor]) -> None:
        if isinstance(model, nn.Module):
            listed: Iterable[tuple[str, Tensor]] = unwrapped(model).named_parameters()
        else:
            listed = ((str(i), p) for i, p in enumerate(model))
        given = list(listed)
        wrong = [type(p).__name__ for _, p in given if not isinstance(p, Tensor)]
        if wrong:
            raise TypeError(f"give a module or its parameters, got {wrong[0]}; for parameter groups give the module")
        named = [(name, p) for name, p in given if p.requires_grad]
        if not named:
            raise ValueError("the model has no parameters to train; all are frozen, or there are none")
        for name, p in named:
            if p.is_complex():
                raise ValueError(f"the parameter {name!r} is complex, which Constrained does not support")
        self.names = tuple(name for name, _ in named)
        self.tensors = [p for _, p in named]
        self.sizes = [p.numel() for p in self.tensors]
        self.n = sum(self.sizes)
        narrow = {p.dtype for p in self.tensors} <= {torch.float16, torch.bfloat16, torch.float32}
        self.dtype = torch.float32 if narrow else torch.float64  # of the flat vectors
        self.device = self.tensors[0].device
        self.sharded = any(_is_sharded(p) for p in self.tensors)  # spread over processes (FSDP2, tensor parallel)
        self.x = Combination({Vector(self.tensors): 1.0}, torch.ones((), dtype=self.dtype, device=self.device))
        self._narrow = any(_wide(p) is not p.dtype for p in self.tensors)
        self._runs = list(_runs(self.sizes))

    def moved(self) -> None:
        """After the model was moved to another device."""
        self.device = self.tensors[0].device
        self.x.like = self.x.like.to(self.device)

    def flat(self) -> Tensor:
        """All parameters as they are now: (n,)."""
        return self._joined([p.detach() for p in self.tensors])

    def check_whole(self, what: str, remedy: str) -> None:
        """Refuse what a process that holds pieces of the parameters cannot do."""
        if self.sharded:
            raise ValueError(f"{what}, and the parameters are spread over processes (FSDP, DTensor); {remedy}")

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1).to(self.dtype) for tensor in tensors])

    def _parted(self, flat: Tensor) -> list[Tensor]:
        """The parts of a flat vector, each in its parameter's shape."""
        return [part.view(p.shape) for part, p in zip(flat.split(self.sizes), self.tensors, strict=True)]

    # Gradients --------------------------------------------------------------------------------------------------------

    def stash_grads(self) -> Grads:
        """Take what `.grad` holds, leaving None."""
        held = [p.grad for p in self.tensors]
        for p in self.tensors:
            p.grad = None
        return held

    def restore_grads(self, held: Grads) -> None:
        for p, old in zip(self.tensors, held, strict=True):
            p.grad = old

    def add_grads(self, held: Grads) -> None:
        """Add what was stashed."""
        for p, old in zip(self.tensors, held, strict=True):
            if old is not None:
                p.grad = old if p.grad is None else old + p.grad if old.is_sparse else old.add_(p.grad)

    def grads(self) -> list[Tensor]:
        """What `.grad` holds in this process, of the parameters that have any."""
        return self._locals([p.grad for p in self.tensors if p.grad is not None])

    def gradient(self) -> Tensor:
        """What `.grad` holds now, (n,); 0 for a parameter that has none."""
        return self._joined([torch.zeros_like(p) if p.grad is None else _dense(p.grad) for p in self.tensors])

    def write(self, direction: Tensor, held: Grads) -> None:
        """`.grad` = what was stashed + direction; a parameter that the model did not use keeps none."""
        for p, part, old in zip(self.tensors, self._parted(direction), held, strict=True):
            if old is not None or p.grad is not None:
                p.grad = part.to(p.dtype) if old is None else old + part.to(p.dtype)

    def add(self, direction: Tensor) -> None:
        """Add a direction to what `.grad` holds."""
        for p, part in zip(self.tensors, self._parted(direction), strict=True):
            p.grad = part.to(p.dtype) if p.grad is None else p.grad + part.to(p.dtype)

    # Vectors in parts -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def in_parts(self, state: Any) -> Any:
        """A state that was made of symbols, its vectors now with memory."""
        made = []
        for leaf in tree_leaves(state):
            if isinstance(leaf, Combination):
                parts = [torch.zeros_like(p, dtype=_wide(p)) for p in self.tensors]
                for run in self._runs:
                    add_sum(self._locals(parts[run]), self._terms(leaf.vectors(), run))
                leaf = Combination({Vector(parts): 1.0}, self.x.like)
            made.append(leaf)
        return tree_unflatten(state, iter(made))

    def advance(self, direction: Combination, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Add the vectors of a direction to `.grad`, then move those of the state, all in place.

        A parameter that the model did not use keeps no gradient.
        """
        added = direction.vectors()
        moves = [
            (_only(before), after.vectors())
            for before, after in zip(old, new, strict=True)
            if isinstance(after, Combination)
        ]
        if not added and not moves:
            return
        with torch.no_grad():
            for run in self._runs:
                self._add_to_grads(added, run)
                for own, to in moves:
                    self._move(own, to, run)

    def _add_to_grads(self, added: dict[Vector, float], run: slice) -> None:
        if not added:
            return
        for p in self.tensors[run]:
            if p.grad is not None and p.grad.is_sparse:
                p.grad = p.grad.to_dense()
        used = [p.grad is not None for p in self.tensors[run]]
        terms = [([*compress(parts, used)], c) for parts, c in self._terms(added, run)]
        add_sum(self._locals([p.grad for p in self.tensors[run] if p.grad is not None]), terms)

    @torch.no_grad()
    def assign(self, value: Tensor | Combination) -> None:
        """Let the parameters be a vector."""
        if isinstance(value, Tensor):
            for p, part in zip(self.tensors, self._parted(value), strict=True):
                p.copy_(part)
            return
        for run in self._runs:
            self._move(_only(self.x), value.vectors(), run)

    def _move(self, own: Vector, to: dict[Vector, float], run: slice) -> None:
        """Let some parts of a vector be those of a combination of it and others."""
        others = self._terms({one: c for one, c in to.items() if one is not own}, run)
        move(self._locals(own.tensors[run]), to.get(own, 0.0), others)

    def _terms(self, terms: dict[Vector, float], run: slice) -> list[tuple[list[Tensor], float]]:
        """The parts of some parameters in this process."""
        found = [(self._locals(one.tensors[run]), c) for one, c in terms.items()]
        return [([part.to(_wide(part)) for part in parts], c) for parts, c in found] if self._narrow else found

    def _locals(self, tensors: list[Tensor]) -> list[Tensor]:
        """The pieces that this process holds."""
        return [_local(tensor) for tensor in tensors] if self.sharded else tensors

    def poison_grads(self) -> None:
        """Leave a NaN in `.grad`: a GradScaler sees it and skips its step, as for any loss that is not finite."""
        self.tensors[0].grad = torch.full_like(self.tensors[0], torch.nan)

    def gradient_of(self, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """The gradient of a weighted sum, (n,), without touching `.grad`; the graph is kept."""
        self.check_whole("a report needs gradients beside `.grad`", "report on a copy of the model that is whole")
        if not tensors[0].requires_grad:
            raise ValueError(
                "the losses carry no graph to differentiate; let evaluate() pass the examples through the model "
                "without torch.no_grad() and .detach()"
            )
        found = torch.autograd.grad(
            [t for t in tensors if t.requires_grad],
            self.tensors,
            [w for t, w in zip(tensors, weights, strict=True) if t.requires_grad],
            retain_graph=True,
            allow_unused=True,
        )
        return self._joined([torch.zeros_like(p) if g is None else g for p, g in zip(self.tensors, found, strict=True)])

    # By name ----------------------------------------------------------------------------------------------------------

    def by_name(self, vector: Tensor | Combination) -> dict[str, Tensor]:
        """Copies of a vector's parts, one a parameter; of one that is spread over processes as it is (DTensor)."""
        parts = self._parted(vector) if isinstance(vector, Tensor) else _only(vector).tensors
        return {name: part.clone() for name, part in zip(self.names, parts, strict=True)}

    def from_names(self, tensors: dict[str, Tensor], like: Tensor | Combination) -> Tensor | Combination:
        """The inverse, after a check of names and shapes."""
        shapes = {name: p.shape for name, p in zip(self.names, self.tensors, strict=True)}
        missing = [name for name in self.names if name not in tensors or tensors[name].shape != shapes[name]]
        if missing or len(tensors) != len(self.names):
            extra = [name for name in tensors if name not in self.names]
            raise ValueError(f"the saved state is of another model: {(missing or extra)[:3]} differ")
        if isinstance(like, Tensor):
            return self._joined([tensors[name].to(self.device) for name in self.names])
        for name, own in zip(self.names, _only(like).tensors, strict=True):
            own.copy_(_spread_like(own, tensors[name]))
        return like


def finite(tensors: Sequence[Tensor], groups: Sequence[Any] = ()) -> bool:
    """Whether all numbers are finite: the one pass over all of them that GradScaler makes, with a scale of 1.

    `groups` are groups of processes that hold other numbers, and must agree.
    """
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        values = _values(tensor)
        by_kind.setdefault((values.device, values.dtype), []).append(values)
    found, one = (torch.full((1,), v, dtype=torch.float32, device=tensors[0].device) for v in (0.0, 1.0))
    for (device, _), alike in by_kind.items():
        here = found.to(device)
        torch._amp_foreach_non_finite_check_and_unscale_(alike, here, one.to(device))
        if here is not found:
            found += here.to(found.device)
    for group in groups:
        distributed.all_reduce(found, op=distributed.ReduceOp.MAX, group=group)
    return not found.item()


def _runs(sizes: Sequence[int]) -> Iterator[slice]:
    """Parameters that stand together, of at most AT_ONCE numbers, or one larger parameter."""
    start = total = 0
    for i, size in enumerate(sizes):
        if total and total + size > AT_ONCE:
            yield slice(start, i)
            start, total = i, 0
        total += size
    yield slice(start, len(sizes))


def _wide(tensor: Tensor) -> torch.dtype:
    """The precision of a part of a vector: at least that of float32."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def _only(vector: Combination) -> Vector:
    """The vector that a combination is."""
    (one,) = vector.terms
    assert isinstance(one, Vector)
    return one


# Parameters that are spread over processes: DTensor -------------------------------------------------------------------


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def _local(tensor: Tensor) -> Tensor:
    """The piece that this process holds."""
    return tensor.to_local() if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def _spread_like(own: Any, value: Tensor) -> Tensor:
    """A tensor as one process has it, whole or in pieces, in the pieces of another."""
    if not _is_sharded(own) or _is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _values(gradient: Tensor) -> Tensor:
    """The numbers of a gradient; those that are there of a sparse one (of embeddings)."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
