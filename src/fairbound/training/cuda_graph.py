"""A compiled step on an NVIDIA GPU as one CUDA graph.

Launched kernel by kernel, a step of a thousand small networks waits for Python most of the time; recorded once and
replayed, it does not. The results of a step overwrite its arguments, in memory that the graph owns, so that only the
inputs of the next step (examples, hyper-parameters) are copied from step to step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairbound._utils.pytree import tree_leaves, tree_unflatten

log = logging.getLogger("fairbound")


class CUDAGraphStep:
    """A function of tensors whose first `fed_back` results are the first arguments of its next call.

    The next call overwrites what this one returns. If no graph can be recorded, it calls the function directly.
    """

    def __init__(self, function: Callable[..., Any], fed_back: int) -> None:
        self.function, self.fed_back = function, fed_back
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False

    def __call__(self, *args: Any) -> Any:
        if self.failed:
            return self.function(*args)
        leaves = tree_leaves(args)
        with torch.cuda.device(leaves[0].device):  # the current one may be another, and would record nothing
            return self._replayed(args, leaves)

    def _replayed(self, args: Any, leaves: list[Tensor]) -> Any:
        if self.graph is None:
            first = self._warmed_up(args)
            if not self._recorded(args, leaves):
                return first
        pairs = [(static, new) for static, new in zip(self.inputs, leaves, strict=True) if static is not new]
        if pairs:
            torch._foreach_copy_([static for static, _ in pairs], [new for _, new in pairs])
        assert self.graph is not None
        self.graph.replay()
        return tree_unflatten(self.returned, iter(self.outputs))

    def _warmed_up(self, args: Any) -> Any:
        """One call outside of the graph: it compiles, and makes what libraries make at their first use."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            returned = self.function(*args)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        return returned

    def _recorded(self, args: Any, leaves: list[Tensor]) -> bool:
        self.inputs = [leaf.clone() for leaf in leaves]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.returned = self.function(*tree_unflatten(args, iter(self.inputs)))
                # an input that is returned may be written over before it is read
                results = tree_leaves(self.returned)
                outputs = [leaf.clone() if _is_one_of(leaf, self.inputs) else leaf for leaf in results]
                for static, new in zip(self.inputs[: self.fed_back], outputs[: self.fed_back], strict=True):
                    static.copy_(new)
        except RuntimeError as error:  # an operation that waits for the device, say
            log.info(f"steps are launched kernel by kernel: no CUDA graph could be recorded ({error})")
            torch.cuda.synchronize()
            self.failed = True
            return False
        self.outputs = [*self.inputs[: self.fed_back], *outputs[self.fed_back :]]
        self.graph = graph
        return True


def _is_one_of(leaf: Tensor, tensors: list[Tensor]) -> bool:
    return any(leaf is tensor for tensor in tensors)
