"""Audits of predictions and verdicts on constraints: the numbers, their text, and a page."""

from fairbound.auditing._audited_columns import audit_columns
from fairbound.auditing._audits import Audit, GroupAudit, audit
from fairbound.auditing._comparisons import Comparison, compare
from fairbound.auditing._decisions import Gap, examples_needed
from fairbound.auditing._verdicts import Verdict, verdict

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
