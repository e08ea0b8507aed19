"""Fine-tuning without forgetting
================================

A language model learns new text; its loss on general text must rise by at most 0.05. No weight is
tuned.

Two Markov chains over 32 words that share half of their rows write the texts. A mini-batch has 32
general and 32 new texts: the new ones are the objective, the general ones the only group. The guide
on trainers shows the same with Transformers and LoRA.
"""

import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.nn.functional import cross_entropy

from fairbound import SGD, Constrained, constraints

WORDS, RISE, STEPS, rng = 32, 0.05, 800, torch.Generator().manual_seed(0)
general = (2 * torch.randn(WORDS, WORDS, generator=rng)).softmax(1)  # (word, next word)
new = torch.where(torch.arange(WORDS)[:, None] % 2 == 0, general, general.roll(1, 0))


def written(chain, count):
    words = [torch.randint(WORDS, (count,), generator=rng)]
    for _ in range(15):
        words.append(torch.multinomial(chain[words[-1]], 1, generator=rng)[:, 0])
    return torch.stack(words, 1)  # (count, 16)


def text_losses(model, texts):  # (B,) the mean over the words of a text
    words, memory, out = model
    logits = out(memory(words(texts[:, :-1]))[0])
    return cross_entropy(logits.transpose(1, 2), texts[:, 1:], reduction="none").mean(1)


def train(model, backward):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward(text_losses(model, torch.cat([written(general, 32), written(new, 32)])))
        optimizer.step()
        schedule.step()


torch.manual_seed(0)
model = nn.ModuleList(
    [nn.Embedding(WORDS, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, WORDS)]
)
train(model, lambda losses: losses[:32].mean().backward())  # general text alone
start, old, test = (
    {k: v.clone() for k, v in model.state_dict().items()},
    written(general, 4000),
    written(new, 4000),
)
bound = text_losses(model, old).mean().item() + RISE
print(f"bound {bound:.3f}")
group = torch.arange(64) // 32 * -1  # 0: general text; -1: new text, which is in no group
# None: the default method
for name, method in (("without the bound", SGD()), ("with the bound", None)):
    model.load_state_dict(start)
    fair = Constrained(model, constraints.bounded_group_loss(["general text"], bound=bound), method)
    train(model, lambda losses, fair=fair: fair.backward(losses, group, objective=group < 0))
    here, there = (text_losses(model, texts).mean().item() for texts in (old, test))
    print(f"{name}: general text {here:.3f}, new text {there:.3f}")
fair.plot()
plt.show()
