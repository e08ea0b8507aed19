"""Audits of predictions and verdicts on constraints: numbers and decisions, their tables and
sentences.

Verdicts are loaded when they are asked for: an audit needs no constraints.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairbound.auditing._audited_columns import audit_columns
from fairbound.auditing._audits import Audit, GroupAudit, audit
from fairbound.auditing._comparisons import Comparison, compare

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fairbound.auditing' has no attribute {name!r}")
    home = "_verdicts" if name.lower() == "verdict" else "_decisions"
    return getattr(import_module(f"fairbound.auditing.{home}"), name)
