"""The servers of an engine: a session stays with one, and one that died is taken out."""

import asyncio
import sys
from collections.abc import Sequence

from sleuth.engines.base import Session
from sleuth.engines.vllm.server import Server
from sleuth.errors import EngineFailure
from sleuth.page.text import visible


class Fleet:
    """Chooses the server of every call; `lost` names those taken out, with the reason."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = list(servers)
        self._ever = tuple(servers)
        self.lost: dict[str, str] = {}
        self._homes: dict[Session, Server] = {}

    def server_for(self, session: Session | None) -> Server:
        """The server that a session had before, for it has its cache; the least crowded for all others."""
        if session is not None and session in self._homes:
            return self._homes[session]
        if not self.servers:
            raise EngineFailure(f"no vLLM server is left: {'; '.join(self.lost.values())}")
        chosen = min(self.servers, key=lambda server: (server.gate.crowd, self._seated(server)))
        if session is not None:
            self._homes[session] = chosen
        return chosen

    def leave(self, session: Session) -> None:
        """The session does not come back."""
        self._homes.pop(session, None)

    def take_out(self, server: Server, reason: str) -> None:
        """No call goes there any more; who sat there finds another."""
        if server not in self.servers:
            return
        self.servers.remove(server)
        self.lost[server.address] = reason
        self._homes = {session: home for session, home in self._homes.items() if home is not server}
        left = len(self.servers)
        print(visible(f"the vLLM server {server.address} is taken out ({reason}); {left} left"), file=sys.stderr)

    async def hang_up(self) -> None:
        """Ends every connection, those to servers taken out too; the next call makes new ones."""
        await asyncio.gather(*(server.hang_up() for server in self._ever))

    def _seated(self, server: Server) -> int:
        return sum(home is server for home in self._homes.values())
