"""A torch module as a function of flat parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class ModuleForward:
    """`forward(x, inputs)` of a module whose parameters are the slices of the flat vector x: (n,).

    Buffers are read as they are and never changed. The output's last dimension is dropped where it
    is 1, so that a binary classifier gives one logit per example.
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
        parts = (
            part.view(shape) for part, shape in zip(x.split(self.sizes), self.shapes, strict=True)
        )
        named = dict(zip(self.names, parts, strict=True))
        output: Tensor = torch.func.functional_call(
            self.module, named, (inputs,), tie_weights=self._tied
        )
        return output.squeeze(-1) if output.ndim > 1 and output.shape[-1] == 1 else output

    def stateful(self) -> list[str]:
        """Layers in training mode that mix examples, change buffers or draw random numbers: not for
        stacked runs."""
        return [
            f"{name or 'the module'} ({type(layer).__name__})"
            for name, layer in self.module.named_modules()
            if layer.training and _has_state(layer)
        ]


def _tied_across_layers(module: nn.Module) -> bool:
    """Whether two layers share a parameter.

    One layer that is used twice under two names is different: with tie_weights, `functional_call`
    would insert its parameters twice and not restore them.
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
    """The module's forward function and its present parameters, flat: (n,). Frozen ones stay as
    they are.

    >>> forward, x = make_functional(nn.Linear(9, 1))
    >>> x.shape, forward(x, torch.zeros(4, 9)).shape
    (torch.Size([10]), torch.Size([4]))
    """
    forward = ModuleForward(module)
    return (
        forward,
        torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]).clone(),
    )


def initial_points(
    build: Callable[[], nn.Module], seeds: Sequence[int], *, feasible: str | None = None
) -> Tensor:
    """Flat parameters of a newly built module for every seed: (R, n). The global random state is
    unchanged.

    Args:
        build: makes a new module, with weights from torch's random numbers.
        seeds: one for each starting point.
        feasible: "zero-last-layer" for a start at which all examples have the same outputs
            (`zero_last_layer`).

    >>> initial_points(lambda: nn.Linear(3, 1), seeds=range(5)).shape
    torch.Size([5, 4])
    """
    if feasible not in (None, "zero-last-layer"):
        raise ValueError(f'feasible must be "zero-last-layer" or None, got {feasible!r}')
    points, generator = [], torch.default_generator
    random_state = generator.get_state()
    try:
        for seed in seeds:
            generator.manual_seed(seed)
            module = build()
            points.append(
                make_functional(module if feasible is None else zero_last_layer(module))[1]
            )
    finally:
        generator.set_state(random_state)
    return torch.stack(points)


def zero_last_layer(module: nn.Module) -> nn.Module:
    """Set the last layer's weight and bias to 0, in place: a strictly feasible start for bounds on
    gaps in loss.

    All outputs are 0, and with cross-entropy each example has the loss log 2 (log of the number of
    classes): every group's loss is the same, a gap is 0, and c = -bound. Rates of positive
    predictions, and losses that depend on the labels at output 0 (squares), differ between groups
    as the labels do.

    >>> zero_last_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))(
    ...     torch.ones(1, 2)
    ... ).item()
    0.0
    """
    with_parameters = [
        (name, layer) for name, layer in module.named_modules() if list(layer.parameters(False))
    ]
    name, last = with_parameters[-1] if with_parameters else ("none", None)
    if not isinstance(last, nn.Linear):
        raise ValueError(
            f"the last layer with parameters is {name or 'the module'} ({type(last).__name__}), not"
            " a Linear, so that zeros in it need not make the outputs constant; set your own"
            " feasible start"
        )
    frozen = [key for key, p in last.named_parameters() if not p.requires_grad]
    if frozen:
        raise ValueError(
            f"the last layer's {' and '.join(frozen)} is frozen; unfreeze it, or set your own start"
        )
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return module


def load_flat(module: nn.Module, x: Tensor) -> nn.Module:
    """Write flat parameters x (n,) back into the module, for use after a run.

    >>> load_flat(nn.Linear(3, 1), torch.zeros(4))(torch.ones(1, 3)).item()
    0.0
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    sizes = [p.numel() for p in trained]
    if x.shape != (sum(sizes),):
        raise ValueError(
            f"the module has {sum(sizes)} parameters, got a vector of shape {tuple(x.shape)}"
        )
    with torch.no_grad():
        for parameter, part in zip(trained, x.split(sizes), strict=True):
            parameter.copy_(part.view(parameter.shape))
    return module
