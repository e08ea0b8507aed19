"""Networks of the estimators: an ensemble that is trained as one module, or copies of the user's
module.

`NetworkEnsemble` holds S networks side by side: every layer is one batched product, so that eight
small networks take hardly longer than one. Categories are embedded; a sum of embeddings is what a
first layer makes of one-hot columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fairbound.integrations.sklearn._features import Features

DROPOUT = 0.2  # of hidden units


class NetworkEnsemble(nn.Module):
    """S networks of one shape, (S, B) examples in, (S, B, outputs) out.

    >>> network = NetworkEnsemble(3, numeric=2, sizes=(4,), hidden=(8,), outputs=1, seed=0)
    >>> network(Features(torch.randn(3, 5, 2), torch.zeros(3, 5, 1, dtype=torch.int64))).shape
    torch.Size([3, 5, 1])
    """

    def __init__(
        self,
        members: int,
        numeric: int,
        sizes: Sequence[int],
        hidden: Sequence[int],
        outputs: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.members, self._categories = members, sum(sizes)
        generator = torch.Generator().manual_seed(seed)

        def uniform(*shape: int, fan_in: int) -> nn.Parameter:
            return nn.Parameter(
                (2 * torch.rand(members, *shape, generator=generator) - 1)
                / math.sqrt(max(fan_in, 1))
            )

        widths, fan_in = [*hidden, outputs], numeric + len(sizes)
        self.numeric = uniform(numeric, widths[0], fan_in=fan_in)
        self.embeddings = uniform(self._categories, widths[0], fan_in=fan_in)
        self._offsets: Tensor
        self.register_buffer(
            "_offsets", torch.tensor([*accumulate(sizes, initial=0)][:-1], dtype=torch.int64)
        )
        self.weights = nn.ParameterList(uniform(a, b, fan_in=a) for a, b in pairwise(widths))
        self.biases = nn.ParameterList(
            uniform(1, b, fan_in=a) for a, b in pairwise([fan_in, *widths])
        )

    def forward(self, features: Features) -> Tensor:
        h = torch.baddbmm(self.biases[0], features.numeric, self.numeric)
        if self._categories:
            h = h + self._embedded(features.codes)
        for weight, bias in zip(self.weights, self.biases[1:], strict=True):
            h = nn.functional.dropout(torch.relu(h), DROPOUT, self.training)
            h = torch.baddbmm(bias, h, weight)
        return h

    def copy_state(self, target: dict[str, Tensor], which: Tensor) -> None:
        """Copy the state of some members."""
        for name, parameter in self.named_parameters():
            at = which.to(parameter.device)
            target[name][at] = parameter.detach()[at]

    def _embedded(self, codes: Tensor) -> Tensor:
        """(S, B, width) the sum of the embeddings of an example's categories, in one table for all
        networks."""
        S, B, _ = codes.shape
        first = torch.arange(S, device=codes.device)[:, None, None] * self._categories
        rows = (codes + self._offsets + first).reshape(S * B, -1)
        table = self.embeddings.reshape(S * self._categories, -1)
        return nn.functional.embedding_bag(rows, table, mode="sum").reshape(S, B, -1)


class Member(nn.Module):
    """One network by itself, (B,) examples in, (B, outputs) out."""

    def __init__(self, module: nn.Module, raw: bool) -> None:
        super().__init__()
        self.module, self.raw = module, raw  # raw: the user's, which takes the columns as they are

    def forward(self, features: Features) -> Tensor:
        if not self.raw:
            outputs: Tensor = self.module(Features(*(part[None] for part in features)))[0]
            return outputs
        outputs = self.module(features.numeric)
        return outputs[:, None] if outputs.ndim == 1 else outputs


class NetworkCopies(nn.Module):
    """S networks one after the other: copies of the user's module, or networks that a constrained
    method trains."""

    def __init__(self, copies: Sequence[Member]) -> None:
        super().__init__()
        self.copies, self.members = nn.ModuleList(copies), len(copies)

    def forward(self, features: Features) -> Tensor:
        parts = [Features(*(part[i] for part in features)) for i in range(self.members)]
        return torch.stack([copy(part) for copy, part in zip(self.copies, parts, strict=True)])

    def copy_state(self, target: dict[str, Tensor], which: Tensor) -> None:
        """Copy the state of some members."""
        for name, tensor in self.state_dict().items():
            if bool(which[int(name.split(".")[1])]):
                target[name].copy_(tensor)


def copy_module(module: Any, X: Tensor, outputs: int, members: int) -> NetworkCopies:
    """Copies of a torch module or a Keras model to train; Keras is imported only where a Keras
    model is given."""
    if any(base.__module__.partition(".")[0] == "keras" for base in type(module).__mro__):
        from fairbound.integrations.keras._module import copy_classifier

        return NetworkCopies(
            [Member(copy_classifier(module, X[:64], max(outputs, 2)), True) for _ in range(members)]
        )
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"module must be a torch module or a Keras model, got {type(module).__name__}"
        )
    dtypes = {p.dtype for p in module.parameters()}
    if dtypes - {torch.float32}:
        raise ValueError(
            f"the network is trained in float32, and the module has {dtypes}; use module.float()"
        )
    probe = deepcopy(module).eval()
    with torch.no_grad():
        shape = tuple(probe(X[:2]).shape)
    expected = ((2,), (2, 1)) if outputs == 1 else ((2, outputs),)
    if shape not in expected:
        wanted = (
            "one output (a logit) per example"
            if outputs == 1
            else f"{outputs} logits per example, one per class"
        )
        raise ValueError(f"the module must return {wanted}; for 2 examples it returns {shape}")
    return NetworkCopies([Member(deepcopy(module), True) for _ in range(members)])


def unwrap(network: nn.Module) -> Any:
    """The trained networks: the ensemble, or a list of torch modules or Keras models as the user
    gave them."""
    if not isinstance(network, NetworkCopies):
        return network
    modules: list[Any] = [copy.module for copy in network.copies]
    return [
        module.keras_model() if hasattr(module, "keras_model") else module for module in modules
    ]
