"""Training of an ensemble: AdamW with weight decay, early stopping and selection on validation
data.

Network s trains on the examples that are not in its fold and is selected on those that are: the
validation data of one network train the others, and every example has networks that never saw it.
All networks take their steps together; their losses are added, so that each has its own gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairbound.constraints._batch import MiniBatch
from fairbound.constraints._constraint import Constraint
from fairbound.core import Algorithm
from fairbound.integrations.sklearn._features import Features
from fairbound.integrations.sklearn._networks import NetworkCopies, NetworkEnsemble
from fairbound.integrations.torch._constrained import Constrained

# Chosen on OK, VA, KS and AL (benchmarks/fair_classifier). There the best epoch is the fifth to
# seventh of 30.
WEIGHT_DECAY = 0.1
BATCH_SIZES = (16, 256)  # smallest and largest; in between, a fiftieth of the training examples
MIN_STEPS = 1_000  # of a run on few examples
MIN_EPOCHS = 5  # of a run on many examples
_EVALUATIONS = 30  # per run
PATIENCE = 5  # evaluations without an improvement of any network before the run ends
CHUNK = 8_192  # examples per forward pass in an evaluation

Networks = NetworkEnsemble | NetworkCopies


class Examples(NamedTuple):
    """What networks train on."""

    features: Features  # (N, ...)
    target: Tensor  # (N,) labels or classes
    weight: Tensor | None  # (N,)
    fold: Tensor  # (N,) 0 ... K-1
    groups: dict[str, Tensor] | None = None  # (N,) each, for a constrained method

    def at(self, index: Tensor) -> tuple[Features, Tensor, Tensor | None]:
        """The examples (S, B) of a step."""
        features = Features(*(part[index] for part in self.features))
        return features, self.target[index], None if self.weight is None else self.weight[index]


Backward = Callable[[Any, Examples, Tensor], None]  # (network, examples, index (S, B)): fills .grad


class History(NamedTuple):
    epochs: Tensor  # (E,) at every evaluation
    losses: Tensor  # (E, S) on validation data
    best: Tensor  # (S,) the epoch at which every network was selected
    planned: int  # epochs


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Loss of every example, from one logit (the last dimension is 1), or one per class."""
    if outputs.shape[-1] == 1:
        logits = outputs[..., 0]
        return nn.functional.binary_cross_entropy_with_logits(
            logits, labels.to(logits.dtype), reduction="none"
        )
    return -outputs.log_softmax(-1).gather(-1, labels.long()[..., None])[..., 0]


def one_logit(outputs: Tensor) -> Tensor:
    """(N,) where there is one output per example."""
    return outputs[:, 0] if outputs.shape[-1] == 1 else outputs


def plain_backward(network: Any, examples: Examples, index: Tensor) -> None:
    """The gradient of the loss of every network on its examples, `index` (S, B)."""
    features, target, weight = examples.at(index)
    losses = cross_entropy(network(features), target)
    (losses if weight is None else losses * weight).mean(1).sum().backward()


def constrained_backward(
    network: Any, constraints: tuple[Constraint, ...], method: Algorithm[Any], seed: int
) -> Backward:
    """The direction of a constrained method; every network has its own multipliers."""
    copies = [Constrained(copy, constraints, method, seed=seed) for copy in network.copies]

    def backward(network: Any, examples: Examples, index: Tensor) -> None:
        for copy, constrained, rows in zip(network.copies, copies, index, strict=True):

            def evaluate(size: int, copy: nn.Module = copy, rows: Tensor = rows) -> MiniBatch:
                # a method that asks for several mini-batches gets random ones of the step's
                # examples
                rows = rows if size == 1 else rows[torch.randint(len(rows), (size * len(rows),))]
                features, target, weight = examples.at(rows)
                outputs = copy(features)
                groups = {name: codes[rows] for name, codes in (examples.groups or {}).items()}
                return MiniBatch(
                    cross_entropy(outputs, target), groups, target, one_logit(outputs), weight
                )

            constrained.backward_closure(evaluate)

    return backward


def train(
    network: Networks,
    examples: Examples,
    folds: Tensor,
    *,
    learning_rate: float,
    batch_size: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    backward: Backward | None = None,
    progress: Callable[[str], None] | None = None,
) -> History:
    """Train a network of S members in place; `folds` (S,) names the fold that each is not trained
    on.

    batch_size, epochs: None: by the number of examples.
    progress: is given a text after every evaluation.
    """
    generator = torch.Generator().manual_seed(seed)
    pools = [torch.nonzero(examples.fold != fold)[:, 0] for fold in folds.tolist()]
    size = min(map(len, pools))  # a fold is an example larger than another
    batch = min(size, batch_size or min(max(size // 50, BATCH_SIZES[0]), BATCH_SIZES[1]))
    per_epoch = max(1, size // batch)
    epochs = epochs or max(MIN_EPOCHS, math.ceil(MIN_STEPS / per_epoch))
    steps, every = per_epoch * epochs, max(1, per_epoch * epochs // _EVALUATIONS)
    decayed = [p for name, p in network.named_parameters() if "bias" not in name]
    others = [p for name, p in network.named_parameters() if "bias" in name]
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    validation = [torch.nonzero(examples.fold == fold)[:, 0] for fold in folds.tolist()]
    # (S, V)
    validation_rows = torch.stack([rows[: min(map(len, validation))] for rows in validation])
    # at the best epoch
    state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    best, best_epoch, stale = torch.full((len(folds),), math.inf), torch.zeros(len(folds)), 0
    evaluated: list[tuple[float, Tensor]] = []  # epoch, (S,) losses
    order = torch.empty(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of dropout
        for step in range(steps):
            if step % per_epoch == 0:
                order = torch.stack(
                    [pool[torch.randperm(len(pool), generator=generator)[:size]] for pool in pools]
                )
            start = step % per_epoch * batch
            optimizer.zero_grad()
            (backward or plain_backward)(network.train(), examples, order[:, start : start + batch])
            optimizer.step()
            schedule.step()
            if (step + 1) % every == 0 or step + 1 == steps:
                epoch, losses = (
                    (step + 1) / per_epoch,
                    _mean_losses(network.eval(), examples, validation_rows),
                )
                evaluated.append((epoch, losses))
                better = losses < best  # not where it is NaN
                best, best_epoch = (
                    torch.where(better, losses, best),
                    torch.where(better, epoch, best_epoch),
                )
                network.copy_state(state, better)
                if progress is not None:
                    progress(
                        f"epoch {epoch:.1f} of {epochs}, validation loss {float(losses.mean()):.4f}"
                    )
                stale = 0 if bool(better.any()) else stale + 1
                if stale >= PATIENCE:
                    break
    if not bool(best.isfinite().all()):
        raise ValueError(
            "the validation loss of a network is NaN or infinite at every evaluation; scale the"
            " columns of X, or lower learning_rate"
        )
    network.load_state_dict(state)
    network.eval()
    at, losses_by_epoch = zip(*evaluated, strict=True)
    return History(torch.tensor(at), torch.stack(losses_by_epoch), best_epoch, epochs)


def _mean_losses(network: Networks, examples: Examples, rows: Tensor) -> Tensor:
    """(S,) of every network on its rows (S, V)."""
    total, count = torch.zeros(()), torch.zeros(())
    with torch.no_grad():
        for chunk in rows.split(CHUNK, 1):
            features, target, weight = examples.at(chunk)
            losses = cross_entropy(network(features), target).cpu()
            weights = torch.ones_like(losses) if weight is None else weight.cpu()
            total, count = total + (losses * weights).sum(1), count + weights.sum(1)
    return total / count


@dataclass(frozen=True, eq=False)
class NetworkAverage:
    """The average logits of an ensemble."""

    network: Networks

    def logits(self, inputs: Features) -> Tensor:
        return one_logit(self.outputs(inputs).mean(0))

    def out_of_fold(self, inputs: Features, left_out: Tensor, fold: Tensor) -> Tensor:
        """Average, for every example, of the members that left out its fold, `left_out` (S,)."""
        unseen = (left_out[:, None] == fold).double()[..., None]
        return one_logit((self.outputs(inputs) * unseen).sum(0) / unseen.sum(0))

    def outputs(self, inputs: Features) -> Tensor:
        """(S, N, outputs) of every network."""
        network, parts = self.network, []
        device = next(network.parameters()).device
        with torch.no_grad():
            for start in range(0, len(inputs.numeric), CHUNK):
                chunk = [part[start : start + CHUNK].to(device) for part in inputs]
                parts.append(
                    network(
                        Features(*(part.expand(network.members, *part.shape) for part in chunk))
                    )
                )
        return torch.cat(parts, 1).cpu().double()
