"""Sleuth trains language models to reason and to search."""

__version__ = "0.1.0"
