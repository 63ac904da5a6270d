"""What can be handed to simctl from outside, by kind: sound files of every layout, and what reads them."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.hostile.mutate import NASTY, altered, as_json, damaged, nudged

ROWS = 12
Reader = Callable[[Path], Any]


def yaml_changed(rng: random.Random, body: str) -> bytes:
    """A sound YAML text damaged as bytes or as data, half the time only by numbers far from its own."""
    return damaged(rng, body.encode()) if rng.random() < 0.3 else as_json(rng.choice((altered, nudged, nudged))(rng, yaml.safe_load(body)))


def changed(rng: random.Random, body: Any) -> bytes:
    """A sound body damaged: text as bytes, plain data half the time as data."""
    if isinstance(body, str):
        return damaged(rng, body.encode())
    text = as_json(altered(rng, body) if rng.random() < 0.7 else body)
    return text if rng.random() < 0.7 else damaged(rng, text)


def lines_changed(rng: random.Random, rows: list[Any]) -> bytes:
    """JSON lines of which one row or two are altered; now and then the bytes as well."""
    out = [as_json(row) for row in rows]
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(rows))
        out[at] = as_json(altered(rng, rows[at]))
    text = b"\n".join(out) + b"\n"
    return text if rng.random() < 0.7 else damaged(rng, text)


def log(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from calibrate.logs.read import read_log

    name, body = rng.choice(LOGS)
    path = folder / name
    path.write_bytes(lines_changed(rng, body) if isinstance(body, list) else changed(rng, body))
    timeout_s, block = rng.choice((None, 30.0)), rng.choice((512, 16))
    return lambda: read_log(path, timeout_s, block)


def trace(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from tests.cli import run

    kind = rng.choice([*TRACES, "log"])
    body = rng.choice(LOGS) if kind == "log" else TRACES[kind]
    path = folder / ("trace" if kind != "log" else body[0])
    if kind == "log":
        path.write_bytes(lines_changed(rng, body[1]) if isinstance(body[1], list) else changed(rng, body[1]))
    elif kind == "servegen":
        path.mkdir(exist_ok=True)
        one = rng.random() < 0.5
        (path / "chunk-0-trace.csv").write_bytes(damaged(rng, SERVEGEN_TRACE.encode()) if one else SERVEGEN_TRACE.encode())
        (path / "chunk-0-dataset.json").write_bytes(as_json(SERVEGEN_DATA) if one else changed(rng, SERVEGEN_DATA))
    else:
        lines = isinstance(body, list) and not kind.startswith("sharegpt")
        path.write_bytes(lines_changed(rng, body) if lines else changed(rng, body))
    more = rng.choice(((), (), ("--out", str(folder / "run")), ("--admission", "skip-too-long")))
    return lambda: run("simulate", "--trace", str(path), "--trace-format", kind, *MODEL, "--draws", "0", "--json", *more)


def scenario(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from tests.cli import run

    path = folder / "study.yaml"
    path.write_bytes(yaml_changed(rng, rng.choice(SCENARIOS)))
    if rng.random() < 0.02:
        return lambda: run("run", str(path))
    return lambda: run("run", str(path), "--dry-run", *rng.choice(((), ("--allow-code",))))


def gpu(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from tests.cli import run

    path = folder / "gpu.yaml"
    path.write_bytes(yaml_changed(rng, GPU))
    return lambda: run("gpus", str(path), *rng.choice(((), ("--json",), ("--yaml",))))


def fleet(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from tests.cli import run

    path = folder / "fleet.yaml"
    body = rng.choice(FLEETS)
    path.write_bytes(yaml_changed(rng, body))
    more = rng.choice(((), ("--out", str(folder / "run"))))
    load = ("--num-prompts", "6", "--request-rate", "4", "--random-input-len", "64", "--random-output-len", "4")
    return lambda: run("simulate", "--fleet", str(path), *load, "--draws", "0", "--json", *more)


def topology(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from tests.cli import run

    path = folder / "topology.yaml"
    path.write_bytes(yaml_changed(rng, TOPOLOGY))
    card, stages = rng.choice((("A10", "2"), ("H100", "8"), ("L40S", "4"))), rng.choice(("1", "2"))
    where = ("--gpu", card[0], "--tp", card[1], "--parallel", f"topology={path}", "--parallel", f"pp={stages}")
    return lambda: run("what-if", "--ctx", "8K", "--model", "Llama-3.1-8B", *where, "--json")


def curve(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from tests.cli import run

    path = folder / "curve.csv"
    path.write_bytes(damaged(rng, b"# a day\nhour,rate\n0,0.5\n8,2\n20,1\n"))
    return lambda: run("simulate", "--num-prompts", "3", "--rate-curve", str(path), *MODEL, "--draws", "0", "--json")


def posterior(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from sim.rates.posterior import rates_from_file
    from sim.specs.gpus import get_gpu

    path = folder / "posterior.nc"
    if rng.random() < 0.4:
        path.write_bytes(damaged(rng, _whole_posterior()))
    else:
        write_posterior(path, rng.choice(("A10", "population")), lambda attrs, variables: _spoilt(rng, attrs, variables))
    return lambda: rates_from_file(path, get_gpu("A10"), draws=20, tp=rng.choice((1, 2)))


def model(rng: random.Random, folder: Path) -> Callable[[], Any]:
    from sim.specs.models import catalogue_config, list_models
    from tests.cli import run

    path = folder / "config.json"
    path.write_bytes(changed(rng, catalogue_config(rng.choice(list_models()))))
    what_if = ("what-if", "--ctx", "8K", "--gpu", "A10", "--model", str(path), "--json")
    return lambda: run(*what_if) if rng.random() < 0.1 else run("models", str(path), "--json")


def options(rng: random.Random, folder: Path) -> Callable[[], Any]:
    """A command line of which one option or two have a wrong value."""
    from tests.cli import run

    command, sound = rng.choice(COMMANDS)
    arguments = dict(sound)
    sound_pool = ("1e-9", "1e9", "1e-3", "0", "1", "2", "7", "300", "inf", "0.5")
    wild = rng.random() < 0.5
    for name in rng.sample(list(arguments), rng.randint(1, 2)):
        own = arguments[name]
        pool: list[Any] = [*NASTY, own * 2, own + ",", "-" + own, "a:b", "x=y", "1:1", "knee:nan", "*", "9K"]
        value = rng.choice(pool if wild else sound_pool)
        head, equals, _ = own.partition("=")
        text = f"{head}={value}" if equals and not wild else str(value)
        arguments[name] = text[:6000].replace("\ud800", "\udcff")
    return lambda: run(command, *(part for name, value in arguments.items() for part in _typed(command, name, value)))


def _typed(command: str, name: str, value: str) -> tuple[str, str]:
    """An option of a scenario as a command line has it."""
    from simctl.options.file_options import options_by_name, parser_of
    from simctl.options.option_groups import Setting

    option = options_by_name(parser_of(command))[name]
    return (option.group, f"{name}={value}") if isinstance(option, Setting) else (f"--{name}", value)


OF_INPUTS: Mapping[str, Callable[[random.Random, Path], Callable[[], Any]]] = {
    "logs": log, "traces": trace, "scenarios": scenario, "GPU files": gpu, "rate curves": curve, "posteriors": posterior,
    "model configs": model, "options": options, "fleets": fleet, "topologies": topology,
}  # fmt: skip
SERVED = {"model": "Llama-3.1-8B", "gpu": "A10", "num-prompts": "3", "draws": "0"}
MODEL = ("--model", "Llama-3.1-8B", "--gpu", "A10", "--max-model-len", "auto")
COMMANDS = (
    ("simulate", {
        **SERVED, "random-input-len": "64", "random-output-len": "4", "seed": "1", "request-rate": "4", "burstiness": "1",
        "max-concurrency": "2", "random-length-cv": "0.5", "random-prefix-len": "16", "turns": "1", "think-time": "1", "dtype": "bf16",
        "kv-dtype": "bf16", "tp": "1", "engine": "vllm", "max-num-seqs": "8", "max-num-batched-tokens": "512",
        "gpu-memory-utilization": "0.9", "engine-option": "async_scheduling=true", "attention": "dense", "block-size": "16",
        "max-model-len": "4096", "num-gpu-blocks": "2000", "long-prefill-token-threshold": "0", "host-rate": "token_s=0", "replicas": "1",
        "router": "lmetric", "router-option": "snapshot_s=1", "max-queue": "5", "token-bucket": "1000:1000", "admit-ttft": "100",
        "goodput": "ttft:100", "goal": "p99_ttft_ms<=9", "scheduling-policy": "fcfs",
    }),
    ("simulate", {
        **SERVED, "random-input-len": "64", "engine": "sglang", "max-num-seqs": "8",
        "max-num-batched-tokens": "512", "engine-option": "schedule_policy=fcfs", "block-size": "16",
    }),
    ("simulate", {
        "model": "Llama-3.1-8B", "gpu": "A10", "draws": "0", "agent-sessions": "2", "turns": "2", "think-time": "1", "request-rate": "4",
        "rate-curve": "servegen-day", "random-prefix-len": "16", "agent-opening-len": "64", "random-input-len": "16",
        "random-output-len": "4", "agent-edited-share": "0.5", "agent-opening-cv": "0.5",
        "agent-subagents": "0.5", "agent-compact-at": "2048", "max-model-len": "8192",
    }),
    ("simulate", {**SERVED, "engine": "llamacpp", "engine-option": "n_ubatch=64"}),
    ("what-if", {
        "ctx": "8K", "gpu": "A10", "model": "Llama-3.1-8B", "k": "8", "batch": "1,2", "dtype": "bf16", "kv-dtype": "bf16", "tp": "1",
        "engine": "vllm", "max-num-seqs": "8", "max-num-batched-tokens": "512", "gpu-memory-utilization": "0.9", "seed": "1",
    }),
    ("what-if", {"ctx": "64K", "map": "hbm", "gpu": "A10", "model": "Llama-3.1-8B", "k": "8", "seed": "1", "tp": "1", "dtype": "bf16"}),

)  # fmt: skip

_PROMPTS, _OUTPUTS = [100 + 7 * i for i in range(ROWS)], [5 + i for i in range(ROWS)]
_BENCH = {
    "model_id": "m", "request_rate": "inf", "burstiness": 1.0, "max_concurrency": None, "input_lens": _PROMPTS, "output_lens": _OUTPUTS,
    "ttfts": [0.1] * ROWS, "itls": [[0.01] * (n - 1) for n in _OUTPUTS],
    "errors": [""] * ROWS, "start_times": [1000.0 + i for i in range(ROWS)],
}  # fmt: skip
_GUIDE = {
    "benchmarks": [{"requests": {
        "successful": [
            {"request_start_time": 1e9 + i, "first_token_iteration": 1e9 + i + 0.1, "request_end_time": 1e9 + i + 0.5,
             "prompt_tokens": 100, "output_tokens": 20}
            for i in range(ROWS)
        ],
        "incomplete": [{"request_start_time": 1e9 + 1, "request_end_time": 1e9 + 6, "prompt_tokens": 50}],
        "errored": [{"request_start_time": 1e9 + 2, "request_end_time": 1e9 + 6, "prompt_tokens": 50}],
    }}]
}  # fmt: skip
_AIPERF = [
    {
        "metadata": {"session_num": i, "benchmark_phase": "profiling", "request_start_ns": 10**18 + i * 10**9,
                     "request_end_ns": 10**18 + i * 10**9 + 5 * 10**8, "was_cancelled": i == 3},
        "metrics": {
            "time_to_first_token": {"value": 100.0, "unit": "ms"}, "request_latency": {"value": 500.0, "unit": "ms"},
            "input_sequence_length": {"value": 100, "unit": "tokens"}, "output_sequence_length": {"value": 20, "unit": "tokens"},
        },
        "error": {"type": "timeout"} if i == 4 else None,
    }
    for i in range(ROWS + 2)
]  # fmt: skip
_HEAD = "arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s,gave_up_s"
_CSV = f"{_HEAD}\n" + "".join(f"{i},100,20,{i + 0.1},{i + 0.5},\n" for i in range(ROWS))
_CSV_SHARED = f"{_HEAD},cached_tokens,prefix_ids\n" + "".join(f"{i},100,20,{i + 0.1},{i + 0.5},,5,a b\n" for i in range(ROWS))
_CSV_SESSIONS = f"{_HEAD},session\n" + "".join(f"{i},100,20,{i + 0.1},{i + 0.5},,s{i % 3}\n" for i in range(ROWS))
LOGS: tuple[tuple[str, Any], ...] = (
    ("bench.json", _BENCH), ("bench2.json", {**_BENCH, "start_times": None, "request_rate": 4.0}),
    ("bench3.json", {**_BENCH, "start_times": None, "max_concurrency": 4}), ("guide.json", _GUIDE), ("aiperf.jsonl", _AIPERF),
    ("log.csv", _CSV), ("shared.csv", _CSV_SHARED), ("sessions.csv", _CSV_SESSIONS),
)  # fmt: skip

_TALKS = [
    {"id": str(i), "conversations": [{"from": "human", "value": "What is it? " * 5}, {"from": "gpt", "value": "It is. " * 9}] * 2}
    for i in range(4)
]
SERVEGEN_TRACE = "0,0.01,1.0,Gamma,1.0,1.0\n600,0.01,1.0,Weibull,1.0,1.0\n1200,0.01,1.0,,,\n"
SERVEGEN_DATA = {
    "0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{5: 1.0}"},
    "21600": {"input_tokens": "{9: 1}", "output_tokens": "{5: 1}"},
}
TRACES: dict[str, Any] = {
    "jsonl": [
        {"arrival_s": 0.0, "prompt_tokens": 40, "output_tokens": 4, "session_id": "a", "turn": 0},
        {"prompt_tokens": 90, "output_tokens": 4, "session_id": "a", "turn": 1, "think_s": 1.0},
        {"arrival_s": 1.0, "output_tokens": 4, "prompt_token_ids": [1, 2, 3] * 12, "priority": 2, "request_id": "r"},
        {"arrival_s": 2, "prompt_tokens": 40, "output_tokens": 4, "block_hashes": [1, "b", 3], "block_size": 16},
    ],
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:17:0{i}.9799600,{48 + i},10\n" for i in range(5)),
    "mooncake": [{"timestamp": 3000 * i, "input_length": 700, "output_length": 5, "hash_ids": [1, i]} for i in range(4)],
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    + "".join(f"{i},m,40,{i % 2},41,x\n" for i in range(5)),
    "sharegpt": _TALKS,
    "sharegpt-sessions": _TALKS,
    "custom": [{"prompt": "Say that again. " * 4, "output_tokens": 5}, {"prompt": "No."}],
    "servegen": None,
    "otel": {"resourceSpans": [{"scopeSpans": [{"spans": [
        {"spanId": f"{i}", "startTimeUnixNano": f"{10**18 + i * 10**9}", "endTimeUnixNano": f"{10**18 + i * 10**9 + 10**8}", "attributes": [
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "40"}},
            {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 5}},
            {"key": "gen_ai.conversation.id", "value": {"stringValue": "c"}}]} for i in range(3)]}]}]},
    "weka": [{"id": "s", "block_size": 16, "requests": [
        {"t": 0.0, "type": "s", "in": 40, "out": 5, "hash_ids": [1, 2, 3], "api_time": 0.5},
        {"t": 1.0, "type": "subagent", "requests": [{"t": 0.0, "in": 20, "out": 3, "hash_ids": [1]}]},
        {"t": 2.0, "type": "s", "in": 60, "out": 5, "hash_ids": [1, 2, 3, 4], "api_time": 0.5}]}],
    "agents": [
        {"session_id": f"s{i}", "turns": [
            {"prompt_tokens": 50 * (t + 1), "completion_tokens": 5, "completed_at": f"2025-01-01T00:00:0{t + i}+00:00"} for t in range(3)]}
        for i in range(2)
    ],
}  # fmt: skip
SCENARIOS = (
    "question: How fast?\ncommand: what-if\noptions: {ctx: 8K, gpu: A10}\nreport: [knee.batch]\n",
    "question: Which batch cap?\ncommand: simulate\noptions:\n  gpu: A10\n  num-prompts: 3\n  goodput: [ttft:200, tpot:50]\n"
    "  goal: p99_ttft_ms<=2000\nsweep:\n  max-num-seqs: [8, 32]\n  seed: [1, 2]\nreport: [p99_ttft_ms]\n",
    "question: How many?\ncommand: plan\noptions:\n  gpu: [A10, H100]\n  model: Llama-3.1-8B\n  tp: [1, 2]\n  num-prompts: 20\n"
    "  request-rate: 2\n  slo: [ttft:p99<2s, tpot:p95<60ms]\n  pools: [one, split]\n  most-gpus: 8\n  quick: true\nreport: []\n",
    "question: Where?\ncommand: what-if\noptions: {map: hbm, ctx: 64K, gpu: A10, model: Llama-3.1-8B}\nsweep: {tp: [1, 2]}\nreport: []\n",
)
_POOL = "gpu: A10, model: Llama-3.1-8B, max-model-len: 4096"
FLEETS = (
    f"pools:\n  - {{name: in, role: prefill, replicas: 2, {_POOL}, router: prefix-affinity, link: rdma-400, overlap: true}}\n"
    f"  - {{name: out, role: decode, replicas: 2, {_POOL}, link: 12.5, reserve-tokens: 64, fetch: most, max-in-flight: 2}}\n"
    "network: {latency-s: 0.00001, shared-gb-s: 100}\nkv-store: {gb: 10, gb-s: 5}\n"
    "events: [{at-s: 1, pool: out, replica: 1, action: fail}, {at-s: 2, pool: out, replica: 1, action: start}]\n",
    f"pools:\n  - name: chat\n    {_POOL.replace(', ', chr(10) + '    ')}\n    replicas: 1\n    max-replicas: 3\n    router: lmetric\n"
    "    router-options: {snapshot_s: 0.1}\n    tenants: {a: 1, b: 2}\n    max-in-flight: 2\n"
    "    scaling: {signal: requests, target: 3, least: 1, cold-start-s: 1, period-s: 1, down-after-s: 5}\n"
    "retries: {most: 2, after-s: 0.5}\non-failure: lose\nevents: [{at-s: 1, pool: chat, replica: 0, action: fail}]\n",
    f"pools:\n  - {{name: short, max-prompt-tokens: 64, {_POOL}, engine: sglang}}\n  - {{name: long, {_POOL}, max-num-seqs: 4}}\n",
)
TOPOLOGY = "gpus_per_node: 8\nnvlink_domain: 1\npcie: host\npcie_roots: 2\nnetwork: 50.0e+9\nnetwork_latency_s: 60.0e-6\n"
GPU = """
name: Mine
memory_bytes: 24.0e+9
memory_bandwidth: 600.0e+9
flops: {bf16: 125.0e+12}
host_link_bandwidth: 26.0e+9
unified_memory: false
price_per_hour: 1.5
price_date: 2025-11
aliases: [my card]
source: a sheet
"""


def _whole_posterior() -> bytes:
    from sim.rates.posterior import packaged_posterior

    path = packaged_posterior("A10")
    assert path is not None
    return path.read_bytes()


def write_posterior(path: Path, name: str, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """A thinned posterior after `change` of its attributes and variables {name: (dims, values)}, with the digest that they now have."""
    import h5netcdf
    import numpy as np

    from sim.rates.posterior import digest, packaged_posterior

    packaged = packaged_posterior(name)
    assert packaged is not None
    with h5netcdf.File(packaged, "r") as file:
        group = file.groups["posterior"]
        attrs: dict[str, Any] = {name: value for name, value in file.attrs.items() if name != "digest"}
        found = {n: (v.dimensions, np.asarray(v[...])) for n, v in group.variables.items() if n not in group.dimensions}
    variables = {n: (dims, values[:2, :5] if dims[:1] == ("chain",) else values) for n, (dims, values) in found.items()}
    change(attrs, variables)
    with h5netcdf.File(path, "w") as file:
        group = file.create_group("posterior")
        for dims, values in variables.values():
            for dim, size in zip(dims, values.shape, strict=True):
                if dim not in group.dimensions:
                    group.dimensions[dim] = size
        written = {}
        for name, (dims, values) in variables.items():
            if all(group.dimensions[dim].size == size for dim, size in zip(dims, values.shape, strict=True)):
                group.create_variable(name, dims, data=values)
                written[name] = values
        for name, value in attrs.items():
            file.attrs[name] = value
        file.attrs["digest"] = digest({k: v.item() if isinstance(v, np.generic) else v for k, v in attrs.items()}, written)


def _spoilt(rng: random.Random, attrs: dict[str, Any], variables: dict[str, Any]) -> None:
    import numpy as np

    odd: tuple[Any, ...] = (
        0, -1, 2.5, np.nan, np.inf, "", "x", "[]", "{}", "null", "1", "[" * 3000, "9" * 5000, '{"beta": null}', np.arange(3),
        np.arange(0.0),
        np.array([1]), np.array(["a", "b"], dtype=object), np.bytes_(b"\xff"), np.int64(2**62),
    )  # fmt: skip
    for _ in range(rng.randint(0, 2)):
        name = rng.choice(list(attrs))
        if rng.random() < 0.4 and name in ("basis", "source") and str(attrs[name]).startswith("{"):
            attrs[name] = as_json(altered(rng, json.loads(attrs[name]))).decode() if len(str(attrs[name])) > 20 else "x"
        elif rng.random() < 0.1:
            del attrs[name]
        else:
            attrs[name] = rng.choice(odd)
    for _ in range(rng.randint(0, 2)):
        name = rng.choice(list(variables))
        dims, values = variables[name]
        edit = rng.randrange(8)
        if edit == 0:
            del variables[name]
        elif edit == 1:
            with np.errstate(all="ignore"), contextlib.suppress(ValueError):  # text that was cut is no number
                variables[name] = (dims, values.astype(rng.choice(("i8", "i1", "f4", "u1", "S3", "c16"))))
        elif edit == 2 and values.ndim > 1:
            variables[name] = (("draw", "chain", *dims[2:]), values.swapaxes(0, 1))
        elif edit == 3:
            variables[name] = (("chain",), values.reshape(len(values), -1)[:, 0])
        elif edit == 4:
            variables[name] = ((*dims, "more"), values[..., None].repeat(3, axis=-1))
        elif edit == 5:
            variables[name] = (("chain", f"few{name}"), values.reshape(len(values), -1)[:, :2])
        elif values.dtype.kind == "f":
            spoilt = values.astype("f8")
            spoilt.flat[3::7] = rng.choice((0, -1, 1e308, 1e-308, np.inf))
            variables[name] = (dims, spoilt)
