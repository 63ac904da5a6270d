"""`simctl watch` on two real vLLM servers: one that is killed is told, nothing hangs, and windows lie in their predicted intervals."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from hw.serve import load_patterns as load
from hw.serve.client import Target
from tests.cli import run
from tests.vllm_servers import MODEL, ROOT, VllmServer, deployment_words, vllm_servers

pytestmark = pytest.mark.slow
EVERY_S, LEARNING_S, KILLED_S, WATCHED_S = 15, 180, 480, 570
RATES = (0.3, 1.0)  # requests/s at each server, at the beginning and at the end
VOCAB = 8000


def learnt(url: str, folder: Path, words: list[str]) -> list[str]:
    """Options of rates learnt from a minute of the server's open loops."""
    asked = ["--url", url, "--model", MODEL, "--vocab-size", str(VOCAB), "--rates", "1,2", "--experiments", "open*", "-o", str(folder)]
    assert run("measure", "--hw", "cpu", "--suite", "served", *asked).code == 0
    file, out = folder / f"served_{MODEL}_url.nc", folder / "mine.nc"
    done = run("learn", str(file), *words, "--log-option", "kv-dtype=fp32", "--out", str(out), "--allow-unconverged")
    assert done.code == 0, done.stderr
    return ["--posterior", str(out)]


def rising(rng: np.random.Generator) -> list[float]:
    """Arrivals of a Poisson process whose rate rises along a line."""
    low, high = RATES
    at = np.cumsum(rng.exponential(1 / high, round(2 * high * WATCHED_S)))
    kept = rng.random(len(at)) < (low + (high - low) * at / WATCHED_S) / high
    return at[kept & (at < WATCHED_S)].tolist()


def loaded(server: VllmServer, number: int) -> threading.Thread:
    """A thread that sends the rising load to a server, and goes on when it is gone."""
    rng = np.random.default_rng(number)
    at = rising(rng)
    sizes = load.lognormal_sizes(len(at), rng, prompt_median=32, output_median=32, sigma=0.6, prompt_max=256, output_max=128)
    sending = load.open_loop(Target(server.url, MODEL), load.Prompts(VOCAB, number), at, sizes, 10**6 * number)
    thread = threading.Thread(target=asyncio.run, args=(sending,), daemon=True)
    thread.start()
    return thread


def test_minutes_lie_in_their_intervals_and_a_killed_server_is_told(tmp_path: Path) -> None:
    words = deployment_words(tmp_path)
    with vllm_servers(tmp_path, 2) as servers:
        rates = learnt(servers[0].url, tmp_path, words)
        asked = [*(s.url for s in servers), *words, "--kv-dtype", "fp32", *rates, "--every", str(EVERY_S), "--for", str(WATCHED_S)]
        asked += ["--slo", "ttft:p95<2s tpot:p95<200ms", "--random-length-cv", "0.6", "--json", "--port", "0", "--api-key-env", "THE_KEY"]
        command = [sys.executable, "-m", "simctl", "watch", *asked]
        env = dict(os.environ) | {"THE_KEY": "sk-very-secret", "PYTHONPATH": str(ROOT)}
        began = time.monotonic()
        threads = [loaded(server, number) for number, server in enumerate(servers)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as watching:
            assert watching.stdout is not None
            assert watching.stderr is not None
            page = watching.stderr.readline().strip()
            lines = []
            for line in watching.stdout:
                lines.append(line)
                if time.monotonic() - began > KILLED_S and servers[1].process.poll() is None:
                    with urllib.request.urlopen(f"{page}status.json", timeout=60) as answer:
                        status = json.load(answer)
                    servers[1].kill()
            err = watching.stderr.read()
            code = watching.wait(60)
        assert time.monotonic() - began < WATCHED_S + 60  # nothing hangs on a server that is gone
    for thread in threads:
        thread.join(60)
    reports = [json.loads(line) for line in lines]
    (tmp_path / "reports.jsonl").write_text("".join(lines))
    told = [alert for report in reports for alert in report["alerts"]]
    print(told)
    assert any(alert.startswith(f"{servers[1].url}: silent") for alert in told)
    assert not any(alert.startswith(f"{servers[0].url}: silent") for alert in told)
    assert (code, reports[-1]["servers_up"], status["servers_up"]) == (0, 1, 2)
    assert reports[-1]["forecast"] is not None
    assert "secret" not in err + "".join(lines)
    scored = [
        (metric, row["inside"], row["median_ms"] / row["predicted_ms"][1] >= 1 or row["median_ms"] / row["predicted_ms"][0] <= 1)
        for report in reports
        if LEARNING_S < report["at_s"] < KILLED_S
        for rows in report["seen"].values()
        for row in rows
        for metric in [row["metric"]]
    ]
    for metric in ("ttft", "tpot"):
        inside = [hit for name, hit, _ in scored if name == metric]
        strict = [not miss for name, _, miss in scored if name == metric]
        print(f"{metric}: {np.mean(inside):.2f} of {len(inside)} windows inside by buckets, {np.mean(strict):.2f} by their medians")
        assert len(inside) > 20
        # The goal is 0.85; on a machine at six times its cores 0.95 and 0.88. Of 40 windows chance alone gives less than 0.7 once in 1,800
        # times where 0.88 is true; test_recorded_servers_stay_inside_their_intervals.py holds the goal.
        assert np.mean(inside) >= 0.7
