"""A character language model: min loss on one kind of text s.t. loss on another <= BOUND.

Both are Markov chains over the same characters with different transitions, so a model must tell
from the context which one it reads. No model can fall below their entropies on new text. An example
is a pair, one sequence of each kind.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fairbound.benchmark.problems import BenchmarkProblem, Instance
from fairbound.benchmark.problems.expectation import expectation
from fairbound.training._functional import initial_points, make_functional

_EXAMPLES, CHARACTERS, CONTEXT, _WIDTH, _HIDDEN, _BOUND, _SEED = 800, 12, 12, 24, 64, 1.6, 2026
_SCALE = 0.1  # of a violation: what _BOUND leaves above the entropy of the second chain


def transitions() -> Tensor:
    """(2, characters, characters) probabilities of the next character, of both chains."""
    generator = torch.Generator().manual_seed(_SEED)
    logits = 2.0 * torch.randn(2, CHARACTERS, CHARACTERS, generator=generator, dtype=torch.float64)
    return logits.softmax(-1)


def texts() -> Tensor:
    """(N, 2, context + 1) characters: a sequence of each chain, started at its stationary
    distribution."""
    generator = torch.Generator().manual_seed(_SEED + 1)
    found = []
    for chain in transitions():
        rows = [
            torch.multinomial(
                torch.linalg.matrix_power(chain, 1000)[0], _EXAMPLES, True, generator=generator
            )
        ]
        for _ in range(CONTEXT):
            rows.append(torch.multinomial(chain[rows[-1]], 1, generator=generator)[:, 0])
        found.append(torch.stack(rows, 1))
    return torch.stack(found, 1)


class LanguageModel(nn.Module):
    """Causal attention with one head, and a hidden layer, on characters and places."""

    def __init__(self) -> None:
        super().__init__()
        # of one-hot vectors: under vmap faster than an embedding
        self.characters = nn.Linear(CHARACTERS, _WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(CONTEXT, _WIDTH))
        self.attention, self.mixed = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.hidden, self.head = nn.Linear(_WIDTH, _HIDDEN), nn.Linear(_HIDDEN, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        """(B, context, characters), one-hot -> logits of the next character, of the same shape."""
        h = self.characters(text) + self.places
        query, key, value = self.attention(h).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) / _WIDTH**0.5
        later = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        h = h + self.mixed(scores.masked_fill(later, -torch.inf).softmax(-1) @ value)
        logits: Tensor = self.head(torch.relu(self.hidden(h)))
        return logits


_FORWARD = make_functional(LanguageModel())[0]


def _values(x: Tensor, pairs: Tensor) -> Tensor:
    """pairs (B, 2, context + 1) -> (B, 2): the mean loss of a character, of each kind of text."""
    text = (pairs.flatten(0, 1)[..., None] == torch.arange(CHARACTERS)).to(x.dtype)
    logarithms = _FORWARD(x, text[:, :-1]).log_softmax(-1)
    losses: Tensor = -(text[:, 1:] * logarithms).sum(-1).mean(-1)
    both: Tensor = losses.unflatten(0, (-1, 2))
    return both - losses.new_tensor([0.0, _BOUND])


def build() -> Instance:
    made = expectation(_values, texts(), torch.zeros(_FORWARD.n), inequalities=1, batch=8)
    return replace(made, starts=lambda seeds: initial_points(LanguageModel, seeds))


PROBLEMS = (
    BenchmarkProblem(
        name="characters",
        title=(
            "A small language model: loss on one kind of text, with the loss on another at most"
            f" {_BOUND:g}"
        ),
        family="control, physics, others",
        build=build,
        scale=_SCALE,
        noise="which sequences a mini-batch draws",
        kinds="<= nonlinear",
        origin=(
            "a bound on the loss of a second domain, as in constrained alignment of language models"
        ),
    ),
)
