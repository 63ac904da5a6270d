"""Neither a redirect nor a proxy in the environment sends a prompt anywhere but to the URL given."""

import asyncio

import pytest

from hw.serve.client import Target, complete
from tests.hw.toy_server import ToyServer, running
from tests.hw.virtual_time import run_virtual


@pytest.mark.parametrize("status", ["301 Moved Permanently", "307 Temporary Redirect"])
def test_a_redirect_is_an_error_and_is_not_followed(status: str) -> None:
    elsewhere = ToyServer()

    async def program() -> str:
        async with running(elsewhere) as other:

            async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(f"HTTP/1.1 {status}\r\nLocation: {other}/v1/completions\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
                writer.close()

            server = await asyncio.start_server(redirect, "127.0.0.1", 0)
            async with server:
                port = server.sockets[0].getsockname()[1]
                return (await complete(Target(f"http://127.0.0.1:{port}", "toy"), [1, 2, 3], 4)).error

    assert f"HTTP {status.split()[0]}" in run_virtual(program())
    assert elsewhere.seen == []


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, proxy = ToyServer(), ToyServer()

    async def program() -> bool:
        async with running(proxy) as other, running(asked) as url:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, other)
            return (await complete(Target(url, "toy"), [1, 2, 3], 4)).ok

    assert run_virtual(program())
    assert len(asked.seen) == 1
    assert proxy.seen == []
