"""Triton kernels of the embedded engine; each has a plain PyTorch form that says what it computes."""
