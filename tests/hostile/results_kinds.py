"""Results of our own handed back damaged, and what a running server is asked over HTTP or answers: by kind."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.cli import Result
from tests.hostile.mutate import altered, as_json, damaged

Action = Callable[[], Any]
ODD: tuple[Any, ...] = (0, -1, 2.5, float("nan"), float("inf"), "", "x", "[]", "{}", "null", "[" * 3000, "9" * 5000, b"\xff", 2**62)
TYPES = ("i8", "i1", "f4", "u1", "S3", "c16", "?")


def run_file(rng: random.Random, folder: Path) -> Action:
    """run.nc damaged as bytes, or written whole with attributes and variables that it should not have."""
    from tests.cli import run

    shutil.copytree(saved()["run"], folder / "run")
    path = folder / "run" / "run.nc"
    if rng.random() < 0.3:
        path.write_bytes(damaged(rng, path.read_bytes()))
    else:
        _respoil(rng, path)
    return rng.choice((
        lambda: run("explain", str(folder / "run"), "--slowest", "2", "--by", "e2el"),
        lambda: run("explain", str(path), "1", "--json"),
        lambda: run("report", str(folder / "run"), "-o", str(folder / "report.html")),
    ))  # fmt: skip


def store(rng: random.Random, folder: Path) -> Action:
    """A sweep's store of which a file is damaged, altered, gone or a folder: reported, or resumed."""
    from tests.cli import run
    from tests.sweeps import made_sweeps

    path = folder / "store.zarr"
    shutil.copytree(saved()["store"], path)
    for _ in range(rng.randint(1, 2)):
        files = sorted(each for each in path.rglob("*") if each.is_file())
        marks = [each for each in files if each.name.startswith(".z")]
        file = rng.choice(marks if rng.random() < 0.5 else files)
        kind = rng.randrange(8)
        if kind == 0:
            file.unlink()
        elif kind == 1:
            file.unlink()
            file.mkdir()
        elif kind < 5 and file.name.startswith(".z"):
            file.write_bytes(as_json(altered(rng, _json_of(file))))
        else:
            file.write_bytes(damaged(rng, file.read_bytes()))

    def resume() -> None:
        with made_sweeps.opened(path) as found:
            found.put(0, made_sweeps.figures(0))

    return rng.choice((lambda: run("report", str(path), "-o", str(folder / "report.html")), resume))


def printed(rng: random.Random, folder: Path) -> Action:
    """What a plan, a map, a replication or a validation printed, or a posterior, as the input of a report."""
    from tests.cli import run

    name = rng.choice(("plan", "plan file", "map", "claims", "scores", "validation"))
    path, text = folder / name, saved()[name].read_text()
    if name == "scores":
        path.write_bytes(damaged(rng, text.encode()))
    else:
        changed = as_json(altered(rng, json.loads(text)))
        path.write_bytes(changed if rng.random() < 0.8 else damaged(rng, changed))
    if name == "plan file" and rng.random() < 0.5:
        return lambda: run("plan", str(path), "--emit", "k8s")
    return lambda: run("report", str(path), "-o", str(folder / "report.html"))


def http(rng: random.Random, folder: Path) -> Action:
    """Bytes to `report --serve`: answered with a status or dropped, and the next sound request is answered."""
    port = _served()
    query = "request-rate=12&replicas=1&random-input-len=1024"
    whole = rng.choice(
        (
            f"GET /answer?{query}",
            "GET /",
            f"GET /answer?{query}",
            rng.choice(("HEAD /", "POST /answer")),
            f"GET /answer?{query[: rng.randrange(50)]}",
        )
    )
    sound = f"{whole} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nSec-Fetch-Site: same-origin\r\nConnection: close\r\n\r\n".encode()
    odd = (
        b"A" * 70_000,
        b"X: y\r\n" * 150,
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"%00%ff",
        b"&replicas=1",
        b"\r\n",
    )
    text = damaged(rng, sound) if rng.random() < 0.7 else sound[: (at := rng.randrange(len(sound)))] + rng.choice(odd) + sound[at:]

    def ask(data: bytes, patience_s: float) -> bytes:
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), patience_s) as link:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: link.recv(1 << 16), b""))
        return b""

    def asked() -> Result:
        found = ask(text, 10)
        status = int(found[9:12]) if found.startswith(b"HTTP/1.0 ") else 400  # HTTP/0.9 has no status
        assert status != 500, found[:60]
        assert ask(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode(), 10).startswith(b"HTTP/1.0 200")
        return Result(0 if status < 400 else 2, "", f"simctl: {status}\n")

    return asked


def scrape(rng: random.Random, folder: Path) -> Action:
    """The metrics of a server, as `watch` reads them twice."""
    from sim.twin.prometheus import read_snapshot, window_between

    texts = [_metrics(rng, count) for count in (10, 20)]
    texts[rng.randrange(2)] = damaged(rng, texts[rng.randrange(2)].encode()).decode(errors="replace")

    def watched() -> None:
        window = window_between(*(read_snapshot(text, at) for at, text in enumerate(texts)))
        if window is not None:
            assert window.decoding >= 0
            assert all(each.quantile_s(0.9) >= 0 or each.count == 0 for each in window.latency.values())

    return watched


OF_RESULTS: Mapping[str, Callable[[random.Random, Path], Action]] = {
    "runs": run_file, "stores": store, "report inputs": printed, "HTTP": http, "metrics": scrape,
}  # fmt: skip


@cache
def saved() -> dict[str, Path]:
    """A small sound result of every kind."""
    from tests.cli import run
    from tests.sweeps import made_sweeps

    folder = Path(mkdtemp(prefix="sound-"))
    load = ("--model", "Llama-3.1-8B", "--gpu", "H100", "--request-rate", "12", "--random-output-len", "8", "--num-prompts", "10")
    assert run("simulate", *load, "--draws", "3", "--out", str(folder / "run")).code == 0
    with made_sweeps.opened(folder / "store") as found:
        for place in range(4):
            found.put(place, made_sweeps.figures(place))
    plan = ("plan", *load, "--slo", "ttft:p99<2s tpot:p95<60ms", "--workers", "1", "--quick", "--json")
    _written(folder / "plan", run(*plan, "-o", str(folder / "plan file")).stdout)
    _written(folder / "map", run("what-if", "--ctx", "64K", "--map", "hbm", "--gpu", "H100", "--json").stdout)
    _written(folder / "claims", run("replicate", "gdn", "--json").stdout)
    scores = (Path(__file__).parents[2] / "docs/data/validate.csv").read_text().splitlines(keepends=True)
    _written(folder / "scores", "".join(scores[:30]))
    _written(folder / "validation", json.dumps(_validation(scores)))
    return {path.name: path for path in folder.iterdir()}


def _written(path: Path, text: str) -> None:
    assert text, path
    path.write_text(text)


def _validation(rows: list[str]) -> list[dict[str, Any]]:
    from simctl.report.of_validation import from_csv

    level = [0.5, 0.8, 0.9, 0.95]
    more = {"rates": "learnt", "fitted_to": ["low"], "notes": ["short"], "reliability": {"level": level, "ttft_s": level, "tpot_s": level}}
    return [each | more for each in from_csv("".join(rows[:30]))]


@cache
def _served() -> int:
    """The port of a `report --serve` that answers until this process ends."""
    from sim.results.run_files import read_run_dataset
    from simctl.report import serve
    from simctl.report.of_run import part_of
    from simctl.report.page import render

    record, dataset = read_run_dataset(saved()["run"])
    question = serve.question_of(dataset.attrs, saved()["run"] / "run.nc")
    answers = serve.Answers(serve.Question(question.given, question.sliders, 10))
    found = serve.server(serve.routes_of(render([part_of(record, dataset)], "", question), answers), 0)
    threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
    return int(found.server_address[1])


def _json_of(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError:
        return {}


def _metrics(rng: random.Random, count: int) -> str:
    engine, names = rng.choice((
        ("vllm", ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "request_success_total")),
        ("sglang", ("num_running_reqs", "num_queue_reqs", "token_usage", "num_requests_total")),
    ))  # fmt: skip
    lines = [f'{engine}:{name}{{engine="0"}} {count}' for name in (*names, "prompt_tokens_total", "generation_tokens_total")]
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds"):
        lines += [f'{engine}:{name}_bucket{{engine="0",le="{le}"}} {count * share}' for le, share in ((0.1, 0.5), (1.0, 1), ("+Inf", 1))]
        lines += [f"{engine}:{name}_sum {count * 0.2}", f"{engine}:{name}_count {count}"]
    return "\n".join(("# HELP x y", *lines, ""))


def _respoil(rng: random.Random, path: Path) -> None:
    """One to three attributes or variables of a netCDF file replaced, left out, or given another type, shape or value."""
    import h5py
    import numpy as np

    with h5py.File(path, "r+") as file:
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.4:
                name = rng.choice(sorted(name for name in file.attrs if not name.startswith("_NC")))
                if rng.random() < 0.15:
                    del file.attrs[name]
                else:
                    file.attrs[name] = rng.choice((*ODD, np.arange(3), np.arange(0.0), np.array([1])))
                continue
            name = rng.choice(sorted(file))
            values, edit = file[name][...], rng.randrange(7)
            if edit == 0:
                del file[name]
            elif edit == 1 and values.dtype.kind in "iuf":
                with np.errstate(all="ignore"):
                    _put(file, name, values.astype(rng.choice(TYPES)))
            elif edit == 2:
                _put(file, name, values[: len(values) // 2] if values.shape else values)
            elif edit == 3:
                _put(file, name, np.stack([values, values]))
            elif edit == 4:
                _put(file, name, values[:0] if values.shape else np.zeros(0))
            elif values.dtype.kind in "if" and values.size:
                values = values.astype(file[name].dtype)
                odd = (0, -1, 1e308, 1e-308, np.inf, np.nan) if values.dtype.kind == "f" else (0, -1, 2**31 - 1, -(2**31), 99)
                with np.errstate(all="ignore"):
                    values.flat[:: rng.choice((1, 3, 7))] = rng.choice(odd)
                file[name][...] = values
            elif values.size and values.dtype.kind == "O":
                values.flat[:: rng.choice((1, 3))] = rng.choice(("", "\x1b[2J", "é" * 3000, "</script>", "0"))
                file[name][...] = values


def _put(file: Any, name: str, values: Any) -> None:
    """A variable written anew, with the dimensions that still fit."""
    import h5py

    kept = dict(file[name].attrs)
    del file[name]
    made = file.create_dataset(name, data=values, dtype=h5py.string_dtype() if values.dtype.kind == "O" else None)
    for key, value in kept.items():
        if key not in ("DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME"):
            made.attrs[key] = value
