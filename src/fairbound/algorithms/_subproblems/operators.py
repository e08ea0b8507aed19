"""Solvers as operators: vmap batches them, compile and make_fx treat them as opaque.

Not `torch.library.custom_op`, whose wrappers cost a fifth of an easy solve: they serve gradients
and mutation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


def register(name: str, schema: str, solve: Function, shapes: Function) -> None:
    """Make `torch.ops.fairbound.<name>`.

    Args:
        schema: "(Tensor a, ...) -> (Tensor, ...)"; every argument is a tensor, and there is more
            than one result.
        solve: the function of tensors that have common leading dimensions.
        shapes: the same arguments to empty results of the right shape.
    """
    # pytest imports modules under two names; torch takes an operator once
    if hasattr(torch.ops.fairbound, name):
        return

    def batch(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> tuple[Any, Any]:
        size = info.batch_size
        front = [
            x.expand(size, *x.shape) if k is None else x.movedim(k, 0)
            for x, k in zip(args, in_dims, strict=True)
        ]
        out = getattr(torch.ops.fairbound, name)(*front)
        return out, (0,) * len(out)

    torch.library.define(f"fairbound::{name}", schema)
    torch.library.impl(f"fairbound::{name}", "default", solve)
    torch.library.register_fake(f"fairbound::{name}", shapes)
    torch.library.register_vmap(f"fairbound::{name}", batch)
