"""Benchmarks: speed, measured next to a baseline in the same run."""
