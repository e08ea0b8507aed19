"""`Constrained`: a PyTorch training loop that keeps a bound; the KKT report of a model."""
