"""Verdicts: whether limits hold for people not seen, from rows that nothing else has used."""

from fairbound.verdicts.judging import Gap, rows_for
from fairbound.verdicts.verdict import Verdict, verdict

__all__ = ["Gap", "Verdict", "rows_for", "verdict"]
