"""A small HTTP/1.1 client for server-sent events, on asyncio streams: one connection per request, a timestamp per event.

Only the standard library, so that the client's own cost is small and known, and so that it runs on a bare host. It talks to the URL
it is given and to nothing else: redirects are errors.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from hw.serve.secrets import hidden

MAX_LINE = 2**22  # a longer header or event line is garbage
NONE: Mapping[str, str] = MappingProxyType({})
OURS = ("host", "content-length", "content-type", "connection", "transfer-encoding")  # header fields that are not the user's to set


class StreamError(Exception):
    """The server answered with an error, with something that is not HTTP or not the stream asked for, or broke off."""


def split_url(url: str) -> tuple[str, int, str, bool]:
    """(host, port, path, tls) of an http(s) URL. Raises ValueError for any other, and for one whose secrets would be kept with it."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("a URL without user, password, query and fragment is needed")
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
        raise ValueError(f"not an http(s) URL: {shown(url)!r}")
    parts.hostname.encode("idna")  # as the resolver would later
    tls = parts.scheme == "https"
    return parts.hostname, parts.port or (443 if tls else 80), parts.path.rstrip("/"), tls


def shown(url: str) -> str:
    """A URL as a message may repeat it: without what may be a user, a password or a key."""
    whole = url.partition("?")[0].partition("#")[0]
    scheme, there, _ = whole.partition("://")
    return (f"{scheme}://" * bool(there) + f"...@{whole.rpartition('@')[2]}" if "@" in whole else whole)[:80]


async def events(url: str, payload: dict[str, Any], headers: Mapping[str, str] = NONE) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """POST `payload` as JSON and yield (seconds on the event loop's clock, decoded JSON) per `data:` line until `[DONE]`.

    Raises StreamError on a status other than 200, a body that is not such a stream, or one that ends without `[DONE]`;
    OSError when the connection fails. No message repeats the value of a header, even where the server does.
    """
    clock = asyncio.get_running_loop().time
    async with _answer("POST", url, json.dumps(payload).encode(), headers) as (reader, fields):
        async for line in _lines(reader, fields):
            now = clock()
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield now, _decoded(data, headers)
        raise StreamError("stream ended without [DONE]")


async def post_json(url: str, payload: dict[str, Any]) -> Any:
    """POST `payload` as JSON and return the JSON answer. Raises StreamError (status other than 200, not JSON) or OSError."""
    try:
        return json.loads(await _whole("POST", url, json.dumps(payload).encode()))
    except json.JSONDecodeError as error:
        raise StreamError(f"not JSON: {error}") from error


async def get_text(url: str, headers: Mapping[str, str] = NONE) -> str:
    """GET a short text, without the values of headers that it repeats. Raises StreamError (status other than 200) or OSError."""
    return hidden(await _whole("GET", url, b"", headers), headers)


async def _whole(verb: str, url: str, body: bytes, headers: Mapping[str, str] = NONE) -> str:
    async with _answer(verb, url, body, headers) as (reader, fields):
        return await _some_body(reader, fields, limit=MAX_LINE)


@asynccontextmanager
async def _answer(
    verb: str, url: str, body: bytes, headers: Mapping[str, str]
) -> AsyncIterator[tuple[asyncio.StreamReader, dict[str, str]]]:
    """(body to read, header fields) of the answer to a request. Raises StreamError on a status other than 200."""
    host, port, path, tls = split_url(url)
    reader, writer = await asyncio.open_connection(host, port, ssl=_tls() if tls else None, limit=MAX_LINE)
    try:
        writer.write(_request(verb, urlsplit(url).netloc, path or "/", body, headers))
        await writer.drain()
        status, fields = await _head(reader)
        if status != 200:
            raise StreamError(f"HTTP {status}: {_said(' '.join((await _some_body(reader, fields)).split()), headers)}")
        yield reader, fields
    finally:
        # all is read: the farewells of TLS would only keep the loop waiting
        (writer.transport.abort if tls else writer.close)()


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates takes milliseconds, in which no token is seen to arrive."""
    return ssl.create_default_context()


def _said(text: str, headers: Mapping[str, str], most: int = 200) -> str:
    """The start of what a server said, without the secrets it was sent: hidden before the cut, which could leave half of one."""
    return hidden(text, headers)[:most]


def _request(verb: str, host: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    fields = {
        "Host": host,
        "User-Agent": "simctl",  # some providers refuse clients without a name
        "Accept": "text/event-stream, application/json",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in {**fields, **headers}.items())
    return f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError as error:  # longer than MAX_LINE
        raise StreamError("a line of the answer is too long") from error


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    words = (await _line(reader)).split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise StreamError("the answer is not HTTP" if words else "the server closed the connection without an answer")
    fields = {}
    while (line := await _line(reader)).strip():
        name, colon, value = line.partition(b":")
        if not colon:
            raise StreamError("malformed header in the answer")
        fields[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
    return int(words[1]), fields


async def _chunks(reader: asyncio.StreamReader, fields: dict[str, str]) -> AsyncIterator[bytes]:
    """Body pieces as they arrive, transfer coding undone."""
    if fields.get("transfer-encoding", "").lower() == "chunked":
        while True:
            text = (await _line(reader)).split(b";")[0].strip()
            try:
                size = int(text, 16)
            except ValueError as error:
                raise StreamError("broken off inside the stream" if not text else "malformed chunk in the stream") from error
            if size == 0:
                return
            try:
                yield (await reader.readexactly(size + 2))[:-2]
            except asyncio.IncompleteReadError as error:
                raise StreamError("broken off inside the stream") from error
    while piece := await reader.read(2**16):
        yield piece


async def _lines(reader: asyncio.StreamReader, fields: dict[str, str]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in _chunks(reader, fields):
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > MAX_LINE:
            raise StreamError("a line of the stream is too long")
        for line in whole:
            yield line.rstrip(b"\r")
    if rest.strip():
        yield rest


async def _some_body(reader: asyncio.StreamReader, fields: dict[str, str], limit: int = 2**20) -> str:
    body = b""
    async for piece in _chunks(reader, fields):
        body += piece
        if len(body) >= min(limit, int(fields.get("content-length") or limit)):
            break
    return body.decode("utf-8", "replace")


def _decoded(data: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise StreamError(f"an event is not JSON: {_said(data.decode('utf-8', 'replace'), headers, 80)!r}") from error
    if not isinstance(event, dict):
        raise StreamError(f"an event is not an object: {_said(data.decode('utf-8', 'replace'), headers, 80)!r}")
    if event.get("error"):
        raise StreamError(f"the server reports: {_said(str(event['error']), headers)}")
    return event
