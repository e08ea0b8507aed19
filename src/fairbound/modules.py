"""A torch module as a function of flat parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class ModuleForward:
    """`forward(x, inputs)` of a module whose parameters are the slices of the flat vector x: (n,).

    Buffers are read as they are and never changed. The output's last dimension is dropped where it is 1, so that a
    binary classifier gives one logit per row.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [p.shape for _, p in module.named_parameters()]
        self.sizes = [p.numel() for _, p in module.named_parameters()]
        if not self.names:
            raise ValueError("the module has no parameters to train")

    @property
    def n(self) -> int:
        return sum(self.sizes)

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        parts = (part.view(shape) for part, shape in zip(x.split(self.sizes), self.shapes, strict=True))
        output: Tensor = torch.func.functional_call(self.module, dict(zip(self.names, parts, strict=True)), (inputs,))
        return output.squeeze(-1) if output.ndim > 1 and output.shape[-1] == 1 else output

    def stateful(self) -> list[str]:
        """Layers in training mode that change buffers or draw random numbers, which stacked runs cannot share."""
        found = []
        for name, layer in self.module.named_modules():
            if not layer.training:
                continue
            normalises = isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats
            drops = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
            if normalises or drops:
                found.append(f"{name or 'the module'} ({type(layer).__name__})")
        return found


def functional(module: nn.Module) -> tuple[ModuleForward, Tensor]:
    """The module's forward function and its present parameters, flat: (n,).

    >>> forward, x = functional(nn.Linear(9, 1))
    >>> x.shape, forward(x, torch.zeros(4, 9)).shape
    (torch.Size([10]), torch.Size([4]))
    """
    forward = ModuleForward(module)
    return forward, torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


def initial_points(build: Callable[[], nn.Module], seeds: Sequence[int]) -> Tensor:
    """Flat parameters of a freshly built module for every seed: (R, n). The global random state is left as it was."""
    points = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            points.append(functional(build())[1])
    return torch.stack(points)


def load_flat(module: nn.Module, x: Tensor) -> nn.Module:
    """Write flat parameters back into the module, for use after a run."""
    expected = sum(p.numel() for p in module.parameters())
    if x.shape != (expected,):
        raise ValueError(f"the module has {expected} parameters, got a vector of shape {tuple(x.shape)}")
    with torch.no_grad():
        for parameter, part in zip(module.parameters(), x.split([p.numel() for p in module.parameters()]), strict=True):
            parameter.copy_(part.view(parameter.shape))
    return module
