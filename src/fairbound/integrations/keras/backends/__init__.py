"""What each Keras backend computes by itself: outputs and their vector-Jacobian products."""
