"""`python -m studies.predict_served`: what the served suite will see of a model, as CSV, to be written down before it is run."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from fnmatch import fnmatch

import click
import numpy as np

from calibrate.measurement import precision_of
from calibrate.served.flags import read_flags
from calibrate.served.replay import METRICS, replay
from calibrate.served.runs import Experiment, ServedRun
from hw.engines.adapters import SHARE
from hw.engines.sglang_server import FLAGS
from hw.engines.shapes import CHECKPOINTS, named, shape
from hw.exits import call
from hw.suites import served_plan
from hw.suites.served import BLOCK_TOKENS, BURST, STARVED_BLOCKS
from sim.errors import UsageError
from sim.rates.host import Host
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead
from sim.specs.gpus import get_gpu
from sim.specs.hf_config import spec_from_config
from sim.study.deployment import Deployment, blocks_in
from sim.workload.content import SystemPrompt

OF = ("gpu", "model", "weight_dtype", "tp", "replicas", "prefill", "engine_args", "experiment")
LIMITS = "--max-num-seqs 256 --max-num-batched-tokens 8192 "  # the suite's own
COLUMNS = (*OF, "metric", "median_ms", "median_low_ms", "median_high_ms", "mean_ms")


def predicted(d: Deployment, load: served_plan.PlannedLoad, draws: int, speed: Host | None, **of: str | int) -> list[dict[str, str]]:
    """One row per metric: the median over requests at the median rates, its 90 % interval over draws, the mean. Milliseconds."""
    overhead = packaged_overhead(engine=d.limits.engine)
    assert load.load is not None
    assert overhead is not None
    if speed is not None:
        overhead = overhead.elsewhere(speed.eager() if d.limits.enforce_eager else speed)
    arrivals, sizes = load.load
    prompts, outputs = np.array(sizes).T
    none, count = np.full(len(arrivals), np.nan), len(arrivals)
    texts = [f"{i % load.n}: {i // load.n % load.documents}" if load.documents else "all" for i in range(count)]
    experiment = Experiment(
        load.name, load.kind, np.array(arrivals), prompts, outputs, none, none, clients=load.n if load.kind == "closed" else 0,
        rate_per_s=load.rate_per_s, content=tuple(SystemPrompt(text, load.shared_tokens) for text in texts) if load.shared_tokens else (),
    )  # fmt: skip
    if load.kind == "sessions":  # as if a turn took a second with its pause: what is simulated keeps the pause alone
        turn, taken = np.arange(count) // load.n, np.full(count, 1.0 - served_plan.THINK_S)
        experiment = replace(experiment, arrival_s=turn.astype(float), e2el_s=taken, session=np.arange(count) % load.n)
    if load.kind == "burst":
        blocks = BLOCK_TOKENS * STARVED_BLOCKS["cuda"] // d.limits.block_size
        experiment = replace(experiment, limits=replace(d.limits, num_gpu_blocks=blocks))
    replicas, prefill = int(of["replicas"]), int(of["prefill"])
    run = ServedRun(
        "",
        d.gpu,
        d.model,
        d.precision,
        d.limits,
        d.tp,
        d.limits.engine,
        (experiment,),
        replicas=replicas,
        prefill=prefill,
        parallel=d.parallel,
    )
    rates = load_rates(d)
    found = replay(run, experiment, overhead.applied(rates), overhead.host(rates), draws=draws)
    rows = []
    for metric in METRICS:
        medians = np.nanmedian(found.times[metric], axis=1) * 1e3
        figures = (np.nanmedian(found.guess(metric)) * 1e3, *np.quantile(medians, (0.05, 0.95)), np.nanmean(found.guess(metric)) * 1e3)
        row = {"gpu": d.gpu.name, "model": d.model.name, "weight_dtype": of["weights"] or d.precision.weights, "tp": d.tp, **of}
        row |= {"experiment": load.name, "metric": metric.removesuffix("_s")}
        rows.append(dict(zip(COLUMNS, (*(str(row[name]) for name in (*OF, "metric")), *(f"{f:.2f}" for f in figures)), strict=True)))
    return rows


def loads(vocab: int, rates: tuple[float, ...], patterns: str) -> list[served_plan.PlannedLoad]:
    """The loads of the suite's plan that the patterns name, each once."""
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    every = served_plan.plan(vocab, 0, rates, served_plan.GPU_PLAN) + served_plan.named_only(vocab, 0, served_plan.GPU_PLAN)
    every.append(served_plan.burst(vocab, 0, *BURST["cuda"]))
    found = [each for each in every if each.load and not each.replicate and any(fnmatch(each.name, pattern) for pattern in wanted)]
    if not found:
        raise UsageError(f"--experiments {patterns!r} names none of: {', '.join(each.name for each in every if each.load)}")
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--gpu", required=True)
@click.option("--model", "models", required=True, help="Model shapes, comma-separated; NAME:fp8, NAME:awq for other weights.")
@click.option("--rates", default="2,10", show_default=True, help="Open loops, requests/s, as --rates of the suite.")
@click.option("--experiments", default="open *", show_default=True, help="Loads by name or pattern, as --experiments of the suite.")
@click.option("--engine", type=click.Choice(("vllm", "sglang")), default="vllm", show_default=True, help="As --engine of the suite.")
@click.option("--engine-args", default="", help="Further words of the engine's command line, as --engine-args of the suite.")
@click.option("--tp", default=1, show_default=True, type=click.IntRange(1))
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1), help="Servers behind a router.")
@click.option("--prefill", default=0, type=click.IntRange(0), help="Of them only read prompts.")
@click.option("--host-scale", default=None, help="Time of the host over that of the measured ones, or the file of the suite host.")
@click.option("--draws", default=32, show_default=True, type=click.IntRange(2, 1000))
def main(
    gpu: str, models: str, rates: str, experiments: str, engine: str, engine_args: str, tp: int, replicas: int, prefill: int,
    host_scale: str | None, draws: int,
) -> None:  # fmt: skip
    """Predict what `--suite served` sends with the same words: from the packaged rates and serving overhead alone."""
    sheet = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    sheet.writeheader()
    rates_per_s = tuple(float(rate) for rate in rates.split(","))
    speed = None if host_scale is None else Host.of(host_scale)
    words = " ".join(FLAGS.get(word, word) if engine == "sglang" else word for word in (LIMITS + engine_args).split())
    flags = read_flags(words, SHARE, engine)
    said = engine_args if engine == "vllm" else f"--engine {engine} {engine_args}".strip()
    kv = re.search(r"--kv-cache-dtype[= ](\w+)", engine_args)
    for text in models.split(","):
        name, _, dtype = text.partition(":")
        config = shape(named(name)) | ({"quantization_config": CHECKPOINTS[dtype]} if dtype in CHECKPOINTS else {})
        precision = precision_of({"weight_dtype": dtype or "bf16", "kv_dtype": kv[1] if kv else "bf16"})
        d = Deployment(spec_from_config(config, name, "shape"), get_gpu(gpu), precision, tp, flags.limits, parallel=flags.parallel)
        if flags.pool_bytes:
            d = replace(d, limits=replace(flags.limits, num_gpu_blocks=blocks_in(d, flags.pool_bytes)))
        for load in loads(config["vocab_size"], rates_per_s, experiments):
            sheet.writerows(predicted(d, load, draws, speed, weights=dtype, replicas=replicas, prefill=prefill, engine_args=said))
            sys.stdout.flush()


if __name__ == "__main__":
    call(main, "python -m studies.predict_served")
