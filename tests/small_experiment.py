"""A small experiment on the synthetic census, as the text of a TOML file: what tests of the benchmark run."""

from __future__ import annotations


def small_experiment(rows: str, *, seeds: int = 1, records: int = 1) -> str:
    """With these rows, inline tables of TOML; what is common to them may be left out."""
    return f"""
title = "Small"
reference = "here"
state = "OK"
group = "RAC1P=1"
groups = ["white", "non-white"]
notion = "pairwise"
bound = 0.005
hidden = [4]
batch = 8
seeds = {seeds}
records = {records}
split = {{ seed = 1 }}
common = {{ reference = "here" }}
rows = [{rows}]
"""
