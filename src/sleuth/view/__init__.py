"""Web viewer for runs and evaluations."""
