"""A run's report on the loopback, with sliders: load, replicas and prompt length, simulated again as they move."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import click

from sim.errors import SimctlError, UsageError, ending
from sim.files import plain
from simctl import __version__
from simctl.options.file_options import command_line, options_by_name, options_of
from simctl.report.of_run import part_of
from simctl.report.page import number, render, span

if TYPE_CHECKING:
    from ssl import SSLContext

LOOPBACK = "127.0.0.1"
OPEN = ("/healthz",)  # routes that need no token
COUNTS, WANTED_S = (200, 100, 50), 0.6  # requests of an answer: the most whose first answer is there in this time
QUANTILES = ("median", "p90", "p95", "p99")
DROPPED = ("num-prompts", "goal", "draws", "iterations")
NOT_DRAWN = ("trace", "agent-sessions", "fleet", "rate-curve", "max-concurrency")
CODE = ("engine", "router")  # a dotted path there is imported
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Slider:
    """An option of `simctl simulate`, the values it can be moved to, and the run's own."""

    name: str
    label: str
    unit: str
    values: tuple[float, ...]
    own: int | float

    def read(self, text: str) -> float:
        """The value that a query gives. ValueError beyond the ends, or of half a replica."""
        value = float(text) if isinstance(self.own, float) else int(text)
        if not self.values[0] <= value <= self.values[-1]:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Question:
    """Question of a run, shortened so that it can be answered repeatedly."""

    given: Mapping[str, Any]  # options of simctl simulate
    sliders: tuple[Slider, ...]
    count: int = COUNTS[0]

    def moved(self, values: Mapping[str, int | float]) -> dict[str, Any]:
        """Options of the simulation with these values of the sliders."""
        moved = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items()}
        return {**self.given, "num-prompts": str(self.count), **moved}


def question_of(attrs: Mapping[str, Any], file: Path) -> Question:
    """The question of a run from the attributes of its run.nc. UsageError where there is none that sliders could move."""
    from simctl.options.simulate_options import PARSER

    try:
        given = json.loads(str(attrs["options"]))
    except (KeyError, ValueError):
        given = None
    if not isinstance(given, dict) or set(given) - set(options_by_name(PARSER)):
        raise UsageError(f"{file}: does not say what to simulate again: it is of another version of simctl; simulate it again")
    if stray := [f"--{name}" for name in NOT_DRAWN if name in given]:
        raise UsageError(f"{file}: of a run with {stray[0]}; sliders are for requests drawn by --num-prompts and --request-rate")
    if files := [name for name, value in given.items() if value is None]:
        raise UsageError(f"{file}: of a run with a file as its --{files[0]}; a run does not say where files lie")
    if any("." in str(given.get(name, "")) for name in CODE):
        raise UsageError(f"{file}: its engine or router is a class of somebody's; asking it again would import code")
    rate, replicas, tokens = float(attrs["request_rate"]), int(attrs["replicas"]), int(attrs["random_input_len"])
    if not 0 < rate < math.inf:
        raise UsageError(f"{file}: its requests come all at once; sliders are for a --request-rate")
    most = max(tokens, int(attrs["max_model_len"]) - int(attrs["random_output_len"]) - int(attrs["random_prefix_len"]))
    steps = [step << power for power in range(1, 21) for step in (2, 3)]
    rates = tuple(sorted({rate, *(float(f"{rate * 2 ** (i / 2):.3g}") for i in range(-6, 7) if i)}))
    several = tuple(sorted({1, replicas, *(step for step in steps if step <= min(max(16, 2 * replicas), 1024))} - {0}))
    prompts = tuple(sorted({tokens, *(step for step in steps if 64 <= step <= most)}))
    return Question(
        {name: value for name, value in given.items() if name not in DROPPED},
        (
            Slider("request-rate", "Load", "requests/s", rates, rate),
            Slider("replicas", "Replicas", "", tuple(sorted({*several, 2})), replicas),
            Slider("random-input-len", "Prompt", "tokens", prompts, tokens),
        ),
    )


def answer(question: Question, values: Mapping[str, float], known: dict[Any, Any]) -> dict[str, Any]:
    """Answer of `simctl simulate` at these values: figures with intervals, and distributions. `known` keeps rates. SimctlError."""
    from sim.study.simulate import run_study
    from simctl.from_options.questions import simulate_of

    given = question.moved(values)
    run = run_study(simulate_of(options_of("simulate", given)).study(known), keep_iterations=False)
    figures = []
    for metric in ("ttft", "tpot", "e2el"):
        for quantile in QUANTILES:
            name = f"{quantile}_{metric}_ms"
            ends = [span(*table[name]) if name in table else "–" for table in (run.noise, run.rate_intervals)]
            figures.append([f"{quantile.capitalize()} {metric.upper()}", number(float(run.summary[name]), "ms"), *ends])
    pictures = [
        {"name": each.name, "reading": each.reading, "spec": each.spec} for each in part_of(run.record, run.to_xarray(seed=0)).pictures
    ]
    found: dict[str, Any] = plain(
        {"figures": figures, "pictures": pictures, "command": command_line("simulate", given), "summary": run.summary}
    )
    return found


class Answers:
    """Answers to queries, one at a time."""

    def __init__(self, question: Question) -> None:
        self.question, self._known, self._one = question, {}, threading.Lock()  # type: ignore[var-annotated]

    def own(self) -> dict[str, float]:
        """The values of the run itself."""
        return {slider.name: slider.own for slider in self.question.sliders}

    def fit(self) -> None:
        """Ask for as many requests as are answered in WANTED_S here. Raises what the simulation does."""
        answer(self.question, self.own(), self._known)  # loads what every answer needs
        for count in COUNTS:
            self.question = Question(self.question.given, self.question.sliders, count)
            begun = time.monotonic()
            answer(self.question, self.own(), self._known)
            if time.monotonic() - begun <= WANTED_S:
                return

    def values(self, query: str) -> dict[str, float]:
        """Values of all sliders. UsageError, naming what is wrong."""
        sliders = {slider.name: slider for slider in self.question.sliders}
        try:
            given = parse_qs(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(sliders))
        except ValueError:
            raise UsageError(f"want {', '.join(sliders)}, once each") from None
        if set(given) != set(sliders) or any(len(each) > 1 for each in given.values()):
            raise UsageError(f"want {', '.join(sliders)}, once each")
        found = {}
        for name, slider in sliders.items():
            try:
                found[name] = slider.read(given[name][0])
            except ValueError:
                low, high = slider.values[0], slider.values[-1]
                raise UsageError(f"{name}: a number from {low:g} to {high:g}, not {given[name][0][:40]!r}") from None
        return found

    def __call__(self, query: str) -> tuple[int, dict[str, Any]]:
        """(HTTP status, body): what the model refuses is an answer, what no slider says is a bad request."""
        try:
            values = self.values(query)
        except UsageError as error:
            return 400, {"error": str(error)}
        try:
            with self._one:
                return 200, answer(self.question, values, self._known)
        except (SimctlError, click.ClickException) as error:
            return 200, {"error": ending(error)[1]}


Answer = tuple[int, str, str]
"""HTTP status, content type, body."""


Routes = Mapping[str, tuple[str, Callable[[], str]] | Callable[[str], Answer]]


def server(routes: Routes, port: int, bind: str = LOOPBACK, token: str = "", tls: SSLContext | None = None) -> ThreadingHTTPServer:
    """An HTTP server. A route is (content type, text), or what answers a query; port 0 takes a free one.

    With a `token` every route but OPEN asks for it, as Bearer or as the password of Basic; without one, only pages of this server are
    answered, by its loopback names. Raises OSError where the port is taken.
    """

    class Server(ThreadingHTTPServer):
        daemon_threads, block_on_close, allow_reuse_address = True, False, False
        address_family = AF_INET6 if ":" in bind else AF_INET

    found = Server((bind, port), _handler(routes, token))
    if tls:  # hands are shaken in a thread of the connection's own, which its timeout ends
        found.socket = tls.wrap_socket(found.socket, server_side=True, do_handshake_on_connect=False)
    return found


def _handler(routes: Routes, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout, server_version, sys_version = 30, "simctl", ""
        error_content_type, error_message_format = "text/plain; charset=utf-8", "%(code)d %(message)s\n"

        def do_GET(self) -> None:
            at: Any = self.server.server_address
            hosts = [f"{name}:{at[1]}" for name in (LOOPBACK, "localhost")]
            address = urlsplit(self.path)
            route = routes.get(address.path)
            if token and address.path not in OPEN and not _knows(token, self.headers.get("Authorization", "")):
                self._send(
                    401, "application/json", json.dumps({"error": "a token is needed"}), {"WWW-Authenticate": 'Basic realm="simctl"'}
                )
            # a name that somebody else's page resolves to this machine, or that page's own request
            elif not token and (
                self.headers.get("Host") not in hosts or self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
            ):
                self._send(403, "application/json", json.dumps({"error": "only from a page of this server"}))
            elif route is None:
                self._send(404, "application/json", json.dumps({"error": f"there are {' and '.join(routes)}"}))
            elif callable(route):
                self._send(*route(address.query))
            else:
                self._send(200, route[0], route[1]())

        def _send(self, status: int, kind: str, text: str, more: Mapping[str, str] | None = None) -> None:
            body = f"{text}\n".encode()
            with contextlib.suppress(ConnectionError):  # a slider that moves on waits for no answer
                self.send_response(status)
                for name, value in {
                    "Content-Type": f"{kind}; charset=utf-8",
                    "Content-Length": str(len(body)),
                    **HEADERS,
                    **(more or {}),
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _knows(token: str, authorization: str) -> bool:
    """Whether a request carries the token."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            given = b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    return scheme.lower() in ("bearer", "basic") and compare_digest(given.encode(), token.encode())


def routes_of(page: str, answers: Callable[[str], tuple[int, dict[str, Any]]]) -> Routes:
    """The page and its answers."""

    def answered(query: str) -> Answer:
        status, body = answers(query)
        return status, "application/json", json.dumps(body, allow_nan=False)

    return {"/": ("text/html", lambda: page), "/answer": answered}


def serve(path: Path, port: int) -> None:
    """Show the run at `path` until Ctrl-C. UsageError where it is none, or none that can be asked again; OSError of a port taken."""
    from sim.results.run_files import RUN_FILE, read_run_dataset

    file = path / RUN_FILE if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"{path}: no {RUN_FILE} in it; --serve shows the folder of simctl simulate --out")
    record, dataset = read_run_dataset(file)
    answers = Answers(question_of(dataset.attrs, file))
    answers.fit()
    page = render([part_of(record, dataset)], __version__, answers.question)
    with server(routes_of(page, answers), port) as found:
        click.echo(f"http://{LOOPBACK}:{found.server_address[1]}/")
        found.serve_forever(poll_interval=0.2)
