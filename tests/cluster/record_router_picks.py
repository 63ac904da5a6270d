"""Records which of four servers a router of another package sends each of 1,000 requests to:

    python -m tests.cluster.record_router_picks OUT.json.gz vllm-router
    python -m tests.cluster.record_router_picks OUT.json.gz python -m sglang_router.launch_router

The servers are made here: they answer at once or when told, so that the router's loads are known. A token is a character of the prompt.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SERVERS, REQUESTS = 4, 1000
GATE = {"balance_abs_threshold": 2, "balance_rel_threshold": 1.5}  # low, so that it is reached
SETTLED_S = 0.003  # the router learns that an answer is over after its client does


def drawn_events(seed):
    """(hold, send or release, number of the request, its prompt). The first four show in which order the router has its servers."""
    rng = random.Random(seed)

    def prompt():
        parts = [chr(0x4E00 + rng.randrange(6)) * rng.randrange(1, 9)]
        parts += [chr(0x5000 + rng.randrange(4)) * rng.randrange(1, 6) for _ in range(rng.randrange(4))]
        return "".join(parts)

    events = [("hold", i, chr(0x7000 + i) * 3) for i in range(SERVERS)] + [("release", i, "") for i in range(SERVERS)]
    held = []
    for number in range(SERVERS, REQUESTS):
        if held and (rng.random() < 0.45 or len(held) > 40):
            events.append(("release", held.pop(rng.randrange(len(held))), ""))
        kind = rng.choice(("hold", "send"))
        events.append((kind, number, prompt()))
        held += [number] * (kind == "hold")
    return events


class Handler(BaseHTTPRequestHandler):
    """A server of a router: its model, prompts as token ids, and completions that wait until they are let go."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer({"data": [{"id": "m"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":  # vllm-router asks for the tokens of a prompt
            ids = [ord(each) for each in body["prompt"]]
            self.answer([{"request_id": "x", "token_ids": ids, "prompt_token_ids": ids, "model": "m", "sampling_params": {}}])
            return
        number, fleet = int(body["user"]), self.server.fleet
        fleet.got[number] = self.server.place
        fleet.came[number].set()
        fleet.leaves[number].wait(60)
        self.answer({"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})


class Fleet:
    """Four servers and a router in front of them."""

    def __init__(self, program):
        self.got = {}
        self.came, self.leaves, self.over = ([threading.Event() for _ in range(REQUESTS)] for _ in range(3))
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(SERVERS)]
        for place, server in enumerate(self.servers):
            server.place, server.fleet, server.daemon_threads = place, self, True
            threading.Thread(target=server.serve_forever, daemon=True).start()
        urls = [f"http://127.0.0.1:{server.server_address[1]}" for server in self.servers]
        self.port, metrics = free_port(), free_port()
        options = [part for name, value in GATE.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port", str(metrics), "--worker-urls", *urls]
        command = [*program, *where, "--policy", "cache_aware", "--log-level", "error", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends_s = time.monotonic() + 60
        while time.monotonic() < ends_s and not self.ready():
            time.sleep(0.1)

    def ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            link.request("GET", "/health")
            return link.getresponse().status == 200
        return False

    def ask(self, number, prompt):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        link.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": prompt, "user": str(number)}),
                     {"Content-Type": "application/json"})  # fmt: skip
        with contextlib.suppress(OSError, http.client.HTTPException):  # the router ends before what it holds is answered
            link.getresponse().read()
        self.over[number].set()

    def play(self, events):
        """Which server got each request, in order."""
        for kind, number, prompt in events:
            if kind != "release":
                if kind == "send":
                    self.leaves[number].set()
                threading.Thread(target=self.ask, args=(number, prompt), daemon=True).start()
                assert self.came[number].wait(60), f"request {number} came to no server"
            if kind == "release":
                self.leaves[number].set()
            if kind != "hold":
                assert self.over[number].wait(60)
                time.sleep(SETTLED_S)
        return [self.got[number] for kind, number, _ in events if kind != "release"]

    def close(self):
        self.process.kill()  # it would wait for what it holds
        self.process.wait(60)
        for server in self.servers:
            server.shutdown()


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        return link.getsockname()[1]


def recorded(program, seed):
    """Drawn events, and the picks of a router for them, by their place in its own order of servers."""
    events, fleet = drawn_events(seed), Fleet(program)
    try:
        picks = fleet.play(events)
    finally:
        fleet.close()
    order = picks[:SERVERS]
    assert sorted(order) == list(range(SERVERS)), "the first requests go to one server each"
    return {"seed": seed, "picks": [order.index(pick) for pick in picks]}


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(gzip.compress(json.dumps(recorded(sys.argv[2:], 1)).encode(), mtime=0))
