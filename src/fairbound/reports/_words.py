"""How a number, an interval, a share and a text of the user's are written on the terminal, on pages
and in files."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

NO_VALUE = "—"
Write = Callable[[float], str]
JOINERS = "\u200c\u200d"  # parts of letters of Persian, Hindi, ..., and of some pictures


def number(value: float | None) -> str:
    """Three decimals; four digits of a large number, two of a small one; "undefined" for None.

    >>> number(0.25), number(0.00031), number(-1e-17), number(1234.5), number(None)
    ('0.250', '0.00031', '0.000', '1234', 'undefined')
    """
    if value is None:
        return "undefined"
    size = abs(value)
    if size < 1e-12:
        return "0.000"
    return f"{value:.4g}" if size >= 100 else f"{value:.3f}" if size >= 0.0095 else f"{value:.2g}"


def signed(value: float) -> str:
    """Three decimals with a sign."""
    return f"{value:+.3f}"


def percent(value: float | None) -> str:
    """A share in percent.

    >>> percent(0.4485), percent(0.0004), percent(None)
    ('44.9\xa0%', '0.04\xa0%', 'undefined')
    """
    if value is None:
        return "undefined"
    digits = ".1f" if value == 0 or abs(value) >= 0.001 else ".2g"
    return f"{100 * value:{digits}}\N{NO-BREAK SPACE}%"


def confidence(level: float) -> str:
    """A level of confidence.

    >>> confidence(0.95)
    '95 %'
    """
    return f"{100 * level:g} %"


def interval(low: float | None, high: float | None, write: Write = number) -> str:
    """The ends in brackets; nothing where there is no interval.

    >>> interval(0.1, 0.3), interval(0.182, 0.246, lambda share: f"{100 * share:+.1f}")
    ('[0.100, 0.300]', '[+18.2, +24.6]')
    """
    if low is None or high is None or low != low:
        return ""
    return f"[{write(low)}, {write(high)}]"


def estimate(
    value: float | None, low: float | None = None, high: float | None = None, write: Write = number
) -> str:
    """A value and its interval.

    >>> estimate(0.2, 0.1, 0.3), estimate(0.2), estimate(None)
    ('0.200 [0.100, 0.300]', '0.200', 'undefined')
    """
    return f"{'undefined' if value is None else write(value)} {interval(low, high, write)}".rstrip()


def with_deviation(mean: float, deviation: float, write: Write = "{:.3f}".format) -> str:
    """A mean and its standard deviation over runs.

    >>> with_deviation(0.25, 0.01)
    '0.250 ± 0.010'
    """
    return f"{write(mean)} ± {write(deviation)}"


def is_none(value: Any) -> bool:
    """Whether there is no value: None or NaN."""
    return value is None or bool(value != value)


def capital(words: str) -> str:
    """The words with a capital letter at the start."""
    return words[:1].upper() + words[1:]


def visible(text: str) -> str:
    r"""Text of the user's with all that does not show written out: control characters, marks that
    turn text around, spaces without a width. No escape sequence of a file reaches a terminal.

    >>> print(visible("a\x1b[31mb\u202ec"), visible("A\u200b"))
    a\x1b[31mb\u202ec A\u200b
    """
    if text.isprintable():
        return text
    hidden: dict[str, str | int | None] = {
        letter: letter.encode("unicode_escape").decode()
        for letter in set(text)
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in JOINERS
    }
    return text.translate(str.maketrans(hidden))


def harmless(value: Any) -> Any:
    """A cell that a spreadsheet shows and does not run as a formula, however wide its first letter
    is; numbers stay.

    >>> harmless("=1+1"), harmless("＝1+1"), harmless("a\\x00"), harmless(-0.5)
    ("'=1+1", "'＝1+1", 'a\\\\x00', -0.5)
    """
    if not isinstance(value, str):
        return "" if is_none(value) else value
    starts_formula = unicodedata.normalize("NFKC", value[:1]).startswith(tuple("=+-@\t\r"))
    return ("'" if starts_formula else "") + visible(value)
