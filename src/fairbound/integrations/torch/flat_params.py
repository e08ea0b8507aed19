"""A model's trained parameters as one flat vector, and gradients that are stashed, read and written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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
        self.placeholder = torch.ones(1, dtype=self.dtype, device=self.device)  # for x, where nothing reads it

    def flat(self) -> Tensor:
        """All parameters as they are now: (n,)."""
        return self._joined([p.detach() for p in self.tensors])

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
                p.grad = old if p.grad is None else old + p.grad

    def grads(self) -> list[Tensor]:
        """What `.grad` holds, of the parameters that have any."""
        return [p.grad for p in self.tensors if p.grad is not None]

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

    def poison_grads(self) -> None:
        """Leave a NaN in `.grad`: a GradScaler sees it and skips its step, as for any loss that is not finite."""
        self.tensors[0].grad = torch.full_like(self.tensors[0], torch.nan)

    def gradient_of(self, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """The gradient of a weighted sum, (n,), without touching `.grad`; the graph is kept."""
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

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector as one tensor a parameter."""
        return {name: part.clone() for name, part in zip(self.names, self._parted(flat), strict=True)}

    def from_names(self, tensors: dict[str, Tensor]) -> Tensor:
        """The inverse, after a check of names and shapes."""
        shapes = {name: p.shape for name, p in zip(self.names, self.tensors, strict=True)}
        missing = [name for name in self.names if name not in tensors or tensors[name].shape != shapes[name]]
        if missing or len(tensors) != len(self.names):
            extra = [name for name in tensors if name not in self.names]
            raise ValueError(f"the saved state is of another model: {(missing or extra)[:3]} differ")
        return self._joined([tensors[name].to(self.device) for name in self.names])


def finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers are finite: the one pass over all of them that GradScaler makes, with a scale of 1."""
    found, one = (torch.full((1,), v, dtype=torch.float32, device=tensors[0].device) for v in (0.0, 1.0))
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        values = _values(tensor)
        by_kind.setdefault((values.device, values.dtype), []).append(values)
    for (device, _), alike in by_kind.items():
        here = found.to(device)
        torch._amp_foreach_non_finite_check_and_unscale_(alike, here, one.to(device))
        if here.item():
            return False
    return True


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _values(gradient: Tensor) -> Tensor:
    """The numbers of a gradient; those that are there of a sparse one (of embeddings)."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
