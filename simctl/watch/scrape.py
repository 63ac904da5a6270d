"""Scrapes of servers' /metrics, all at once and with patience."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from hw.serve.http_stream import StreamError, get_text
from sim.errors import SimctlError
from sim.twin.prometheus import Snapshot, read_snapshot


def scrape_all(servers: Sequence[tuple[str, Mapping[str, str]]], at_s: float, patience_s: float) -> list[Snapshot | str]:
    """A snapshot of each URL, asked with its own headers, or in a few words why there is none. Never raises for what a server does."""

    async def one(url: str, headers: Mapping[str, str]) -> Snapshot | str:
        try:
            text = await asyncio.wait_for(get_text(f"{url}/metrics", headers), patience_s)
            return read_snapshot(text, at_s)
        except TimeoutError:
            return f"no answer in {patience_s:g} s"
        except StreamError as error:
            return f"refused: {error}"[:120]
        except OSError as error:
            return error.strerror or type(error).__name__
        except SimctlError as error:
            return str(error)

    async def together() -> list[Snapshot | str]:
        return await asyncio.gather(*(one(*server) for server in servers))

    return asyncio.run(together())
