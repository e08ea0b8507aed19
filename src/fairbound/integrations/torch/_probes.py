"""The probes of a method that measures, in a loop: gradients of f and of one constraint on a sample
of coordinates.

A probe costs two more backward passes through the graph of a step. See `fairbound._utils.measuring`
for what is measured, and why. With DistributedDataParallel the sampled gradients are added up over
the processes; of parameters that are spread over processes, each samples its pieces and the sums
are added up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch._functorch import config as functorch_config

from fairbound._utils.measuring import EVERY, SAMPLE, Measurements, Sizes, is_probe
from fairbound.integrations.torch._distributed import Processes
from fairbound.integrations.torch._parameters import Parameters, dense, graph_error, local

_FEWEST = 16  # sampled coordinates of a tensor, so that a constraint on a small one is seen


class Probes:
    """What was measured so far, and when to measure."""

    def __init__(self, parameters: Parameters, processes: Processes, rows: int) -> None:
        self.parameters, self.processes = parameters, processes
        # A compiled model would free what a second backward pass through its graph reads.
        functorch_config.donated_buffer = False
        pieces = parameters.pieces([p.detach() for p in parameters.tensors])
        counts = [
            min(p.numel(), max(_FEWEST, math.ceil(SAMPLE * p.numel() / parameters.n)))
            for p in pieces
        ]
        self.at = [
            torch.arange(count, device=p.device) * p.numel() // max(count, 1)
            for p, count in zip(pieces, counts, strict=True)
        ]
        weights = [p.numel() / count for p, count in zip(pieces, counts, strict=True) if count]
        each = torch.tensor(weights, dtype=parameters.dtype, device=parameters.device)
        self.weights = each.repeat_interleave(
            torch.tensor([n for n in counts if n], device=each.device)
        )
        self.measured = Measurements.begin(parameters.like, rows, len(self.weights))
        # of so many constraints, until something is measured
        self._sizes: tuple[int, Sizes] | None = None
        self._version = self._waited = 0
        self._overdue = False
        self.pending = False  # whether the step after the last probe is still to be seen

    def _sampled(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """(S,) the sampled coordinates; of a parameter without gradient 0."""
        parts = [
            (
                torch.zeros_like(at, dtype=self.parameters.dtype)
                if tensor is None
                else dense(local(tensor.detach())).reshape(-1)[at].to(self.parameters.dtype)
            )
            for tensor, at in zip(tensors, self.at, strict=True)
        ]
        return torch.cat(parts)

    def sizes(self, m: int) -> Sizes:
        """Sizes of m constraints, with the step that followed the last probe once the optimizer has
        made it."""
        self._waited += 1
        moved = self.parameters.tensors[0]._version != self._version
        # a step through `.data` does not count as a version
        if self.pending and (moved or self._waited > EVERY):
            x = self._sampled(self.parameters.tensors)
            self.measured = self.measured.complete(x, self.weights, self._total)
            self.pending, self._sizes = False, None
        if self._sizes is None or self._sizes[0] != m:
            self._sizes = m, self.measured.sizes(m)
        return self._sizes[1]

    def _total(self, sums: Tensor) -> Tensor:
        for group in self.processes.shards:
            distributed.all_reduce(sums, group=group)
        return sums

    def is_due(self, step: int, m: int) -> bool:
        """Whether to probe now; where sharded gradients are held back, as soon as they are not."""
        due = not self.pending and (self._overdue or is_probe(step, m))
        self._overdue = due and self.held_back
        return due and not self.held_back

    @property
    def held_back(self) -> bool:
        """Whether a backward pass would leave gradients of sharded parameters with their
        process."""
        return self.parameters.sharded and self.processes.out_of_step

    def next_row(self, m: int, absent: Tensor | None) -> Tensor:
        """(m,) 1 for the constraint to probe."""
        return self.measured.next_row(m, absent)

    def gradient(
        self, tensors: Sequence[Tensor], weights: Sequence[Tensor], factor: float | Tensor
    ) -> Tensor:
        """(S,) of the gradient of a weighted sum; the graph stays. `factor` keeps half precision
        from underflowing."""
        pairs = [(t, w * factor) for t, w in zip(tensors, weights, strict=True) if t.requires_grad]
        outputs, by_output = [t for t, _ in pairs], [w for _, w in pairs]
        try:
            # gradients are gathered and reduced on their way to `.grad`
            if self.parameters.sharded:
                held = self.parameters.stash_grads()
                torch.autograd.backward(outputs, by_output, retain_graph=True)
                sample = self._sampled([p.grad for p in self.parameters.tensors])
                self.parameters.restore_grads(held)
                return sample * self.processes.size / factor  # they are reduced to their mean
            gradients = torch.autograd.grad(
                outputs, self.parameters.tensors, by_output, retain_graph=True, allow_unused=True
            )
        except RuntimeError as error:
            raise graph_error(error) from None
        sample = self._sampled(gradients) / factor
        for group in self.processes.groups:
            distributed.all_reduce(sample, group=group)
        return sample

    def probe(self, row: Tensor, of_f: Tensor, of_c: Tensor) -> None:
        """The sampled gradients of f and of the constraint `row`; those of more mini-batches of a
        step are added."""
        if self.pending:
            self.measured = self.measured._replace(
                of_f=self.measured.of_f + of_f, of_c=self.measured.of_c + of_c
            )
            return
        self.measured = self.measured.probe(row, self._sampled(self.parameters.tensors), of_f, of_c)
        self.pending, self._waited, self._version = True, 0, self.parameters.tensors[0]._version

    # Saving ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        leaves = {name: leaf.clone() for name, leaf in self.measured._asdict().items()}
        return leaves | {"pending": self.pending}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        form = self.measured._asdict()
        if {n: v.shape for n, v in saved.items() if n in form} != {
            n: v.shape for n, v in form.items()
        }:
            raise ValueError("the saved measurements are of another model or of other constraints")
        self.measured = Measurements(
            **{name: saved[name].to(leaf).clone() for name, leaf in form.items()}
        )
        self._sizes = None
        # the loaded parameters may be those after the step
        self.pending, self._waited = bool(saved["pending"]), EVERY
