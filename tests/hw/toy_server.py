"""A tiny OpenAI-compatible completion server with known delays and known bad manners."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ToyServer:
    """`ttft_s(prompt tokens)` and `gap_s(streams decoding)` are the delays; `manners` names what goes wrong, on the `bad` requests.

    manners: fine, hang (no answer), stall (stops mid-stream), drop (closes mid-stream), short (ends early, politely), garbage (not
    HTTP), echo (HTTP 401 that repeats what was sent), nonsense (events that are not JSON), refuse (HTTP 500), truncate (no final [DONE]),
    merged (two tokens per event), mute (no usage).
    """

    ttft_s: Callable[[int], float] = lambda prompt: 0.1
    gap_s: Callable[[int], float] = lambda streams: 0.01
    manners: str = "fine"
    bad: Callable[[int], bool] = lambda number: True
    tell: str = "ids"  # how tokens can be counted: ids, usage, text or, at the end alone, total
    words: int = 0  # an answer ends by itself after so many tokens; 0: never
    cache: bool = False
    answers: dict[str, str] = field(default_factory=dict)  # to GET, by path; 404 to others
    seen: list[dict[str, Any]] = field(default_factory=list)
    active: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET "):
                await self._tell(head.split()[1].decode(), writer)
                return
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            body = json.loads(await reader.readexactly(length))
            facts = {"at": asyncio.get_running_loop().time(), "path": head.split()[1].decode(), "head": head.decode()}
            self.seen.append(body | facts)
            await self._answer(body | {"head": head.decode()}, len(self.seen) - 1, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _tell(self, path: str, writer: asyncio.StreamWriter) -> None:
        if self.manners == "hang":
            await asyncio.sleep(10_000)
        text = self.answers.get(path, "nothing here").encode()
        status = b"200 OK" if path in self.answers else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(text)) + text)
        await writer.drain()

    async def _answer(self, body: dict[str, Any], number: int, writer: asyncio.StreamWriter) -> None:
        manners = self.manners if self.bad(number) else "fine"
        if manners == "hang":
            await asyncio.sleep(10_000)
        if manners == "garbage":
            writer.write(b"\x00\x01\x02 not http at all\r\n\r\n")
            return
        if manners == "refuse":
            text = b'{"error": "out of memory"}'
            writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            return
        if manners == "echo":
            text = f"{'x' * 165} {body['head'].partition('Connection: close')[2].strip()}".encode()  # a key across byte 200
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(self.ttft_s(prompt_tokens(body)))
        self.active += 1
        try:
            await self._tokens(body, manners, number, writer)
        finally:
            self.active -= 1

    async def _tokens(self, body: dict[str, Any], manners: str, number: int, writer: asyncio.StreamWriter) -> None:
        total = min(body["max_tokens"] - (1 if manners == "short" else 0), self.words or body["max_tokens"])
        step = 2 if manners == "merged" else 1
        for index in range(0, total, step):
            if index:
                await asyncio.sleep(0)  # let every stream that starts or ends at this instant be counted first
                await asyncio.sleep(self.gap_s(self.active) * step)
            if index >= total // 2 and manners == "stall":
                await asyncio.sleep(10_000)
            if index >= total // 2 and manners == "drop":
                return
            if index >= total // 2 and manners == "nonsense":
                _chunk(writer, b"data: {not json\n\n")
                continue
            _chunk(writer, b"data: " + json.dumps(self._event(body, index, min(step, total - index), number)).encode() + b"\n\n")
            await writer.drain()
        if self.tell == "total" and manners != "mute":
            usage = {"prompt_tokens": prompt_tokens(body), "completion_tokens": total, "prompt_tokens_details": {"cached_tokens": 0}}
            _chunk(writer, b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        if manners != "truncate":
            _chunk(writer, b"data: [DONE]\n\n")
        _chunk(writer, b"")

    def _event(self, body: dict[str, Any], index: int, tokens: int, number: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": " x" * tokens}
        event: dict[str, Any] = {"choices": [choice]}
        if "messages" in body:
            event["choices"] = [{"index": 0, "delta": {"content": " x" * tokens}}]
        if self.tell == "total":
            event["usage"] = None
            event["choices"][0]["finish_reason"] = "stop" if self.words and index + tokens >= self.words else None
        if self.tell == "ids":
            choice["token_ids"] = [1000 + index + i for i in range(tokens)]
        if self.tell == "usage":
            event["usage"] = {"completion_tokens": index + tokens}
        if self.cache:
            event["usage"] = {"prompt_tokens_details": {"cached_tokens": self._shared(body["prompt"], number)}}
        return event

    def _shared(self, prompt: list[int], number: int) -> int:
        """Longest common head with an earlier prompt."""
        best = 0
        for earlier in self.seen[:number]:
            same = 0
            for a, b in zip(prompt, earlier["prompt"], strict=False):
                if a != b:
                    break
                same += 1
            best = max(best, same)
        return best


def prompt_tokens(body: dict[str, Any]) -> int:
    """Token ids, or words."""
    given = body["messages"][0]["content"] if "messages" in body else body["prompt"]
    return len(given.split() if isinstance(given, str) else given)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@contextlib.asynccontextmanager
async def running(server: ToyServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The server's URL while it runs."""
    handlers: set[asyncio.Task[None]] = set()

    async def track(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await server.handle(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            handlers.discard(task)

    listener = await asyncio.start_server(track, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
