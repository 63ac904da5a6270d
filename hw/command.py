"""The measuring command: `simctl measure`, and `python -m hw` from a bare checkout."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hw import preflight
from hw.cell_file import read_cells
from hw.engines.shapes import named, shape
from hw.jobs import MODEL_FREE, NEEDS_CUDA, OF_MODELS, SPREADS, SUITES, Job, run
from hw.processes import run_each, wait_until_told
from hw.products_file import read_products
from hw.serve.http_stream import split_url
from sim.errors import UsageError


@click.command("measure", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hw", "device", default="auto", show_default=True, help="Device: auto, cpu or cuda.")
@click.option("--suite", "suites", required=True, help=f"Suites, comma-separated: {', '.join(SUITES)}.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder for the result files.")
@click.option("--model", "models", default="", help="Model shapes, comma-separated; NAME:fp8 quantises. None for products: all bf16 ones.")
@click.option(
    "--budget", type=click.FloatRange(min=1), default=None, help="Seconds of measuring per suite and model, without engine start."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of prompts and ragged contexts.")
@click.option("--resume", is_flag=True, help="Keep the cells an interrupted run left and go on.")
@click.option("--expect-gpu", default=None, help="Refuse to run on any other GPU (part of its name, e.g. h100).")
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=256, show_default=True, help="Engine limit.")
@click.option("--max-num-batched-tokens", type=click.IntRange(min=16), default=8192, show_default=True, help="Engine limit.")
@click.option("--rates", default="1,4,10,20", show_default=True, help="Open-loop arrival rates of the served suite, requests/s.")
@click.option("--engine", type=click.Choice(("vllm", "llamacpp")), default="vllm", show_default=True, help="Engine of the served suite.")
@click.option(
    "--url", default=None, help="Served suite: load this OpenAI-compatible server instead of starting one; --model as it names it."
)
@click.option(
    "--vocab-size", type=click.IntRange(min=100), default=32000, show_default=True, help="Token ids of prompts sent to --url stay below."
)
@click.option("--experiments", default="", help="Only these experiments of the served suite: names or patterns, comma-separated.")
@click.option("--iterations", is_flag=True, help="Served suite, vLLM: also write down what every iteration carried, and when.")
@click.option(
    "--tp", "tensor_parallel", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs to spread a model over (engine-grid)."
)
@click.option("--fast-start", is_flag=True, help="vLLM without torch.compile: half the start time, other kernels. Recorded.")
@click.option(
    "--cells", type=click.Path(path_type=Path), help="Measure the cells of this file instead of the suite's own (engine-grid, profile)."
)
@click.option(
    "--products",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Suite products: measure those of this list (hw.products_list) instead of --model's.",
)
@click.option("--label", default=None, help="Ends the names of the files, as in served_MODEL_LABEL.nc: part of a suite is not the whole.")
@click.option("--when-told", is_flag=True, hidden=True, help="Import the engine, then wait for a line on standard input.")
def command(
    device: str,
    suites: str,
    out: Path,
    models: str,
    budget: float | None,
    seed: int,
    resume: bool,
    expect_gpu: str | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    rates: str,
    engine: str,
    url: str | None,
    vocab_size: int,
    experiments: str,
    iterations: bool,
    tensor_parallel: int,
    fast_start: bool,
    cells: Path | None,
    products: Path | None,
    label: str | None,
    when_told: bool,
) -> None:
    """Measure this machine into labelled files (netCDF, and CSV beside it).

    \b
    Suites:
      floor        copies, reads, matrix products, launches, host link, all-reduce
      kernels      our kernels beside the strongest alternatives present
      decode       whole decode steps by our kernels
      engine-grid  vLLM stepped in process, every iteration timed: for calibrate
      weight-axis  engine-grid of decodes only, up to long contexts: for knees
      profile      the kernels of the same iterations: where the GPU's time goes
      duty         prefill after quiet, decodes near prefill, the clock beside
      products     matrix products of a layer by rows: which sizes are slow
      served       a server under load: for validate, and for calibrate from a log

    \b
    Examples:
      simctl measure --suite engine-grid --model qwen2.5-7b -o out/
      simctl measure --suite served --url http://HOST:8000 --model NAME -o out/

    A suite cut short keeps what it had, marked finished = 0. Card settings are read, never changed.
    """
    if cells is not None:
        if _names(suites) not in (["engine-grid"], ["profile"]):
            raise UsageError("--cells is for the suite engine-grid or profile, alone")
        meant, _ = read_cells(cells)
        models = models or meant or ""
    if products is not None:
        if _names(suites) != ["products"]:
            raise UsageError("--products is for the suite products, alone")
        if _names(models):
            raise UsageError("--products and --model both say what to measure: give one of them")
        read_products(products)
    if url is not None:
        if iterations:
            raise UsageError("--iterations needs a server of our own: --url has one already")
        job = _job_by_url(url, device, _names(suites), models, vocab_size)
        more = {"rates": _rates(rates), "experiments": tuple(_names(experiments)), "budget_s": budget, "seed": seed, "label": label}
        for path in run(replace(job, **more, expect_gpu=expect_gpu), out, resume=resume):
            click.echo(path)
        return
    found = preflight.resolve_device(device)
    jobs = []
    for suite in _names(suites):
        if suite not in SUITES:
            raise UsageError(f"unknown suite {suite!r}; known: {', '.join(SUITES)}")
        if suite in NEEDS_CUDA and found != "cuda":
            raise UsageError(f"suite {suite} needs a CUDA device")
        targets = [None] if suite in MODEL_FREE | OF_MODELS else _names(models)
        if not targets:
            raise UsageError(f"suite {suite} needs --model")
        for target in targets:
            name, _, quantization = (target or "").partition(":")
            if name:
                name = named(name)
                shape(name)
            if tensor_parallel > 1 and suite not in SPREADS:
                raise UsageError(f"suite {suite} runs on one GPU; --tp is for {', '.join(sorted(SPREADS))}")
            limits = {
                "max_num_seqs": max_num_seqs,
                "max_num_batched_tokens": max_num_batched_tokens,
                "fast_start": fast_start,
                "tensor_parallel": tensor_parallel,
                "label": label,
            }
            limits |= {"models": _shapes(models), **_listed(products)} if suite in OF_MODELS else {}
            served: dict[str, Any] = {"rates": _rates(rates), "experiments": tuple(_names(experiments)), "engine": engine}
            if iterations and (suite != "served" or engine != "vllm"):
                raise UsageError("--iterations is for the suite served and engine vllm")
            served |= {"iterations": iterations}
            served |= {"cells": str(cells.resolve()) if cells else None}
            jobs.append(Job(suite, found, name or None, quantization or None, budget, seed, expect_gpu, **served, **limits))
    if when_told and not wait_until_told(jobs[0]):
        return
    if len(jobs) == 1:
        for path in run(jobs[0], out, resume=resume):
            click.echo(path)
        return
    sys.exit(run_each(jobs, out, resume=resume))


def _shapes(text: str) -> tuple[str, ...]:
    """Model shapes for one job, each once. Raises UsageError for an unknown one, and for a quantised one."""
    found = tuple(dict.fromkeys(named(name) for name in _names(text)))
    for name in found:
        if ":" in name:
            raise UsageError(f"{name}: suite products measures weights in the model's own dtype")
        shape(name)
    return found


def _listed(products: Path | None) -> dict[str, Any]:
    """A job's fields for a list of products."""
    if products is None:
        return {}
    return {"products": str(products.resolve()), "products_sha256": hashlib.sha256(products.read_bytes()).hexdigest()}


def _job_by_url(url: str, device: str, suites: list[str], model: str, vocab_size: int) -> Job:
    """A served job against a running server. `--hw cpu` asks for the plan of a slow server."""
    if suites != ["served"]:
        raise UsageError("--url is for the suite served alone")
    if not model.strip() or "," in model:
        raise UsageError("--url needs --model: one model, as the server names it")
    url = url.rstrip("/").removesuffix("/v1")  # either is how people write it
    try:
        split_url(url)
    except ValueError as error:
        raise UsageError(f"--url: {error}") from None
    return Job("served", "cpu" if device == "cpu" else "cuda", model.strip(), url=url, vocab_size=vocab_size)


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(part) for part in _names(text))
    except ValueError:
        rates = (0.0,)
    if not rates or min(rates) <= 0:
        raise UsageError(f"--rates wants positive numbers, comma-separated: {text!r}")
    return rates
