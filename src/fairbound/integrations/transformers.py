"""Constrained training with the Trainer of Transformers: `ConstrainedTrainer`, and a column of
groups in the dataset.

fair = Constrained(model, constraints.pairwise_loss_parity(["A", "B"], bound=0.02))
trainer = ConstrainedTrainer(model=model, args=args, train_dataset=data, fair=fair, groups="group")
trainer.train()
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbound._utils.optional import need

need("transformers", "transformers", "fairbound.integrations.transformers")
need("accelerate", "transformers", "fairbound.integrations.transformers")

from transformers import Trainer, TrainerCallback  # noqa: E402

from fairbound.integrations.torch._constrained import Constrained  # noqa: E402

STATE_NAME = "constrained.pt"  # in a checkpoint's folder


class ConstrainedTrainer(Trainer):
    """Trainer with the loss of `Constrained`; its checkpoints have the method's state, its logs the
    multipliers.

    Args:
        args, kwargs: those of Trainer. `compute_loss_func` is refused: override `example_losses`.
        fair: the `Constrained` of the same model.
        groups: the column of groups in the batches, or several that constraints name with by=.
        objective: the column that is True for the examples of the objective; all of them if not
            given.
    """

    def __init__(
        self,
        *args: Any,
        fair: Constrained,
        groups: str | Sequence[str] = "group",
        objective: str | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("compute_loss_func") is not None:
            raise ValueError(
                "ConstrainedTrainer needs per-example losses, and compute_loss_func gives their"
                " mean; override example_losses(outputs, labels) in a subclass"
            )
        self.group_columns = [groups] if isinstance(groups, str) else list(groups)
        self.objective_column = objective
        self.columns = self.group_columns + ([] if objective is None else [objective])
        super().__init__(*args, **kwargs)
        self.fair = fair
        # this loss is a mean, to be divided by the number of accumulated ones
        self.model_accepts_loss_kwargs = False
        self.add_callback(_Prepare(self))

    def example_losses(self, outputs: Any, labels: Tensor) -> Tensor:
        """(B,) the loss of every example: cross-entropy of (B, classes) logits. Override it for
        another loss."""
        if outputs.logits.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
            raise ValueError(
                "cross-entropy takes logits (B, classes) and labels (B,) of whole numbers, got"
                f" {tuple(outputs.logits.shape)} and {labels.dtype} {tuple(labels.shape)}; override"
                " example_losses(outputs, labels) in a subclass of ConstrainedTrainer, one loss"
                " for every example"
            )
        smoothing = self.args.label_smoothing_factor
        return cross_entropy(
            outputs.logits.float(), labels, reduction="none", label_smoothing=smoothing
        )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The mean loss; in training its gradient is the method's direction. Evaluation needs no
        groups."""
        inputs, training = dict(inputs), torch.is_grad_enabled()
        columns = {name: inputs.pop(name, None) for name in self.columns}
        labels = inputs.pop(self.label_names[0] if self.label_names else "labels", None)
        missing = [name for name, column in columns.items() if column is None and training]
        if missing or labels is None:
            raise ValueError(
                f"the batch has no column {missing[0] if missing else 'labels'!r}, only"
                f" {sorted(inputs)}; add it to the dataset, and let the collator keep it"
            )
        outputs = model(**inputs)
        losses = self.example_losses(outputs, labels)
        if not training:
            return (losses.mean(), outputs) if return_outputs else losses.mean()
        objective = None if self.objective_column is None else columns.pop(self.objective_column)
        loss = self.fair.loss(
            losses, columns, labels=labels, outputs=outputs.logits.float(), objective=objective
        )
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log constraints, multipliers and forces beside the training loss."""
        super().log(logs | self.fair.log_values() if "loss" in logs else logs, *args, **kwargs)

    # What Trainer keeps private: the columns that it does not remove, and the state beside that of
    # the optimizer

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns += [
            name for name in self.columns if name not in self._signature_columns
        ]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            torch.save(self.fair.state_dict(), Path(output_dir) / STATE_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / STATE_NAME
        if path.exists():
            self.fair.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        else:
            warnings.warn(
                f"the checkpoint {checkpoint} has no {STATE_NAME}: the method starts anew, with its"
                " first multipliers",
                UserWarning,
                stacklevel=2,
            )


class _Prepare(TrainerCallback):
    """Shows the model to `Constrained` once Trainer has moved and wrapped it."""

    def __init__(self, trainer: ConstrainedTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.fair.prepare(self.trainer.model_wrapped, self.trainer.accelerator.scaler)
