"""The settings of PyTorch that keep a row's sum from depending on the rows beside it."""

from collections.abc import Iterator

import pytest
from torch.backends.cuda import matmul

from sleuth.model.exactness import disable_split_k

NAMES = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


def setting(name: str) -> tuple[bool, bool]:
    """Whether sums may be of reduced precision, and whether they may be split."""
    return getattr(matmul, name), getattr(matmul, f"{name}_split_k")


@pytest.fixture(autouse=True)
def loose() -> Iterator[None]:
    """PyTorch as it is at first, and afterwards as other tests left it."""
    before = {name: setting(name) for name in NAMES}
    for name in NAMES:
        setattr(matmul, name, (True, True))
    yield
    for name, value in before.items():
        setattr(matmul, name, value)


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_neither_reduced_nor_split(name: str) -> None:
    assert setting(name) == (True, True)
    disable_split_k()
    assert setting(name) == (False, False)
