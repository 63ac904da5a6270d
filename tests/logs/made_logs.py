"""Logs made by the simulator at known rates, in the layouts of other tools."""

import csv
import io
import json
from dataclasses import replace

import numpy as np

from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from calibrate.steps.random_rates import calibration_priors, value
from sim.cost.rates import UNITS, RateDraws, Rates
from sim.rates.serving import host_of_log
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Limits

GPU = get_gpu("H100")
PRIORS = calibration_priors(GPU, Precision())
LIMITS = Limits(max_num_seqs=256, max_num_batched_tokens=8192)
RUN = ServedRun("made", GPU, get_model("Qwen2.5-7B"), Precision(), LIMITS, 1, "the simulator", ())
HOST = host_of_log(8e-3, text=True)
NOISE = {"ttft": 0.05, "tpot": 0.01}  # log sd of single requests


def rates_at(scores):
    """Rates whose standard scores are `scores` by name, 0 elsewhere."""
    return Rates(**{name: float(value(PRIORS[name], scores.get(name, 0.0))) for name in UNITS})


def made(rates, seed=0, count=240, rates_per_s=(2.0, 10.0), host=HOST):
    """An open loop at a low and a higher rate, mixed lengths, with noise on single requests."""
    rng = np.random.default_rng(seed)
    gaps = np.concatenate([rng.exponential(1 / r, count // len(rates_per_s)) for r in rates_per_s])
    arrival = np.cumsum(gaps) - gaps[0]
    n = len(arrival)
    prompt, output = rng.integers(100, 6000, n), rng.integers(20, 200, n)
    blank = Experiment("made", "open", arrival, prompt, output, np.ones(n), np.full(n, 2.0), text=True)
    seen = replay(RUN, blank, RateDraws(rates, rates), host, draws=0)
    ttft = seen.ttft_s * np.exp(NOISE["ttft"] * rng.standard_normal(n))
    rest = (seen.e2el_s - seen.ttft_s) * np.exp(NOISE["tpot"] * rng.standard_normal(n))
    return replace(blank, ttft_s=ttft, e2el_s=ttft + rest)


def as_bench_serve(e, **changes):
    """`vllm bench serve --save-result --save-detailed`."""
    gaps = [
        [float(t)] * int(n - 1) for t, n in zip((e.e2el_s - e.ttft_s) / np.maximum(e.output_tokens - 1, 1), e.output_tokens, strict=True)
    ]
    body = {
        "date": "20260101-000000",
        "endpoint_type": "vllm",
        "model_id": "qwen2.5-7b",
        "num_prompts": len(e.ttft_s),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": None,
        "request_throughput": 1.0,
        "input_lens": e.prompt_tokens.tolist(),
        "output_lens": e.output_tokens.tolist(),
        "ttfts": e.ttft_s.tolist(),
        "itls": gaps,
        "generated_texts": [""] * len(gaps),
        "errors": [""] * len(gaps),
        "start_times": (1000 + e.arrival_s).tolist(),
    }
    return {k: v for k, v in (body | changes).items() if v is not None or k == "max_concurrency"}


def as_guidellm(e, version=4):
    """GuideLLM benchmarks.json, layout of 0.3 or 0.4."""
    names = (
        ("start_time", "first_token_time", "end_time")
        if version < 4
        else ("request_start_time", "first_token_iteration", "request_end_time")
    )
    rows = [
        dict(zip(names, (1e9 + a, 1e9 + a + t, 1e9 + a + w), strict=True)) | {"prompt_tokens": int(p), "output_tokens": int(o)}
        for a, t, w, p, o in zip(e.arrival_s, e.ttft_s, e.e2el_s, e.prompt_tokens, e.output_tokens, strict=True)
    ]
    return {"benchmarks": [{"requests": {"successful": rows, "incomplete": [], "errored": []}}]}


def as_aiperf(e):
    """AIPerf profile_export.jsonl."""
    lines = []
    for i in range(len(e.ttft_s)):
        start = 10**18 + round(1e9 * e.arrival_s[i])
        metrics = {
            "time_to_first_token": {"value": 1e3 * e.ttft_s[i], "unit": "ms"},
            "request_latency": {"value": 1e3 * e.e2el_s[i], "unit": "ms"},
            "input_sequence_length": {"value": int(e.prompt_tokens[i]), "unit": "tokens"},
            "output_sequence_length": {"value": int(e.output_tokens[i]), "unit": "tokens"},
        }
        meta = {"session_num": i, "benchmark_phase": "profiling", "request_start_ns": start, "was_cancelled": False}
        meta["request_end_ns"] = start + round(1e9 * e.e2el_s[i])
        lines.append(json.dumps({"metadata": meta, "metrics": metrics, "error": None}))
    return "\n".join(lines) + "\n"


def as_csv(e, gave_up=None):
    """Our own columns; `gave_up` maps a request's place to how long its client waited."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s", "gave_up_s"])
    for i in range(len(e.ttft_s)):
        a = float(e.arrival_s[i])
        waited = (gave_up or {}).get(i)
        times = ["", "", a + waited] if waited else [a + float(e.ttft_s[i]), a + float(e.e2el_s[i]), ""]
        writer.writerow([a, int(e.prompt_tokens[i]), int(e.output_tokens[i]), *times])
    return text.getvalue()
