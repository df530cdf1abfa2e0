"""The engine over SGLang servers."""

from types import MappingProxyType

from sleuth.engines.servers.engine import ServerEngine
from sleuth.engines.sglang.dialect import Sglang
from sleuth.engines.sglang.weight_sync import CollectiveTransport, TensorTransport


class SglangEngine(ServerEngine):
    """Generates with SGLang servers."""

    dialect = Sglang()
    transports = MappingProxyType({"device": TensorTransport, "collective": CollectiveTransport})
