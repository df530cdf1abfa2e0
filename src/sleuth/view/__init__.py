"""The web viewer of runs and evaluations."""
