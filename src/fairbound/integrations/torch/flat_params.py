"""A model's trained parameters as one flat vector, and gradients that are put aside, read and written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Held = list[Tensor | None]  # what `.grad` held, one entry for each parameter; empty where it held nothing


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what `torch.compile` and DistributedDataParallel put around it: its names are those saved."""
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod  # type: ignore[assignment]
        model = inner
    return model


class FiniteCheck:
    """Whether tensors are finite: the one pass over all of them that GradScaler makes, with a scale of 1."""

    def __init__(self, parameters: list[Tensor]) -> None:
        device = parameters[0].device
        self.one_device = len({p.device for p in parameters}) == 1
        self.found, self.scale = (torch.full((1,), v, dtype=torch.float32, device=device) for v in (0.0, 1.0))

    def finite(self, tensors: list[Tensor]) -> bool:
        for tensor in tensors:
            if tensor.dtype is not tensors[0].dtype or tensor.is_sparse:
                return all(bool(torch.isfinite(_values(one)).all()) for one in tensors)
        if not self.one_device or not tensors:
            return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, self.found, self.scale)
        if not self.found.item():
            return True
        self.found.zero_()
        return False


class Parameters:
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
            if p.is_complex() or type(p).__name__ == "DTensor":
                what = "complex" if p.is_complex() else "spread over processes (FSDP)"
                raise ValueError(f"the parameter {name!r} is {what}, which Constrained does not support")
        self.names = tuple(name for name, _ in named)
        self.tensors = [p for _, p in named]
        self.sizes = [p.numel() for p in self.tensors]
        self.n = sum(self.sizes)
        narrow = {p.dtype for p in self.tensors} <= {torch.float16, torch.bfloat16, torch.float32}
        self.dtype = torch.float32 if narrow else torch.float64  # of the flat vectors
        self.device = self.tensors[0].device
        self.kind = self.device.type  # asked for in every step, where torch would make a new string
        self.one = torch.ones((), dtype=self.dtype, device=self.device)
        self.stand_in = torch.ones(1, dtype=self.dtype, device=self.device)  # for x, where nothing reads it
        self._nothing: Held = [None] * len(self.tensors)
        self._look = FiniteCheck(self.tensors)

    def flat(self) -> Tensor:
        """All parameters as they are now: (n,)."""
        if not torch.is_grad_enabled():
            return self._joined(self.tensors)
        torch._C._set_grad_enabled(False)  # what `no_grad` does, without the objects that it makes
        try:
            return self._joined(self.tensors)
        finally:
            torch._C._set_grad_enabled(True)

    def _joined(self, tensors: list[Tensor]) -> Tensor:
        if len(tensors) == 1:  # which flattening would hand out itself
            return tensors[0].detach().reshape(-1).to(self.dtype, copy=True)
        flat: Tensor = torch._C._nn.flatten_dense_tensors(tensors)
        return flat if flat.dtype is self.dtype else flat.to(self.dtype)

    def _parted(self, flat: Tensor) -> Sequence[Tensor]:
        """The parts of a flat vector, each in its parameter's shape."""
        parts: Sequence[Tensor] = torch._C._nn.unflatten_dense_tensors(flat, self.tensors)
        return parts

    def stash_grads(self) -> Held:
        """Take what `.grad` holds, leaving None; nothing where it holds nothing, as after `zero_grad()`."""
        for p in self.tensors:
            if p.grad is not None:
                return self._taken()
        return []

    def _taken(self) -> Held:
        held = [p.grad for p in self.tensors]
        for p in self.tensors:
            p.grad = None
        return held

    def restore_grads(self, held: Held) -> None:
        for p, old in zip(self.tensors, held or self._nothing, strict=True):
            p.grad = old

    def join(self, held: Held) -> None:
        """Add what was put aside."""
        if not held:
            return
        for p, old in zip(self.tensors, held, strict=True):
            if old is not None:
                p.grad = old if p.grad is None else old + p.grad

    def finite(self, tensors: list[Tensor]) -> bool:
        """Whether the direction and a method's state are."""
        return self._look.finite(tensors)

    def finite_gradients(self) -> bool:
        """Whether `.grad` is finite throughout."""
        return self._look.finite([gradient for p in self.tensors if (gradient := p.grad) is not None])

    def gradient(self) -> Tensor:
        """What `.grad` holds now, (n,); 0 for a parameter that has none."""
        found = [p.grad for p in self.tensors]
        for gradient in found:
            if gradient is None or gradient.is_sparse:
                found = [torch.zeros_like(p) if p.grad is None else _dense(p.grad) for p in self.tensors]
                break
        return self._joined(found)  # type: ignore[arg-type]  # None is replaced

    def write(self, direction: Tensor, held: Held) -> None:
        """`.grad` = what was put aside + direction; a parameter that the model did not use keeps none."""
        for p, part, old in zip(self.tensors, self._parted(direction), held or self._nothing, strict=True):
            if old is not None or p.grad is not None:
                new = part if part.dtype is p.dtype else part.to(p.dtype)
                p.grad = new if old is None else old + new

    def add(self, direction: Tensor) -> None:
        """Add a direction to what `.grad` holds."""
        for p, part in zip(self.tensors, self._parted(direction), strict=True):
            new = part.to(p.dtype)
            p.grad = new if p.grad is None else p.grad + new

    def poison_grads(self) -> None:
        """Leave a NaN in `.grad`: a GradScaler sees it and leaves its step out, as for any loss that is not finite."""
        self.tensors[0].grad = torch.full_like(self.tensors[0], torch.nan)

    def jacobian_row(self, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        """The gradient of a weighted sum, (n,), without touching `.grad`; the graph is kept."""
        if not tensors[0].requires_grad:
            raise ValueError(
                "the losses carry no graph to differentiate; let evaluate() pass the rows through the model without "
                "torch.no_grad() and .detach()"
            )
        found = torch.autograd.grad(
            [t for t in tensors if t.requires_grad],
            self.tensors,
            [w for t, w in zip(tensors, weights, strict=True) if t.requires_grad],
            retain_graph=True,
            allow_unused=True,
        )
        return self._joined([torch.zeros_like(p) if g is None else g for p, g in zip(self.tensors, found, strict=True)])

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector as one tensor a parameter."""
        return {name: part.clone() for name, part in zip(self.names, self._parted(flat), strict=True)}

    def from_names(self, tensors: dict[str, Tensor]) -> Tensor:
        """The other way round, with a look at names and shapes."""
        missing = [name for name in self.names if name not in tensors or tensors[name].shape != self._shape(name)]
        if missing or len(tensors) != len(self.names):
            extra = [name for name in tensors if name not in self.names]
            raise ValueError(f"the saved state is of another model: {(missing or extra)[:3]} differ")
        return self._joined([tensors[name].to(self.device) for name in self.names])

    def _shape(self, name: str) -> torch.Size:
        return self.tensors[self.names.index(name)].shape


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _values(gradient: Tensor) -> Tensor:
    """The numbers of a gradient; those that are there of a sparse one (of embeddings)."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
