"""The Trainer of Transformers: it equals the plain loop bit for bit, and so does a resumed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

pytest.importorskip("transformers", reason="Transformers is not installed: make test-trainers")

from trainer_loops import METHOD, PARITY, End, end, scalars
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from fairbound import Constrained, DescentAscent, Penalty, constraints
from fairbound.integrations.transformers import ConstrainedTrainer

SIZE, BATCH, LR = 96, 8, 0.05


class Sentences(Dataset[dict[str, Tensor]]):
    """Sequences of tokens; the label is about the first one, in group 1 about the last one."""

    def __init__(self, columns: tuple[str, ...] = ("input_ids", "labels", "group")) -> None:
        rng = torch.Generator().manual_seed(0)
        tokens, group = (
            torch.randint(20, (SIZE, 6), generator=rng),
            torch.randint(2, (SIZE,), generator=rng),
        )
        labels = (torch.where(group == 0, tokens[:, 0], tokens[:, -1]) > 9).long()
        self.columns = {"input_ids": tokens, "labels": labels, "group": group}
        self.columns = {name: self.columns[name] for name in columns}

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {name: column[i] for name, column in self.columns.items()}


def tiny(seed: int = 0, classes: int = 2) -> nn.Module:
    """Built from its configuration: nothing is downloaded. Without dropout, so that a loop is
    repeatable."""
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=classes,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BertForSequenceClassification(config)  # type: ignore[no-any-return]


class InOrder(ConstrainedTrainer):
    """Without shuffling."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.accelerator.prepare(
            DataLoader(self.train_dataset, BATCH, collate_fn=self.data_collator)
        )  # type: ignore[no-any-return]


def sgd(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 24)


def trainer_of(
    folder: Path, method: Any = METHOD, kind: type[ConstrainedTrainer] = InOrder, **given: Any
) -> Any:
    settings = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": BATCH,
        "max_grad_norm": 1.0,
        "save_strategy": "no",
        "report_to": "none",
    }
    own = {
        name: given.pop(name)
        for name in list(given)
        if name in TrainingArguments.__dataclass_fields__
    }
    args = TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **(settings | own))
    model = given.pop("model", None) or tiny()
    fair = given.pop("fair", None) or Constrained(model, PARITY, method)
    given = {"train_dataset": Sentences(), "optimizers": sgd(model)} | given
    return kind(model=model, args=args, fair=fair, **given)


def plain_loop(accumulate: int = 1, method: Any = METHOD, epochs: int = 2) -> End:
    model = tiny()
    fair, (optimizer, schedule) = Constrained(model, PARITY, method), sgd(model)
    for _ in range(epochs):
        for i, batch in enumerate(DataLoader(Sentences(), BATCH)):
            losses = cross_entropy(
                model(batch["input_ids"]).logits, batch["labels"], reduction="none"
            )
            if accumulate == 1:
                fair.backward(losses, batch["group"])
            else:
                (fair.loss(losses, batch["group"]) / accumulate).backward()
            if (i + 1) % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return end(model, fair)


def ended(trainer: ConstrainedTrainer) -> End:
    return end(trainer.model, trainer.fair)


@pytest.mark.parametrize("method", [METHOD, Penalty()], ids=["DescentAscent", "Penalty"])
def test_it_equals_the_plain_loop(tmp_path: Path, method: Any) -> None:
    """Evaluation comes in between."""
    trainer = trainer_of(
        tmp_path, method, eval_dataset=Sentences(), eval_strategy="steps", eval_steps=5
    )
    trainer.train()
    assert ended(trainer).equals(plain_loop(method=method))
    assert trainer.fair.steps == 24
    assert isinstance(method, DescentAscent) == any(
        value > 0.01 for value in trainer.fair.multipliers.values()
    )


def test_accumulation_equals_the_plain_loop(tmp_path: Path) -> None:
    """Though the model takes num_items_in_batch, for which Trainer would not divide the loss."""
    trainer = trainer_of(tmp_path, gradient_accumulation_steps=2)
    trainer.train()
    assert ended(trainer).equals(plain_loop(accumulate=2))
    assert trainer.fair.steps == 12


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 5}
    whole = trainer_of(tmp_path, gradient_accumulation_steps=2, **saving)
    whole.train()
    resumed = trainer_of(
        tmp_path / "again", gradient_accumulation_steps=2, model=tiny(seed=1), **saving
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert ended(resumed).equals(ended(whole))
    assert ended(whole).equals(plain_loop(accumulate=2))


def test_a_checkpoint_of_unconstrained_training_is_warned_of(tmp_path: Path) -> None:
    trainer_of(tmp_path, save_strategy="epoch").train()
    (tmp_path / "checkpoint-12" / "constrained.pt").unlink()
    trainer = trainer_of(tmp_path)
    with pytest.warns(UserWarning, match=r"checkpoint-12 .*constrained.pt.*starts anew"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert trainer.fair.steps == 12


def test_evaluation_needs_no_groups_and_moves_nothing(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    found = trainer.evaluate(Sentences(("input_ids", "labels")))
    model, data = trainer.model.eval(), Sentences().columns
    with torch.no_grad():
        mean = cross_entropy(model(data["input_ids"]).logits, data["labels"])
    assert found["eval_loss"] == pytest.approx(mean.item(), abs=1e-5)
    assert trainer.fair.state_dict()["state"] is None
    assert trainer.predict(Sentences()).predictions.shape == (SIZE, 2)


def test_multipliers_are_in_the_logs(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, logging_steps=6, save_strategy="epoch")
    trainer.train()
    history = json.loads((tmp_path / "checkpoint-24" / "trainer_state.json").read_text())[
        "log_history"
    ]
    logged = [record["multiplier/A - mean"] for record in history if "loss" in record]
    assert len(logged) == 4
    assert logged[-1] == trainer.fair.multipliers["A - mean"]


def test_tensorboard_shows_what_the_default_method_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: make test-trainers")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
    trainer = trainer_of(tmp_path, method=None, logging_steps=6, report_to="tensorboard")
    trainer.train()
    curves, logged = scalars(tmp_path / "runs"), trainer.fair.log_values()
    assert {name.partition("/")[0] for name in logged} == {"constraint", "multiplier", "force"}
    for name, value in logged.items():
        assert len(curves[f"train/{name}"]) == 4
        assert curves[f"train/{name}"][-1] == pytest.approx(value, rel=1e-6)


class NotFinite(InOrder):
    """The third mini-batch of training."""

    def example_losses(self, outputs: Any, labels: Tensor) -> Tensor:
        return super().example_losses(outputs, labels) * (
            torch.nan if self.state.global_step == 2 else 1.0
        )


def test_a_loss_that_is_not_finite_skips_its_step(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, kind=NotFinite, max_steps=3)
    with pytest.warns(RuntimeWarning, match="step 3 was skipped"):
        trainer.train()
    before = trainer_of(tmp_path, max_steps=2)
    before.train()
    assert ended(trainer).equals(ended(before))
    assert trainer.fair.skipped == 1


def test_rates_and_several_columns(tmp_path: Path) -> None:
    """A rate reads the logits; two columns of groups, each constraint naming its own."""
    both = {
        "first": constraints.demographic_parity(2, bound=0.01, by="group", outcome=1),
        "second": constraints.loss_parity(2, bound=0.01, by="other"),
    }
    data = Sentences()
    data.columns["other"] = torch.arange(SIZE) % 2
    model = tiny()
    trainer = trainer_of(
        tmp_path,
        model=model,
        fair=Constrained(model, both, METHOD),
        train_dataset=data,
        groups=["group", "other"],
    )
    trainer.train()
    assert trainer.fair.steps == 24
    assert any(
        value > 0 for name, value in trainer.fair.multipliers.items() if name.startswith("first")
    )


# Wrong use ----------------------------------------------------------------------------------------


def test_a_dataset_without_groups_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'group'"):
        trainer_of(tmp_path, train_dataset=Sentences(("input_ids", "labels"))).train()


def test_a_dataset_without_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'labels'"):
        trainer_of(tmp_path, train_dataset=Sentences(("input_ids", "group"))).train()


def test_another_loss_is_a_method_to_override(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"compute_loss_func.*override example_losses"):
        trainer_of(tmp_path, compute_loss_func=lambda *_, **__: None)
    data = Sentences()
    data.columns["labels"] = data.columns["labels"].float()
    with pytest.raises(ValueError, match=r"labels \(B,\).*override example_losses"):
        trainer_of(tmp_path, train_dataset=data, model=tiny(classes=1)).train()


def test_the_fair_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not have.*'bert"):
        trainer_of(tmp_path, fair=Constrained(tiny(), PARITY, METHOD)).train()
