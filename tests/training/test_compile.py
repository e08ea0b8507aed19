"""Batched products with a narrow result are made the other way round: the same numbers, the same layout."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fairbound.training.compile import VECTOR, turn_narrow_products


@pytest.mark.parametrize(
    ("rows", "columns", "turned"),
    [(64, 9, 1), (VECTOR, VECTOR - 1, 1), (64, VECTOR, 0), (64, 1, 0), (VECTOR - 1, 9, 0), (9, 64, 0)],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_narrow_results_are_turned_and_others_left(rows: int, columns: int, turned: int, transposed: bool) -> None:
    left = torch.randn(3, 24, rows).transpose(1, 2) if transposed else torch.randn(3, rows, 24)
    right = torch.randn(3, 24, columns)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b).view(3, -1) + 1  # a view needs the layout that a product has

    traced = make_fx(product, tracing_mode="fake", _allow_non_fake_inputs=True)(left, right)
    assert turn_narrow_products(traced) == turned
    assert traced(left, right).shape == (3, rows * columns)
    assert torch.allclose(traced(left, right), product(left, right), rtol=1e-5, atol=1e-5)


def test_every_narrow_product_is_turned() -> None:
    a, b = torch.randn(2, 32, 8), torch.randn(2, 8, 3)
    traced = make_fx(lambda a, b: torch.bmm(a, b) - torch.bmm(2 * a, b), tracing_mode="fake")(a, b)
    assert turn_narrow_products(traced) == 2
    assert torch.allclose(traced(a, b), -torch.bmm(a, b), rtol=1e-5, atol=1e-5)
