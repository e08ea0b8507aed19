"""Audits of predictions and verdicts on constraints: the numbers, their text, and a page."""

from fairbound.auditing.audited_columns import audit_columns
from fairbound.auditing.audits import Audit, GroupAudit, audit
from fairbound.auditing.comparisons import Comparison, compare
from fairbound.auditing.decisions import Gap, examples_needed
from fairbound.auditing.verdicts import Verdict, verdict

__all__ = [
    "Audit",
    "Comparison",
    "Gap",
    "GroupAudit",
    "Verdict",
    "audit",
    "audit_columns",
    "compare",
    "examples_needed",
    "verdict",
]
