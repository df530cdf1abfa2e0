"""The engine over vLLM servers."""

from types import MappingProxyType

from sleuth.engines.servers.engine import ServerEngine
from sleuth.engines.vllm.dialect import Vllm
from sleuth.engines.vllm.weight_sync import CudaIpcTransport, NcclTransport


class VllmEngine(ServerEngine):
    """Generates with vLLM servers."""

    dialect = Vllm()
    transports = MappingProxyType({"device": CudaIpcTransport, "collective": NcclTransport})
