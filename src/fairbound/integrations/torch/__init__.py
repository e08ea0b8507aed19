"""`Constrained`: a PyTorch training loop that keeps a bound; the KKT report of a model."""

from fairbound.integrations.torch._constrained import Constrained
from fairbound.integrations.torch._kkt import KKT
from fairbound.integrations.torch._kkt_report import report_kkt

__all__ = ["KKT", "Constrained", "report_kkt"]
