"""Settings of PyTorch under which engine and trainer sum alike."""

import torch


def disable_split_k() -> None:
    """Matrix products in half precision are never summed in parts, whose number depends on how many rows there are.

    A row of a product then has the same bits in a decode step of a few lanes and in a training pass of thousands.
    """
    # Not in reduced precision, and not split; only this library can be told so.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)
    if torch.cuda.is_available():
        torch.backends.cuda.preferred_blas_library("cublaslt")
