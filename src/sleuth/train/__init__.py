"""Training: groups of episodes become packed rows, a loss, a step, a checkpoint."""
