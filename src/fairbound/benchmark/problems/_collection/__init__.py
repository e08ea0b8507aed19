"""The collection of problems: a TOML file for a table, a Python file with `PROBLEMS` for anything
else."""
