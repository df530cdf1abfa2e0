"""Out-of-memory errors are described in one line with their figures."""

import numpy as np
import pytest
import torch

from sleuth.model.memory import describe_out_of_memory

MESSAGE = (
    "CUDA out of memory. Tried to allocate 142.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 14.31 MiB is "
    "free. Process 2271 has 512.00 MiB memory in use. Process 5136 has 42.17 GiB memory in use. Including non-PyTorch "
    "memory, this process has 14.91 GiB memory in use. Of the allocated memory 13.68 GiB is allocated by PyTorch."
)


def test_what_was_asked_for_what_is_free_and_what_others_hold() -> None:
    found = describe_out_of_memory(torch.OutOfMemoryError(MESSAGE)) or ""
    assert all(fact in found for fact in ("GPU", "142.00 MiB", "14.31 MiB of 139.80 GiB", "42.7 GiB"))


def test_others_are_only_named_where_there_are_some() -> None:
    alone = MESSAGE.replace("Process 2271 has 512.00 MiB memory in use. Process 5136 has 42.17 GiB memory in use. ", "")
    found = describe_out_of_memory(torch.OutOfMemoryError(alone)) or ""
    assert "14.31 MiB of 139.80 GiB" in found
    assert "other processes" not in found


def test_a_message_of_another_form_is_still_told() -> None:
    assert describe_out_of_memory(torch.OutOfMemoryError("no memory")) == "the GPU is out of memory"


def test_a_machine_without_memory_is_told_whoever_noticed() -> None:
    with pytest.raises(RuntimeError) as pytorch:
        torch.empty(1 << 60)
    assert "4294967296.00 GiB" in (describe_out_of_memory(pytorch.value) or "")
    with pytest.raises(MemoryError) as array:
        np.empty(1 << 58)
    assert "2.00 EiB" in (describe_out_of_memory(array.value) or "")
    for error in (MemoryError(), MemoryError("std::bad_alloc"), RuntimeError("std::bad_alloc"), OSError(12, "no")):
        assert describe_out_of_memory(error) == "the machine is out of memory"


def test_other_errors_are_not_about_memory() -> None:
    assert describe_out_of_memory(RuntimeError(MESSAGE)) is None
    assert describe_out_of_memory(OSError(2, "no such file")) is None
