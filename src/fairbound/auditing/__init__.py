"""Audits of predictions: the numbers (`audit`), and a page with pictures (`page`)."""

from fairbound.auditing.audit import Audit, GroupAudit, audit, audit_columns

__all__ = ["Audit", "GroupAudit", "audit", "audit_columns"]
