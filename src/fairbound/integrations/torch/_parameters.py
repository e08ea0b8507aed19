"""A model's trained parameters and what their `.grad` holds; a vector of their size for
smoothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

_AT_ONCE = 1 << 24  # numbers of a temporary
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of as many bytes
Grads = list[Tensor | None]  # what `.grad` held, one entry for each parameter


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what `torch.compile` and DistributedDataParallel put around it: its names
    are those saved."""
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        inner: Any = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
        model = inner
    return model


class Parameters:
    """The trained parameters of a model, in their order."""

    def __init__(self, model: nn.Module | Iterable[Tensor]) -> None:
        if isinstance(model, torch.optim.Optimizer):
            raise TypeError(
                f"give Constrained the model, not its optimizer ({type(model).__name__})"
            )
        if isinstance(model, nn.Module):
            listed = list(unwrapped(model).named_parameters())
        else:
            listed = [(str(i), p) for i, p in enumerate(model)]  # type: ignore[misc]
        wrong = [type(p).__name__ for _, p in listed if not isinstance(p, Tensor)]
        if wrong:
            raise TypeError(
                f"give a module or its parameters, got {wrong[0]}; for parameter groups give the"
                " module"
            )
        named = [(name, p) for name, p in listed if p.requires_grad]
        if not named:
            raise ValueError(
                "the model has no parameters to train; all are frozen, or there are none"
            )
        for name, p in named:
            if p.is_complex():
                raise ValueError(
                    f"the parameter {name!r} is complex, which Constrained does not support"
                )
        self.names = tuple(name for name, _ in named)
        self.tensors: list[Tensor] = [p for _, p in named]
        self.sizes = [p.numel() for p in self.tensors]
        self.n = sum(self.sizes)
        narrow = {p.dtype for p in self.tensors} <= {torch.float16, torch.bfloat16, torch.float32}
        # of flat vectors, and of a method's state
        self.dtype = torch.float32 if narrow else torch.float64
        # spread over processes (FSDP2, tensor parallel)
        self.sharded = any(is_sharded(p) for p in self.tensors)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def like(self) -> Tensor:
        """() a number in the precision of flat vectors, on the device."""
        return torch.zeros((), dtype=self.dtype, device=self.device)

    def check_whole(self, reason: str, remedy: str) -> None:
        """Refuse what a process that holds pieces of the parameters cannot do."""
        if self.sharded:
            raise ValueError(
                f"{reason}, and the parameters are spread over processes (FSDP, DTensor); {remedy}"
            )

    # Flat vectors ---------------------------------------------------------------------------------

    def flat(self) -> Tensor:
        """All parameters as they are now: (n,)."""
        return self._joined([p.detach() for p in self.tensors])

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1).to(self.dtype) for tensor in tensors])

    def parts(self, flat: Tensor) -> list[Tensor]:
        """The parts of a flat vector, each in its parameter's shape."""
        return [
            part.view(p.shape) for part, p in zip(flat.split(self.sizes), self.tensors, strict=True)
        ]

    @torch.no_grad()
    def assign(self, x: Tensor) -> None:
        """Let the parameters be a flat vector."""
        for p, part in zip(self.tensors, self.parts(x), strict=True):
            p.copy_(part)

    def gradient_of(
        self, tensors: Sequence[Tensor], weights: Sequence[Tensor], *, retain: bool = True
    ) -> tuple[Tensor, list[bool]]:
        """The gradient (n,) of a weighted sum, beside `.grad`, and which parameters it reaches."""
        self.check_whole(
            "a report needs gradients beside `.grad`", "report on a copy of the model that is whole"
        )
        check_graphs(tensors[:1])  # a statistic of another part need not depend on the model
        pairs = [
            (tensor, weight)
            for tensor, weight in zip(tensors, weights, strict=True)
            if tensor.requires_grad
        ]
        try:
            gradients = torch.autograd.grad(
                [tensor for tensor, _ in pairs],
                self.tensors,
                [weight for _, weight in pairs],
                retain_graph=retain,
                allow_unused=True,
            )
        except RuntimeError as error:
            raise graph_error(error) from None
        reached = [gradient is not None for gradient in gradients]
        parts = zip(self.tensors, gradients, strict=True)
        return (
            self._joined([torch.zeros_like(p) if g is None else dense(g) for p, g in parts]),
            reached,
        )

    def add_direction(self, direction: Tensor, reached: Sequence[bool]) -> None:
        """Add a flat vector to what `.grad` holds; a parameter that nothing reached and that has
        none keeps none."""
        for p, part, used in zip(self.tensors, self.parts(direction), reached, strict=True):
            if used or p.grad is not None:
                p.grad = (
                    part.to(p.dtype, copy=True)
                    if p.grad is None
                    else dense(p.grad) + part.to(p.dtype)
                )

    # What `.grad` holds ---------------------------------------------------------------------------

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
                p.grad = (
                    old if p.grad is None else p.grad + old if old.is_sparse else old.add_(p.grad)
                )

    def grads(self) -> list[Tensor]:
        """What `.grad` holds in this process, of the parameters that have any."""
        return self.pieces([grad for p in self.tensors if (grad := p.grad) is not None])

    def pieces(self, tensors: list[Tensor]) -> list[Tensor]:
        """What this process holds of them."""
        return [local(tensor) for tensor in tensors] if self.sharded else tensors

    def poison_grads(self, unless: Tensor | None = None) -> None:
        """Leave a NaN in `.grad`: a GradScaler sees it and skips its step, as for any loss that is
        not finite.

        `unless` a number () bool on the device says otherwise.
        """
        first = self.tensors[0]
        if unless is None or first.grad is None:
            nan = torch.full_like(first, torch.nan)
            first.grad = (
                nan if unless is None else torch.where(unless, torch.zeros_like(first), nan)
            )
        else:
            local(first.grad).masked_fill_(~unless, torch.nan)

    # By name --------------------------------------------------------------------------------------

    def by_name(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """Copies of a vector's parts, one a parameter; of one that is spread over processes as it
        is (DTensor)."""
        return {name: part.detach().clone() for name, part in zip(self.names, parts, strict=True)}

    def in_order(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """The inverse, after a check of names and shapes."""
        shapes = {name: p.shape for name, p in zip(self.names, self.tensors, strict=True)}
        missing = [
            name
            for name in self.names
            if name not in tensors or tensors[name].shape != shapes[name]
        ]
        if missing or len(tensors) != len(self.names):
            extra = [name for name in tensors if name not in self.names]
            raise ValueError(
                f"the saved state is of another model: {(missing or extra)[:3]} differ"
            )
        return [tensors[name] for name in self.names]


class SmoothedParameters:
    """z of a method that smooths x: the gradient is increased by mu (x - z), then z += beta (x -
    z)."""

    def __init__(self, parameters: Parameters) -> None:
        """Start at the parameters as they are now, in at least single precision."""
        self.parameters = parameters
        self.z = [p.detach().to(_wide(p), copy=True) for p in parameters.tensors]

    @torch.no_grad()
    def pull(
        self, mu: float, beta: float, factor: float | Tensor, made: Tensor | None = None
    ) -> None:
        """Add factor mu (x - z) to every `.grad` there is, then move z; some parameters at once, to
        save memory.

        Nothing moves where a step was not made, `made` () bool on the device.
        """
        for span in _slices(self.parameters.sizes):
            tensors = self.parameters.tensors[span]
            z, x = (
                self.parameters.pieces(parts)
                for parts in (self.z[span], [p.detach() for p in tensors])
            )
            x = [
                p if p.dtype is part.dtype else p.to(part.dtype)
                for p, part in zip(x, z, strict=True)
            ]
            gaps = torch._foreach_sub(x, z)
            if made is not None:
                torch._foreach_mul_(gaps, made.to(gaps[0].dtype))
                torch._foreach_add_(z, gaps, alpha=beta)
            if isinstance(factor, Tensor):
                torch._foreach_mul_(gaps, factor.to(gaps[0].dtype))
            for p in tensors:
                if p.grad is not None and p.grad.is_sparse:
                    p.grad = p.grad.to_dense()
            grads = self.parameters.pieces([p.grad for p in tensors if p.grad is not None])
            pulls = [gap for p, gap in zip(tensors, gaps, strict=True) if p.grad is not None]
            if grads:
                torch._foreach_add_(
                    grads, pulls, alpha=mu if isinstance(factor, Tensor) else mu * factor
                )
            if made is None:
                torch._foreach_lerp_(z, x, beta)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for z, saved in zip(self.z, self.parameters.in_order(tensors), strict=True):
            z.copy_(_spread_like(z, saved))


def _slices(sizes: Sequence[int]) -> Iterator[slice]:
    """Parameters that stand together, of at most AT_ONCE numbers, or one larger parameter."""
    start = total = 0
    for i, size in enumerate(sizes):
        if total and total + size > _AT_ONCE:
            yield slice(start, i)
            start, total = i, 0
        total += size
    yield slice(start, len(sizes))


# Checks -------------------------------------------------------------------------------------------


def non_finite(tensors: Sequence[Tensor], groups: Sequence[Any] = ()) -> Tensor:
    """(1,) above 0 where some number is not finite: the one pass that GradScaler makes over all,
    with a scale of 1.

    `groups` are groups of processes that hold other numbers, and must agree.
    """
    bad = torch.zeros(1, device=tensors[0].device, dtype=torch.float32)
    for device, dtype, alike in _alike(
        [t.coalesce().values() if t.is_sparse else t for t in tensors]
    ):
        if not dtype.is_floating_point:  # a method's state may hold others
            continue
        here = bad.to(device)
        torch._amp_foreach_non_finite_check_and_unscale_(alike, here, _one(device))
        if here is not bad:
            bad += here.to(bad.device)
    for group in groups:
        distributed.all_reduce(bad, op=distributed.ReduceOp.MAX, group=group)
    return bad


def _alike(tensors: list[Tensor]) -> list[tuple[torch.device, torch.dtype, list[Tensor]]]:
    """Group tensors of one device and precision together, as a foreach operation wants them."""
    by_kind = torch._C._group_tensors_by_device_and_dtype([tensors], False)  # type: ignore[list-item]
    return [(*kind, alike) for kind, ((alike,), _) in by_kind.items()]  # type: ignore[misc]


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones(1, device=device, dtype=torch.float32)


def clear(gradients: Sequence[Tensor], unless: Tensor) -> None:
    """Set gradients to 0, in place, unless a number () bool on their device says otherwise.

    As a product of their bits with 0 or 1, in one launch for many: 0 times NaN would be NaN, and a
    `where` for each parameter some hundred launches.
    """
    for _, dtype, alike in _alike([g._values() if g.is_sparse else g for g in gradients]):
        bits = BITS[dtype.itemsize]
        torch._foreach_mul_([values.view(bits) for values in alike], unless.to(bits))


def check_graphs(tensors: Sequence[Tensor]) -> None:
    """Whether what is to be differentiated can be."""
    if not all([tensor.requires_grad for tensor in tensors]):  # noqa: C419  (a list is faster here)
        raise ValueError(
            "the losses, or the outputs that a constraint reads, carry no graph to differentiate;"
            " compute them from the model outside torch.no_grad(), without .detach() or .item()"
        )


def graph_error(error: RuntimeError) -> Exception:
    """torch's error about a graph that is gone as a sentence; any other as it is."""
    if "second time" not in str(error):
        return error
    return ValueError(
        "the graph of these losses was used before: by another backward(), or by a method that"
        " takes several gradients of one mini-batch; use fair.backward_closure(evaluate) for such a"
        " method"
    )


def dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _wide(tensor: Tensor) -> torch.dtype:
    """Dtype with at least the precision of float32."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


# Parameters that are spread over processes: DTensor -----------------------------------------------


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """The piece that this process holds."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def _spread_like(like: Any, value: Tensor) -> Tensor:
    """A tensor as one process has it, whole or in pieces, in the pieces of another."""
    if not is_sharded(like) or is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
