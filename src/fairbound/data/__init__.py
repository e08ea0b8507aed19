"""Load data by name or from your own tables, encode them as tensors, and split them."""

from fairbound.data.attributes import parse_attribute, parse_attributes
from fairbound.data.dataset import Dataset, Split
from fairbound.data.encoders import Encoder
from fairbound.data.readers import read_columns, read_table, table_of
from fairbound.data.sources import best, load
from fairbound.data.splits import paper_split, random_split, scaled
from fairbound.data.table import Table

__all__ = [
    "Dataset",
    "Encoder",
    "Split",
    "Table",
    "best",
    "load",
    "paper_split",
    "parse_attribute",
    "parse_attributes",
    "random_split",
    "read_columns",
    "read_table",
    "scaled",
    "table_of",
]
