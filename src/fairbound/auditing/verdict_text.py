"""A verdict in words: a table within 80 columns, and a sentence to act on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fairbound.auditing.decisions import Decision, Gap

WIDTH = 80
MOST_SHOWN = 24  # gaps in the table; of more, those nearest to their bounds
_HEADINGS = ("limit", "value", "all at once", "alone", "bound", "", "rows")


def table(gaps: Sequence[Gap], level: float) -> list[str]:
    """A line for every gap, or for those that matter most where there are many."""
    shown = gaps
    if len(gaps) > MOST_SHOWN:
        kept = sorted(range(len(gaps)), key=lambda i: _weight(gaps[i]), reverse=True)[:MOST_SHOWN]
        shown = [gaps[i] for i in sorted(kept)]
    columns = [_HEADINGS, *(_entries(gap) for gap in shown)]
    widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - len(widths) + 1)
    lines = [_line(entries, widths) for entries in columns]
    if len(shown) < len(gaps):
        lines.append(f"and {len(gaps) - len(shown)} more, farther from their bounds")
    lines.append(f"{100 * level:g} % limits, all at once and each alone; rows: of the scarcest cell, to decide")
    return lines


def sentence(gap: Gap, decision: Decision, level: float) -> str:
    """What to make of a verdict that hangs on this gap."""
    sure = f"at {100 * level:g} % confidence"
    if decision == "holds":
        return (
            f"Holds: {sure} every limit is kept for the people these rows were drawn from; nearest to its bound is "
            f"{gap.name!r}, {_end(gap)} where {_asked(gap)}."
        )
    if decision == "violated":
        low, high = _turned(gap)
        end = f"at most {_number(high)}" if gap.minimum else f"at least {_number(low)}"
        return (
            f"Violated: {sure}, all limits looked at together, {gap.name!r} is {end} for the people these rows were "
            f"drawn from, and {_asked(gap)}."
        )
    if gap.needed is None:
        return f"Undecided: {gap.reason} (for {gap.name!r}); collect more, or merge groups."
    place = " and ".join(map(_number, _turned(gap)))
    return f"Undecided: {gap.name!r} is between {place}, and {_asked(gap)}. {_remedy(gap)}"


def nearness(gap: Gap) -> float:
    """How far the estimate lies above its bound, in units of its noise; those that cannot be told come last."""
    if gap.estimate is None or gap.at_most is None:
        return -math.inf
    return (gap.estimate - gap.bound) / max(gap.at_most - gap.estimate, 1e-300)


def _weight(gap: Gap) -> tuple[int, float]:
    return ("holds", "undecided", "violated").index(gap.decision), nearness(gap)


def needed(gap: Gap) -> float:
    """Rows that would decide; infinite where that is not known."""
    return math.inf if gap.needed is None else gap.needed


def _number(value: float | None) -> str:
    """Three decimals, or fewer digits where they do not fit.

    >>> [_number(value) for value in (0.25, 0.00031, -1e-17, 1234.5)]
    ['0.250', '0.00031', '0.000', '1234']
    """
    if value is None:
        return ""
    size = abs(value)
    if size < 1e-12:
        return "0.000"
    return f"{value:.4g}" if size >= 100 else f"{value:.3f}" if size >= 0.0095 else f"{value:.2g}"


def _turned(gap: Gap) -> tuple[float | None, float | None]:
    """The joint interval as a reader thinks of it: a minimum is stored with its sign turned."""
    if not gap.minimum or gap.low is None or gap.high is None:
        return gap.low, gap.high
    return -gap.high, -gap.low


def _sign(gap: Gap) -> float:
    return -1.0 if gap.minimum else 1.0


def _bound(gap: Gap) -> str:
    return _number(_sign(gap) * gap.bound)


def _asked(gap: Gap) -> str:
    return f"at least {_bound(gap)} is asked for" if gap.minimum else f"{_bound(gap)} is allowed"


def _end(gap: Gap) -> str:
    assert gap.at_most is not None
    return f"at {'least' if gap.minimum else 'most'} {_number(_sign(gap) * gap.at_most)}"


def _remedy(gap: Gap) -> str:
    assert gap.needed is not None
    if math.isinf(gap.needed):
        return "Its estimate sits on the bound: if that is the truth, no number of rows decides."
    more = gap.needed - gap.rows
    return (
        f"If the truth is what it looks like, about {_rough(more)} more rows of {gap.cell!r}, and of the others in "
        "proportion, would settle it."
    )


def _rough(count: float) -> str:
    """Rounded up to two digits: it is a guess.

    >>> _rough(12_345), _rough(87)
    ('13,000', '87')
    """
    if count >= 1e9:
        return "a billion or more"
    digits = max(0, len(str(int(count))) - 2)
    return f"{math.ceil(count / 10**digits) * 10**digits:,}"


def _short(gap: Gap) -> str:
    """The rows that would decide, in six characters; nothing where it is decided."""
    if gap.decision != "undecided":
        return ""
    if gap.needed is None:
        return "?"
    if math.isinf(gap.needed):
        return "never"
    return f"{gap.needed:.0f}" if gap.needed < 1e6 else f"{gap.needed:.0e}".replace("e+0", "e").replace("e+", "e")


def _entries(gap: Gap) -> tuple[str, ...]:
    low, high = _turned(gap)
    return (
        gap.name,
        "" if gap.estimate is None else _number(_sign(gap) * gap.estimate),
        "" if low is None else f"[{_number(low)}, {_number(high)}]",
        "" if gap.at_most is None else f"{'>=' if gap.minimum else '<='} {_number(_sign(gap) * gap.at_most)}",
        _bound(gap),
        gap.decision,
        _short(gap),
    )


def _line(entries: Sequence[str], widths: Sequence[int]) -> str:
    name, decision, width = entries[0], entries[5], widths[0]
    if len(name) > width:  # cut in the middle: names differ at their ends
        name = f"{name[: (width - 1) // 2]}~{name[len(name) - width // 2 :]}"
    aligned = [f"{entry:>{w}}" for entry, w in zip(entries, widths, strict=True)]
    return " ".join([f"{name:<{width}}", *aligned[1:5], f"{decision:<{widths[5]}}", aligned[6]]).rstrip()
