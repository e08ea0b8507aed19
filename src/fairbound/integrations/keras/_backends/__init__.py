"""What each Keras backend computes: the model's outputs and their vector-Jacobian products."""
