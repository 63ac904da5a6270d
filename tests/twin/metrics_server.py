"""A server on the loopback that answers /metrics as vLLM does, and whose requests a test sets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TTFT, TPOT, E2EL = (0.01, 0.04, 0.06, 0.1, 1.0), (0.005, 0.01, 0.025, 0.1), (0.5, 1.0, 2.0, 10.0)


def vllm_metrics(requests: int, prompt: int = 512, output: int = 64, ttft_s: float = 0.05, tpot_s: float = 0.009) -> str:
    """Metrics after so many requests, all alike."""

    def histogram(name: str, bounds: tuple[float, ...], value: float) -> str:
        rows = [f'vllm:{name}_bucket{{le="{b}"}} {requests if value <= b else 0}' for b in (*bounds, "+Inf") if b != "+Inf"]
        return "\n".join([*rows, f'vllm:{name}_bucket{{le="+Inf"}} {requests}', f"vllm:{name}_sum {requests * value}"])

    return "\n".join(
        [
            "vllm:num_requests_running 4",
            "vllm:num_requests_waiting 0",
            "vllm:kv_cache_usage_perc 0.1",
            f"vllm:prompt_tokens_total {requests * prompt}",
            f"vllm:generation_tokens_total {requests * output}",
            f"vllm:request_success_total {requests}",
            histogram("time_to_first_token_seconds", TTFT, ttft_s),
            histogram("request_time_per_output_token_seconds", TPOT, tpot_s),
            histogram("e2e_request_latency_seconds", E2EL, ttft_s + output * tpot_s),
        ]
    )


@contextlib.contextmanager
def serving(answer: Callable[[dict[str, str]], tuple[int, str]]) -> Iterator[str]:
    """URL of a server whose every GET is answered by (status, text) of the request's headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
