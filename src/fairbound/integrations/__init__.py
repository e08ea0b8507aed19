"""Front ends: training loops in PyTorch and Keras, scikit-learn."""
