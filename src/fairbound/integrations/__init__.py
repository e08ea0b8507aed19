"""Front ends: training loops in PyTorch and Keras, Lightning, Transformers, scikit-learn."""
