"""The results as text of 80 columns: a table of every contestant's means, and the claims."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from cache import DEFAULT_FIT
from claims import SHORT, Claim, Results, error

WIDTH = 80


def by_table(results: Results) -> str:
    """Means over splits; gaps signed."""
    head = (
        f"{'':3} {'contestant':23} notion accur. {'loss':>5} lossgap {'DP':>6} {'EOpp':>6}"
        f" {'CPU s':>6}"
    )
    lines = [head, "-" * len(head)]
    frame = results.frame[results.frame["contestant"] != DEFAULT_FIT]
    for table in dict.fromkeys(frame["table"]):
        for (name, notion), rows in frame[frame["table"] == table].groupby(
            ["contestant", "notion"], sort=False
        ):
            m = rows.mean(numeric_only=True)
            short = {"demographic_parity": "DP", "equal_opportunity": "EOpp", "none": ""}.get(
                notion, notion
            )
            columns = [f"{table:3} {SHORT.get(name, name):23} {short:6} {m['accuracy']:6.4f}"]
            columns.append(
                f"{m['log_loss']:5.3f}" if rows["log_loss"].notna().all() else f"{'-':>5}"
            )
            columns.append(f"{m['loss']:+7.3f}" if rows["loss"].notna().all() else f"{'-':>7}")
            columns += [
                f"{m['demographic_parity']:+6.3f} {m['equal_opportunity']:+6.3f} {m['cpu_s']:6.1f}"
            ]
            lines.append(" ".join(columns))
    return "\n".join(lines)


def over_tables(results: Results) -> str:
    """Mean over the judged tables of accuracy and of |gap|, ± standard errors over tables."""
    lines = [f"{'':23} {'notion':6} {'accuracy less LightGBM':>24} {'mean |gap|':>16}"]
    for notion, short in (("demographic_parity", "DP"), ("equal_opportunity", "EOpp")):
        for name in SHORT:
            there = [t for t in results.has(name, notion) if t in results.has("lightgbm", "none")]
            if there:
                cost = [
                    100
                    * (
                        results.of(name, notion, t)["accuracy"]
                        - results.of("lightgbm", "none", t)["accuracy"]
                    ).mean()
                    for t in there
                ]
                gaps = [results.of(name, notion, t)[notion].abs().mean() for t in there]
                lines.append(
                    f"{SHORT[name]:23} {short:6} {sum(cost) / len(cost):+16.2f} ±"
                    f" {error(cost):4.2f} {sum(gaps) / len(gaps):10.3f} ± {error(gaps):.3f}"
                )
    return "\n".join(lines)


def claim_lines(claims: Iterable[Claim]) -> str:
    lines = []
    for claim in claims:
        word = {True: "met", False: "MISSED", None: ""}[claim.met]
        first, *rest = textwrap.wrap(claim.subject, 46, subsequent_indent="  ")
        lines.append(f"{word:6} {first:46} {claim.found:>14} {claim.target}".rstrip())
        lines += [f"{'':6} {line}" for line in rest]
    return "\n".join(lines)
