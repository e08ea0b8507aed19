"""A policy gradient with a bound on the KL divergence
====================================================

A policy writes texts and is paid for some words. It may diverge from a frozen reference by at most
0.5 nats a text.

The bound needs no coefficient. For comparison, TRL's controller of a coefficient, from two first
values, at every mini-batch: beta <- beta * (1 + clip(KL / target - 1, -0.2, 0.2)). From 0 it cannot
move.
"""

import copy

import torch
from matplotlib import pyplot as plt
from torch import nn

from fairbound import Constrained, constraints

WORDS, PAID, KL, STEPS = 32, 8, 0.5, 600


def log_probabilities(model, texts):  # (B, length) -> (B, length, words) of each next word
    words, memory, out = model
    return out(memory(words(texts))[0]).log_softmax(-1)


@torch.no_grad()
def written(model, count):
    texts = torch.randint(WORDS, (count, 1))
    for _ in range(12):
        texts = torch.cat(
            [texts, torch.multinomial(log_probabilities(model, texts)[:, -1].exp(), 1)], 1
        )
    return texts


# (B,) the share of paid words, the log-probability, the KL divergence
def pay_and_divergence(model, count):
    texts = written(model, count)
    ours, theirs = (log_probabilities(network, texts[:, :-1]) for network in (model, reference))
    log_probability = ours.gather(2, texts[:, 1:, None]).sum((1, 2))
    return (
        (texts[:, 1:] < PAID).float().mean(1),
        log_probability,
        (ours.exp() * (ours - theirs)).sum((1, 2)),
    )


torch.manual_seed(0)
reference = nn.ModuleList(
    [nn.Embedding(WORDS, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, WORDS)]
)
reference.requires_grad_(False)
for start in (0.0, 0.2, None):  # the controller's first beta; None: constrained
    model, beta = copy.deepcopy(reference).requires_grad_(), start
    fair, optimizer = (
        Constrained(model, constraints.given("KL")),
        torch.optim.Adam(model.parameters(), lr=3e-3),
    )
    for _ in range(STEPS):
        pay, log_probability, kl = pay_and_divergence(model, 64)
        # REINFORCE; it is worth -pay
        losses = -pay - (pay - pay.mean()) * (log_probability - log_probability.detach())
        optimizer.zero_grad()
        if start is None:
            fair.backward(losses, values={"KL": kl.mean() - KL})
        else:
            (losses.mean() + beta * kl.mean()).backward()
            beta *= 1 + min(max(kl.mean().item() / KL - 1, -0.2), 0.2)
        optimizer.step()
    pay, _, kl = pay_and_divergence(model, 4000)
    print(
        f"bound {KL}:" if start is None else f"beta from {start}:",
        f"pay {pay.mean():.3f}, KL {kl.mean():.3f}",
    )
fair.plot()
plt.show()
