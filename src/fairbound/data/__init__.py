"""Datasets as tensors, and their splits."""

from fairbound.data.dataset import Dataset, Split

__all__ = ["Dataset", "Split"]
