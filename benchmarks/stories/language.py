"""Story 1: fine-tune a language model without forgetting; a policy gradient with a bound on its KL
divergence.

The texts are generated: two Markov chains over 48 words that share half of their transitions. The
model is trained on the general chain first. Forgetting: its loss there may rise by 0.05 while it
learns the new one. KL: it then writes texts of eight words, is paid for some of the words, and may
move by 0.5 nats a text from where it was.
"""

from __future__ import annotations

from functools import cache

import torch
from story import Draw, Loss, Practice, Problem, Run, fixed_weight, generator, seeded
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbound import constraints

WORDS, TOKENS, COUNT, RISE, KL = 48, 24, 32_000, 0.05, 0.5
PAID, LENGTH = 8, 8  # words that are paid, words of a text that the policy writes


class LanguageModel(nn.Module):
    """A causal transformer."""

    def __init__(self, words: int, layers: int, width: int, tokens: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(words, width),
            nn.Parameter(0.02 * torch.randn(tokens, width)),
        )
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, words)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(tokens), persistent=False
        )

    def forward(self, texts: Tensor) -> Tensor:
        """(B, T) words -> (B, T, words) logits of the next ones."""
        tokens = texts.shape[1]
        hidden = self.words(texts) + self.places[:tokens]
        return self.out(self.layers(hidden, mask=self.mask[:tokens, :tokens], is_causal=True))


def text_losses(model: nn.Module, texts: Tensor) -> Tensor:
    """(B,) the mean over the words of a text."""
    logits = model(texts[:, :-1]).float()
    return cross_entropy(logits.transpose(1, 2), texts[:, 1:], reduction="none").mean(1)


@cache
def texts() -> dict[str, Tensor]:
    """(n, TOKENS) each: general and new texts, and some of each for the verdict."""
    rng = generator(1)
    general = (2.5 * torch.randn(WORDS, WORDS, generator=rng)).softmax(1)
    new = torch.where(
        torch.arange(WORDS)[:, None] % 2 == 0,
        general,
        general[torch.randperm(WORDS, generator=rng)],
    )
    written = {}
    for name, chain, count in (
        ("general", general, COUNT),
        ("new", new, COUNT),
        ("old", general, 2048),
        ("test", new, 2048),
    ):
        word = torch.randint(WORDS, (count,), generator=rng)
        words = [word]
        for _ in range(TOKENS - 1):
            word = torch.multinomial(chain[word], 1, generator=rng)[:, 0]
            words.append(word)
        written[name] = torch.stack(words, 1)
    return written


@cache
def pretrained() -> tuple[LanguageModel, float]:
    """A model of the general texts, and its loss there."""
    rng, data = generator(2), texts()
    with seeded(2):
        model = LanguageModel(WORDS, 2, 64, TOKENS, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 1000)
    for _ in range(1000):
        optimizer.zero_grad()
        text_losses(
            model, data["general"][torch.randint(COUNT, (32,), generator=rng)]
        ).mean().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return model, float(text_losses(model, data["old"]).mean())


def copy_of_pretrained() -> LanguageModel:
    model = LanguageModel(WORDS, 2, 64, TOKENS, 4)
    model.load_state_dict(pretrained()[0].state_dict())
    return model


def forgetting(seed: int) -> Run:
    data, rng, model, limit = texts(), generator(seed), copy_of_pretrained(), pretrained()[1] + RISE
    # 0 for a general text, -1 for a new one, which is in no group
    general = (torch.arange(32) < 16).long() - 1

    def draw() -> Draw:
        i, j = torch.randint(COUNT, (2, 16), generator=rng)
        losses = text_losses(model, torch.cat([data["general"][i], data["new"][j]]))
        of_fair = {"losses": losses, "groups": general, "objective": general < 0}
        return Draw(losses[16:].mean(), losses[:16].mean()[None], of_fair)

    def evaluate() -> tuple[float, Tensor]:
        return (
            float(text_losses(model, data["test"]).mean()),
            (text_losses(model, data["old"]).mean() - limit) / RISE,
        )

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Run(
        model,
        optimizer,
        draw,
        constraints.bounded_group_loss(["general text"], bound=limit),
        evaluate,
    )


# A policy gradient --------------------------------------------------------------------------------


def write(model: nn.Module, count: int, rng: torch.Generator) -> Tensor:
    """(count, LENGTH + 1) texts from the model, after a first word that is drawn."""
    with torch.no_grad():
        words = torch.randint(WORDS, (count, 1), generator=rng)
        for _ in range(LENGTH):
            words = torch.cat(
                [words, torch.multinomial(model(words)[:, -1].softmax(1), 1, generator=rng)], 1
            )
    return words


def divergences(model: nn.Module, written: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) log-probability of each text, and its KL divergence from the pretrained model, summed
    over its words."""
    ours = model(written[:, :-1]).log_softmax(-1)
    with torch.no_grad():
        theirs = pretrained()[0](written[:, :-1]).log_softmax(-1)
    log_probability = ours.gather(2, written[:, 1:, None])[..., 0].sum(1)
    return log_probability, (ours.exp() * (ours - theirs)).sum((1, 2))


def payment(written: Tensor) -> Tensor:
    return (written[:, 1:] < PAID).float().mean(1)


def policy(seed: int) -> Run:
    rng, model = generator(seed), copy_of_pretrained()

    def draw() -> Draw:
        written = write(model, 64, rng)
        paid = payment(written)
        log_probability, kl = divergences(model, written)
        # the value is the payment, the gradient that of REINFORCE with the mean as baseline
        losses = -(paid + (paid - paid.mean()) * (log_probability - log_probability.detach()))
        return Draw(
            losses.mean(), kl.mean()[None], {"losses": losses, "values": {"KL": kl.mean() - KL}}
        )

    def evaluate() -> tuple[float, Tensor]:
        written = write(model, 4096, generator(99))
        return float(-payment(written).mean()), divergences(model, written)[1].mean() / KL - 1

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Run(model, optimizer, draw, constraints.given("KL"), evaluate)


def controller(run: Run, start: float) -> Loss:
    """The adaptive coefficient of Ziegler et al. (2019), as TRL had it; its horizon is one
    mini-batch."""
    beta = start

    def loss(draw: Draw) -> Tensor:
        nonlocal beta
        total = draw.f + beta * draw.terms.sum()
        error = min(max(float(draw.terms.detach()) / KL - 1, -0.2), 0.2)
        beta *= 1 + error
        return total

    return loss


DECADES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
PROBLEMS = (
    Problem(
        "Forgetting",
        "loss on new text",
        "loss on general text at most its start + 0.05",
        800,
        forgetting,
        (Practice("replay with a fixed weight", "", 1.0, DECADES, fixed_weight),),
    ),
    Problem(
        "KL bound",
        "minus the share of paid words",
        "KL divergence at most 0.5 nats a text",
        500,
        policy,
        (
            Practice("fixed beta", "beta", 0.1, (0.003, *DECADES[:-1]), fixed_weight),
            Practice(
                "TRL's controller",
                "first beta",
                0.2,
                (0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 1.0),
                controller,
            ),
        ),
    ),
)
