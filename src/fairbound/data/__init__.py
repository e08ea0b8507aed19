"""Load data by name or from your own tables, encode them as tensors, and split them."""

from fairbound.columns._read import read_columns
from fairbound.data._balanced_batch_sampler import BalancedBatchSampler
from fairbound.data._dataset import Dataset, Split
from fairbound.data._encoders import Encoder
from fairbound.data._readers import read_table, table_of
from fairbound.data._samplers import BatchSpec, Sampler
from fairbound.data._sources import best, load
from fairbound.data._splits import paper_split, random_split, scaled
from fairbound.data._table import Table

__all__ = [
    "BalancedBatchSampler",
    "BatchSpec",
    "Dataset",
    "Encoder",
    "Sampler",
    "Split",
    "Table",
    "best",
    "load",
    "paper_split",
    "random_split",
    "read_columns",
    "read_table",
    "scaled",
    "table_of",
]
