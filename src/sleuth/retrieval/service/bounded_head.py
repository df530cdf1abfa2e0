"""The head of a request, bounded: how many bytes it may have, and how long it may take to arrive.

uvicorn bounds neither with its faster parser: a header of 96 MB kept all clients waiting for seconds, and a head that
never ended kept its connection for ever.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sleuth.retrieval.service.answers import encoded

HEAD_BYTES = 65_536
HEAD_SECONDS = 20.0
LINGER = 1.0  # seconds in which a client that was refused can read why
END = b"\r\n\r\n"


class BoundedHead(HttpToolsProtocol):
    """uvicorn's HTTP, which answers 431 to a head of more than 64 KiB and 408 to one that takes more than 20 s.

    The same holds for fields after a body and for extensions of its chunks. A body that is still sent after its answer
    has the time of a head.
    """

    head_seconds = HEAD_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Bytes since the parser last reported a whole head, a part of a body or the end of a message, and their end.
        self._head, self._tail = 0, b""
        self._progress = False
        self._in_body = False
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._progress = self._in_body = True
        self._end_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress, self._in_body = True, False
        self._end_timer()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        room = HEAD_BYTES - self._head
        if not self._in_body and len(data) > room and END not in self._tail + data[:room]:
            # Not given to the parser, which is slow at exactly this.
            self._refuse_size()
            return
        self._progress = False
        super().data_received(data)
        if self._progress:
            self._head, self._tail = 0, b""
        else:
            self._head, self._tail = self._head + len(data), (self._tail + data)[-len(END) + 1 :]
            if self._in_body and self._head > HEAD_BYTES:
                self._refuse_size()
                return
        if self.cycle.response_complete if self._in_body else not self._progress:
            self._await_head()

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._expire)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()  # the answer to the request before comes first, however long it takes
        elif self._head and not self._in_body:
            sentence = f"the head of the request did not arrive within {self.head_seconds:g} s"
            self._refuse(b"408 Request Timeout", sentence)
        else:
            self.transport.close()

    def _refuse_size(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", f"the head has more than {HEAD_BYTES:,} bytes")

    def _refuse(self, status: bytes, sentence: str) -> None:
        self._end_timer()
        self._refused = True
        if self.transport.is_closing():
            return
        body = encoded({"detail": sentence})
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        # Closed at once, a client that still writes would see a reset instead of the answer.
        self._timer = self.loop.call_later(LINGER, self.transport.close)
