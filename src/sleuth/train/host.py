"""Copies in host memory, for what goes on being changed on the device."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Host:
    """Makes copies; those of one name take one place, pinned where there is a GPU, so that the second is quick."""

    def __init__(self) -> None:
        self._places: dict[str, Tensor] = {}

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """A copy that is complete after `settle`; it is overwritten by the next of this name."""
        given = tensor.detach()
        if isinstance(given, DTensor):
            return given.cpu() if given.device.type != "cpu" else given.clone()
        place = self._places.get(name)
        if place is None or (place.shape, place.dtype) != (given.shape, given.dtype):
            place = torch.empty(given.shape, dtype=given.dtype, pin_memory=torch.cuda.is_available())
            self._places[name] = place
        return place.copy_(given, non_blocking=True)

    def settle(self) -> None:
        """Waits for the copies under way."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
