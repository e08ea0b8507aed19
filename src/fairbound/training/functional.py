"""A torch module as a function of flat parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class ModuleForward:
    """`forward(x, inputs)` of a module whose parameters are the slices of the flat vector x: (n,).

    Buffers are read as they are and never changed. The output's last dimension is dropped where it is 1, so that a
    binary classifier gives one logit per example.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.names = list(trained)
        self.shapes = [p.shape for p in trained.values()]
        self.sizes = [p.numel() for p in trained.values()]
        if not self.names:
            raise ValueError("the module has no parameters to train")
        self._tied = _tied_across_layers(module)

    @property
    def n(self) -> int:
        return sum(self.sizes)

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        parts = (part.view(shape) for part, shape in zip(x.split(self.sizes), self.shapes, strict=True))
        named = dict(zip(self.names, parts, strict=True))
        output: Tensor = torch.func.functional_call(self.module, named, (inputs,), tie_weights=self._tied)
        return output.squeeze(-1) if output.ndim > 1 and output.shape[-1] == 1 else output

    def stateful(self) -> list[str]:
        """Layers in training mode that mix examples, change buffers or draw random numbers: not for stacked runs."""
        return [
            f"{name or 'the module'} ({type(layer).__name__})"
            for name, layer in self.module.named_modules()
            if layer.training and _has_state(layer)
        ]


def _tied_across_layers(module: nn.Module) -> bool:
    """Whether two layers share a parameter.

    One layer that is used twice under two names is different: with tie_weights, `functional_call` would insert its
    parameters twice and not restore them.
    """
    owners: dict[int, set[int]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner = module.get_submodule(name.rpartition(".")[0])
        owners.setdefault(id(parameter), set()).add(id(owner))
    return any(len(layers) > 1 for layers in owners.values())


def _has_state(layer: nn.Module) -> bool:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return True
    if isinstance(layer, nn.modules.batchnorm._NormBase):  # instance norm
        return layer.track_running_stats
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    return isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0


def make_functional(module: nn.Module) -> tuple[ModuleForward, Tensor]:
    """The module's forward function and its present parameters, flat: (n,). Frozen ones stay as they are.

    >>> forward, x = make_functional(nn.Linear(9, 1))
    >>> x.shape, forward(x, torch.zeros(4, 9)).shape
    (torch.Size([10]), torch.Size([4]))
    """
    forward = ModuleForward(module)
    return forward, torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]).clone()


def initial_points(build: Callable[[], nn.Module], seeds: Sequence[int]) -> Tensor:
    """Flat parameters of a newly built module for every seed: (R, n). The global random state is unchanged."""
    points, generator = [], torch.default_generator
    kept = generator.get_state()
    try:
        for seed in seeds:
            generator.manual_seed(seed)
            points.append(make_functional(build())[1])
    finally:
        generator.set_state(kept)
    return torch.stack(points)


def load_flat(module: nn.Module, x: Tensor) -> nn.Module:
    """Write flat parameters back into the module, for use after a run."""
    trained = [p for p in module.parameters() if p.requires_grad]
    sizes = [p.numel() for p in trained]
    if x.shape != (sum(sizes),):
        raise ValueError(f"the module has {sum(sizes)} parameters, got a vector of shape {tuple(x.shape)}")
    with torch.no_grad():
        for parameter, part in zip(trained, x.split(sizes), strict=True):
            parameter.copy_(part.view(parameter.shape))
    return module
