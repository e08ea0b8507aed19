"""Small tensors: one torch thread is faster than two, and the workers of the suite share two cores."""

import torch

torch.set_num_threads(1)
