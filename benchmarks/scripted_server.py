"""A server that streams tokens on a schedule and remembers when it really sent them: the truth to measure a client by.

`python -m benchmarks.scripted_server --ttft 0.2 --itl 0.05 --tokens 40` prints its port and serves until it is ended.
`GET /log` answers what was sent: {request id: [when it was read, when each token was written]}, by CLOCK_MONOTONIC,
which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from dataclasses import dataclass, field
from time import perf_counter

EVENT = b'data: {"id":"cmpl-0","object":"text_completion","model":"scripted","choices":[%s]%s}\n\n'
TOKEN = EVENT % (b'{"index":0,"text":" tok","logprobs":null,"finish_reason":null}', b',"usage":null')
LAST = EVENT % (b'{"index":0,"text":" tok","logprobs":null,"finish_reason":"length"}', b',"usage":null')
USAGE = b',"usage":{"prompt_tokens":8,"completion_tokens":%d,"total_tokens":%d}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Script:
    """Seconds to the first token and between tokens; in `batches`, tokens of all streams come in the same moment."""

    ttft: float
    itl: float
    tokens: int
    batches: bool


@dataclass(slots=True)
class Stream:
    """One answer: how many of its tokens were written, and when."""

    transport: asyncio.Transport
    times: list[float]
    log: dict[str, list[float]]
    request_id: str
    written: int = 0


@dataclass(slots=True)
class Player:
    """Writes tokens when they are due. Without batches each stream keeps its own time."""

    script: Script
    log: dict[str, list[float]] = field(default_factory=dict)
    batch: list[Stream] = field(default_factory=list)
    ticking: bool = False

    def play(self, stream: Stream) -> None:
        """Starts the answer of a request that was read just now."""
        loop = asyncio.get_running_loop()
        first = stream.times[0] + self.script.ttft
        if not self.script.batches:
            loop.call_at(first, self._write_and_go_on, stream, first)
            return
        loop.call_at(first, lambda: self.batch.append(stream))
        if not self.ticking:
            self.ticking = True
            loop.call_at(first, self._tick, first)

    def _write_and_go_on(self, stream: Stream, due: float) -> None:
        if self._write(stream):
            due += self.script.itl
            asyncio.get_running_loop().call_at(due, self._write_and_go_on, stream, due)

    def _tick(self, due: float) -> None:
        self.batch = [stream for stream in self.batch if self._write(stream)]
        due += self.script.itl
        asyncio.get_running_loop().call_at(due, self._tick, due)

    def _write(self, stream: Stream) -> bool:
        """Writes one token; False with the last one."""
        stream.written += 1
        last = stream.written == self.script.tokens
        data = chunk(LAST if last else TOKEN)
        if stream.written == 1:
            data = HEAD + data
        if last:
            usage = EVENT % (b"", USAGE % (stream.written, stream.written + 8))
            data += chunk(usage) + chunk(b"data: [DONE]\n\n") + chunk(b"")
        stream.times.append(perf_counter())
        stream.transport.write(data)
        if last:
            stream.log[stream.request_id] = stream.times
        return not last and not stream.transport.is_closing()


class Connection(asyncio.Protocol):
    """Just enough HTTP for one client: requests with a Content-Length, one at a time."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._data = b""
        self._read_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._data:
            self._read_at = perf_counter()
        self._data += data
        head, blank, body = self._data.partition(b"\r\n\r\n")
        if not blank:
            return
        start, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(body) < int(headers.get("content-length", 0)):
            return
        self._data = b""
        if start.startswith("POST"):
            player = self._player
            player.play(Stream(self._transport, [self._read_at], player.log, headers.get("x-request-id", "")))
        else:
            answer = json.dumps(self._player.log if "/log" in start else {"data": [{"id": "scripted"}]}).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))


def chunk(data: bytes) -> bytes:
    """`data` in HTTP's chunked coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(script: Script) -> None:
    """Serves on a free port, which it prints, until the process is ended."""
    player = Player(script)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(player), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Reads the command line and serves."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scripted_server", description=__doc__)
    parser.add_argument("--ttft", type=float, default=0.2, metavar="S")
    parser.add_argument("--itl", type=float, default=0.05, metavar="S")
    parser.add_argument("--tokens", type=int, default=40, metavar="N")
    parser.add_argument("--batches", action="store_true", help="write the tokens of all streams in the same moment")
    options = parser.parse_args()
    gc.disable()  # its pauses would be the server's, and this one is to be exact
    asyncio.run(serve(Script(options.ttft, options.itl, options.tokens, options.batches)))


if __name__ == "__main__":
    main()
