"""Triton kernels that engine and trainer share."""
