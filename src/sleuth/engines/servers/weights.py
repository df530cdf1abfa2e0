"""Weight updates: the transport prepares new weights once, and every server loads them while its requests wait."""

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import httpx
from safetensors.torch import save_file
from torch import Tensor

from sleuth.config.engine import InFlight
from sleuth.errors import ConfigError, EngineFailure
from sleuth.model import lora
from sleuth.model.lora import LoRA

if TYPE_CHECKING:
    from sleuth.engines.servers.dialect import Dialect

Result = TypeVar("Result")
TIMEOUT = 1800.0  # seconds to finish requests and to load weights
CONNECT_TIMEOUT = 5.0


class Control:
    """Administrative requests to one server; an error status is an EngineFailure."""

    def __init__(self, address: str, dialect: "Dialect", http: httpx.Client) -> None:
        self.address = address
        self._dialect, self._http = dialect, http

    def get(self, path: str) -> Any:
        return self._send("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the JSON response, None if it is not JSON."""
        return self._send("POST", path, body)

    def load_folder(self, folder: Path) -> None:
        self._dialect.load_folder(self, folder.resolve())

    def load_adapter(self, folder: Path) -> None:
        self._dialect.load_adapter(self, folder.resolve())

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        response = self._http.request(method, path, json=body)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise EngineFailure(
                f"{self.address} has no {path}, so it cannot receive weights; {self._dialect.missing_remedy}"
            )
        if response.status_code != httpx.codes.OK:
            raise EngineFailure(f"{self.address}{path} returned {response.status_code}: {response.text[:200]}")
        return response.json() if "json" in response.headers.get("content-type", "") else None


Load = Callable[[Control], None]  # makes one server load the prepared weights


class WeightTransport(Protocol):
    """Carries weights from the trainer to the servers; a server that the run starts needs the options and variables."""

    options: Sequence[str]
    environment: Mapping[str, str]

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:
        """Make weights available, and return a function to call once per server to load them."""
        ...

    def close(self) -> None:
        """Free the resources held for the servers."""
        ...


def sync_weights(address: str, dialect: "Dialect", load: Load, in_flight: InFlight, name: str) -> None:
    """Switch a server to new weights; raises EngineFailure or httpx.TransportError if that fails."""
    timeout = httpx.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT)
    with httpx.Client(base_url=address, timeout=timeout, trust_env=False) as http:
        dialect.update_weights(Control(address, dialect, http), load, in_flight, name)


def require_cuda(weights: Mapping[str, Tensor], way: str) -> None:
    """Raise ConfigError unless the trainer's weights are on a GPU, as this value of engine.weights needs."""
    if misplaced := [name for name, weight in weights.items() if weight.device.type != "cuda"]:
        raise ConfigError(
            f"engine.weights = {way} needs the trainer on a GPU, but {misplaced[0]} is not on one; use disk"
        )


def describe_weights(weights: Mapping[str, Tensor], dtypes: str) -> dict[str, list[Any]]:
    """Describe weights for a server: names, shapes, and dtypes under this key."""
    return {
        "names": list(weights),
        dtypes: [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
        "shapes": [list(weight.shape) for weight in weights.values()],
    }


def run_during(ours: Callable[[], Result], theirs: Callable[[], object]) -> Result:
    """Run our part of a collective operation during the request for the server's part, and return its result.

    If the request fails, our part is left to its timeout, because nothing can interrupt it.
    """
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(ours())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    theirs()
    return done.result()


class DiskTransport:
    """Writes weights, or an adapter alone, to a folder that the servers read at the same path."""

    options: Sequence[str] = ()
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self, folder: Path, adapter: LoRA | None = None) -> None:
        self._folder, self._adapter = folder, adapter
        self._written: list[Path] = []

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:
        folder = self._folder / f"weights-{version}"
        # The servers have loaded the previous weights by now, so everything older can go.
        for outdated in [each for each in self._written[:-1] if each != folder]:
            shutil.rmtree(outdated)
            self._written.remove(outdated)
        if self._adapter is not None:
            shutil.rmtree(folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            lora.save({name: weight.detach().cpu() for name, weight in weights.items()}, self._adapter, folder)
            self._written = [*(each for each in self._written if each != folder), folder]
            return lambda control: control.load_adapter(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # safetensors refuses tensors that share memory, so tied weights are written twice.
        seen: set[int] = set()
        copies: dict[str, Tensor] = {}
        for name, weight in weights.items():
            tensor = weight.detach().cpu().contiguous()
            copies[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
            seen.add(tensor.data_ptr())
        save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
        self._written = [*(each for each in self._written if each != folder), folder]
        return lambda control: control.load_folder(folder)

    def close(self) -> None:
        for each in self._written:
            shutil.rmtree(each, ignore_errors=True)
        self._written = []
