"""Transformers
===============

`ConstrainedTrainer` with a column of groups; everything else is Trainer.

Comments of eight words are classified by tone. One writer in four uses another dialect, in which
some words have the opposite tone, so a classifier of all comments errs more often there. The mean
losses of the dialects must differ by at most 0.1. The learning rate is Trainer's own, but constant:
Trainer's linear decay to 0 would stop the model before the multiplier has risen.
"""

import logging
import tempfile

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from fairbound import SGD, AdaptivePI, Constrained, constraints
from fairbound.integrations.transformers import ConstrainedTrainer

logging.getLogger("transformers").setLevel(logging.ERROR)
BOUND, SIZE, WORDS = 0.1, 4000, 20


class Comments(Dataset):
    """The token of a word is its number; words 0 to 9 are friendly, in dialect B words 0 to 3 are
    not."""

    def __init__(self, seed):
        rng = torch.Generator().manual_seed(seed)
        self.group = (torch.rand(SIZE, generator=rng) < 0.25).long()  # 0 is A, 1 is B
        self.tokens = torch.randint(WORDS, (SIZE, 8), generator=rng)
        friendly = (self.tokens < 10) & ((self.group[:, None] == 0) | (self.tokens > 3))
        self.labels = (friendly.sum(1) + torch.randn(SIZE, generator=rng) > 3.5).long()

    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.labels[i], "group": self.group[i]}


def gap(model, data):
    with torch.no_grad():
        losses = cross_entropy(model.eval()(data.tokens).logits, data.labels, reduction="none")
    return float(losses[data.group == 1].mean() - losses[data.group == 0].mean())


size = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
config = BertConfig(vocab_size=WORDS, num_labels=2, max_position_embeddings=8, **size)
train, test, folder = Comments(0), Comments(1), tempfile.mkdtemp()
args = TrainingArguments(
    folder,
    num_train_epochs=12,
    per_device_train_batch_size=16,
    lr_scheduler_type="constant",
    seed=0,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
    save_strategy="no",
    logging_strategy="no",
)
print(f"bound {BOUND}")
for method in (SGD(), AdaptivePI()):  # plain training, and the default
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)  # its weights are random: nothing is downloaded
    fair = Constrained(model, constraints.pairwise_loss_parity(["A", "B"], bound=BOUND), method)
    ConstrainedTrainer(
        model=model, args=args, train_dataset=train, fair=fair, groups="group"
    ).train()
    here, new = gap(model, train), gap(model, test)
    print(
        f"{type(method).__name__}: gap on training examples {here:+.4f}, on held-out examples"
        f" {new:+.4f}"
    )
