"""llama.cpp's server as a child process on the loopback, from the `xllamacpp` wheel, with a GGUF file of random weights.

The light engine for a laptop: 34 MB to install. As a program this module is that child: it starts the server and keeps it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hw.engines.gguf import write_random
from hw.engines.server_process import Server, free_port, running
from hw.engines.shapes import shape
from sim.errors import UsageError

SLOT_TOKENS = 1024  # context of one slot: above every prompt and output of the laptop's plan


@contextmanager
def serve(
    model: str,
    folder: Path,
    *,
    device: str,
    flags: Sequence[str] = (),
    max_model_len: int | None = None,
    start_timeout_s: float = 120.0,
    log: Path | None = None,
) -> Iterator[Server]:
    """Start the server, wait until it is healthy, stop it at the end. `flags` are `--parallel N --batch N`.

    Raises UsageError when xllamacpp is absent or the device is no CPU, SimctlError when the server dies or does not get healthy.
    """
    if device != "cpu":
        raise UsageError("engine llamacpp runs with --hw cpu")
    if importlib.util.find_spec("xllamacpp") is None:
        raise UsageError("llama.cpp's server is not installed: pip install 'llm-simctl[llamacpp]'")
    path, port = write_random(shape(model), folder / f"{model}.gguf"), free_port()
    log = log or folder / "server.log"
    options = ["--model", str(path), "--port", str(port), "--slot-tokens", str(max_model_len or SLOT_TOKENS), *flags]
    url = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-m", "hw.engines.llamacpp_server", *options], url, log, dict(os.environ), start_timeout_s) as start_s:
        slots = _parser().parse_args(options)
        facts = {
            "engine": "llama.cpp",
            "engine_version": f"xllamacpp {importlib.metadata.version('xllamacpp')}",
            "kv_tokens": slots.parallel * slots.slot_tokens,
            "slots": slots.parallel,
            "path": "served",
            "server_start_s": round(start_s, 1),
            "server_flags": " ".join(options[4:]),
        }
        yield Server(url, model, facts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="llama.cpp's server on the loopback, one thread")
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=4, help="slots")
    parser.add_argument("--slot-tokens", type=int, default=SLOT_TOKENS, help="context of a slot")
    parser.add_argument("--batch", type=int, default=512, help="most tokens of one batch")
    return parser


def main() -> None:
    """Serve until terminated."""
    import xllamacpp

    asked = _parser().parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.hostnames = asked.model, asked.port, ["127.0.0.1"]
    params.n_parallel, params.n_ctx = asked.parallel, asked.parallel * asked.slot_tokens
    params.n_batch = params.n_ubatch = asked.batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
