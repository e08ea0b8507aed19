"""What `Constrained` is made of: rows, their statistics, parameters and gradients, saved states, the KKT report."""

from fairbound.integrations.torch.batch import MiniBatch
from fairbound.integrations.torch.kkt_report import KKT, kkt

__all__ = ["KKT", "MiniBatch", "kkt"]
