"""What stands side by side must be of one length: a silent broadcast would give every token a wrong number."""

from torch import Tensor


def vectors(**named: Tensor) -> None:
    """Refuses anything but vectors of one length; their names are for the message."""
    shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        *most, last = [f"{name} {shape}" for name, shape in shapes.items()]
        raise ValueError(f"{' and '.join(filter(None, (', '.join(most), last)))} must be vectors of one length")
