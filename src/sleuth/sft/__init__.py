"""Cold start: demonstrations, rejection sampling and supervised training."""
