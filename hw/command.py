"""The measuring command: `simctl measure`, and `python -m hw` from a bare checkout."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import click

from hw import jobs
from hw.cells import read_cells
from hw.engines.shapes import named, shape
from hw.gemm_lists import read_gemms
from hw.jobs import SUITES, Job
from hw.machine import resolve_device
from hw.serve.http_stream import OURS, split_url
from sim.errors import SimctlError, UsageError, ending
from sim.specs.lookup import did_you_mean

KEY = "OPENAI_API_KEY"
HELP = """Measure this machine, or a running server, into labelled netCDF files, which `python -m hw.show FILE` prints as CSV.

\b
Suites:
{}

\b
Examples:
  simctl measure --suite engine-grid --model qwen2.5-7b -o out/
  simctl measure --suite served --model qwen3-14b --tp 2 -o out/
  simctl measure --suite served --url http://HOST:8000 --model NAME -o out/
  simctl measure --suite served --url https://HOST/v1 --endpoint chat \\
      --model NAME -o out/

A suite cut short keeps what it had, marked finished = 0. Card settings are read, never changed.
""".format("\n".join(f"  {name:12} {suite.about}" for name, suite in SUITES.items()))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(part) for part in _names(text))
    except ValueError:
        rates = (0.0,)
    if not rates or min(rates) <= 0:
        raise UsageError(f"--rates wants positive numbers, comma-separated: {text!r}")
    return rates


@click.command("measure", help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hw", "device", default="auto", show_default=True, help="Device: auto, cpu or cuda.")
@click.option("--suite", "suites", required=True, help="Suites, comma-separated.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder for the result files.")
@click.option("--model", "models", default="", help="Model shapes, comma-separated. None for products: all bf16 ones.")
@click.option("--quantization", default=None, help="Of the weights: fp8 (by the engine), or as a checkpoint is: gptq, awq, fp8-block.")
@click.option("--tp", "tensor_parallel", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs a model is split over.")
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Served suite: servers behind vllm-router.")
@click.option(
    "--prefill", type=click.IntRange(min=0), default=0, help="Served suite: of --replicas, this many only prefill; the others decode."
)
@click.option("--budget-s", type=click.FloatRange(min=1), help="Seconds of measuring per suite and model, without the engine's start.")
@click.option("--dry-run", is_flag=True, help="Print the jobs and about how long they take; measure nothing.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of prompts and ragged contexts.")
@click.option("--resume", is_flag=True, help="Keep the cells an interrupted run left and go on.")
@click.option("--expect-gpu", default=None, help="Refuse to run on a GPU without this in its name, e.g. h100.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=256, show_default=True, help="Engine limit.")
@click.option("--max-num-batched-tokens", type=click.IntRange(min=16), default=8192, show_default=True, help="Engine limit.")
@click.option("--rates", default="1,4,10,20", show_default=True, help="Open-loop arrival rates of the served suite, requests/s.")
@click.option("--experiments", default="", help="Only these experiments of the served suite: names or patterns, comma-separated.")
@click.option(
    "--client", type=click.Choice(("tokens", "text")), default="tokens", show_default=True,
    help="Served suite: our client with token ids, or another plan in which `vllm bench serve` sends text beside it.",
)  # fmt: skip
@click.option("--engine", type=click.Choice(("vllm", "sglang")), default="vllm", show_default=True, help="Served suite: engine to start.")
@click.option("--iterations", is_flag=True, help="Served suite: also record the content and time of every iteration.")
@click.option("--engine-args", default="", help="More arguments of the engine's command line, as one string.")
@click.option("--url", help="Served suite: load this OpenAI-compatible server instead of starting one; --model as it names it.")
@click.option(
    "--vocab-size",
    type=click.IntRange(min=100),
    default=32000,
    show_default=True,
    help="Size of the vocabulary of --url: token ids stay below it.",
)
@click.option(
    "--endpoint", type=click.Choice(("completions", "chat")), default="completions", show_default=True,
    help="What to call at --url; chat takes text alone.",
)  # fmt: skip
@click.option(
    "--prompts", type=click.Choice(("tokens", "text")),
    help="Send --url token ids, or random words and what all providers take, counted by their usage. [default: as --endpoint]",
)  # fmt: skip
@click.option(
    "--api-key-env", metavar="NAME",
    help=f"Variable that holds the key for --url, sent as Bearer and kept nowhere. [default over https: {KEY}, if set]",
)  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Header for --url, stored nowhere; may be repeated.")
@click.option("--cells", type=click.Path(path_type=Path), help="Engine-grid and profile: measure the cells of this file instead.")
@click.option(
    "--products", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Suite products: measure those of this list (python -m hw.gemm_lists) instead of --model's.",
)  # fmt: skip
@click.option("--label", default=None, help="Suffix of the file names, as in served_MODEL_LABEL.nc, for part of a suite.")
def command(
    device: str, suites: str, out: Path, models: str, dry_run: bool, resume: bool, rates: str, experiments: str, cells: Path | None,
    products: Path | None, prompts: str | None, api_key_env: str | None, headers: tuple[str, ...], **options: object,
) -> None:  # fmt: skip
    """See HELP."""
    wanted = tuple(suite.replace("_", "-") for suite in _names(suites))
    for suite in wanted:
        if suite not in SUITES:
            raise UsageError(f"unknown suite {suite!r}{did_you_mean(suite, SUITES) or ';'} known: {', '.join(SUITES)}")
    if cells is not None:
        if wanted not in (("engine-grid",), ("profile",)):
            raise UsageError("--cells is for the suite engine-grid or profile, alone")
        models = models or read_cells(cells)[0] or ""
    if products is not None:
        if wanted != ("products",) or _names(models):
            raise UsageError("--products is for the suite products, alone and without --model")
        read_gemms(products)
    template = Job(
        "", "", rates=_rates(rates), experiments=_names(experiments), cells=str(cells.resolve()) if cells else None,
        products=str(products.resolve()) if products else None, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    if template.url is not None:
        template = replace(template, prompts=prompts or ("text" if template.endpoint == "chat" else "tokens"))
        job = by_url(template, device, wanted, models)
        found = [replace(job, headers=headers_of(str(job.url), headers, api_key_env))]
    elif prompts or api_key_env or headers or template.endpoint != "completions":
        raise UsageError("--endpoint, --prompts, --api-key-env and --header are for --url")
    else:
        device = resolve_device(device)
        found = [job for suite in wanted for job in jobs_of(replace(template, suite=suite, device=device), _names(models))]
    if dry_run:
        for job in found:
            click.echo(f"{job.stem}: {SUITES[job.suite].about}; {job.estimate}")
        click.echo(f"in all about {sum(sum(job.seconds) for job in found)} s")
    elif len(found) == 1:
        for path in jobs.run(found[0], out, resume=resume):
            click.echo(path)
    else:
        sys.exit(run_each(found, out, resume=resume))


def jobs_of(template: Job, models: tuple[str, ...]) -> list[Job]:
    """The jobs of one suite. Raises UsageError for what it does not take."""
    name, suite = template.suite, SUITES[template.suite]
    if suite.cpu is None and template.device != "cuda":
        raise UsageError(f"suite {name} needs a CUDA device")
    if not suite.engine and (template.tensor_parallel > 1 or template.quantization):
        raise UsageError(f"suite {name} takes no --tp and no --quantization; {', '.join(n for n, s in SUITES.items() if s.engine)} do")
    if name != "served" and (template.iterations or template.client != "tokens" or template.replicas > 1):
        raise UsageError("--iterations, --client and --replicas are for the suite served")
    if template.engine != "vllm" and (
        name != "served" or template.device != "cuda" or template.replicas > 1 or template.iterations or template.client != "tokens"
    ):
        raise UsageError(f"--engine {template.engine} is for the suite served on one CUDA server, without --iterations and --client text")
    if not suite.engine and template.engine_args:
        raise UsageError(f"suite {name} starts no engine: --engine-args is for {', '.join(n for n, s in SUITES.items() if s.engine)}")
    if template.replicas > 1 and (template.device != "cuda" or template.iterations):
        raise UsageError("--replicas needs CUDA devices, and --iterations one server")
    if template.prefill and template.prefill >= template.replicas:
        raise UsageError(f"--prefill {template.prefill} of --replicas {template.replicas} leaves none to answer")
    models = tuple(dict.fromkeys(map(named, models)))
    for model in models:
        shape(model)
    if suite.models == "none":
        return [template]
    if suite.models == "all":
        return [replace(template, models=models)]
    if not models:
        raise UsageError(f"suite {name} needs --model")
    return [replace(template, model=model) for model in models]


def by_url(template: Job, device: str, suites: tuple[str, ...], model: str) -> Job:
    """A served job against a running server. `--hw cpu` asks for the plan of a slow server."""
    if suites != ("served",):
        raise UsageError("--url is for the suite served alone")
    ours = template.iterations or template.client != "tokens" or template.engine_args or template.replicas > 1
    if ours or template.engine != "vllm":
        raise UsageError("--iterations, --client text, --engine, --engine-args, --replicas need a server of our own: --url has one")
    if (template.endpoint, template.prompts) == ("chat", "tokens"):
        raise UsageError("--endpoint chat takes no token ids: --prompts text")
    if not model.strip() or "," in model:
        raise UsageError("--url needs --model: one model, as the server names it")
    url = str(template.url).rstrip("/").removesuffix("/v1")  # either is how people write it
    try:
        split_url(url)
    except ValueError as error:
        raise UsageError(f"--url: {error}") from None
    return replace(template, suite="served", device="cpu" if device == "cpu" else "cuda", model=model.strip(), url=url)


def headers_of(url: str, given: tuple[str, ...], key_env: str | None) -> dict[str, str]:
    """Header fields with the key. What they hold is in no message. The default key goes out encrypted or not at all."""
    found = {}
    for number, text in enumerate(given, 1):
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) or not _sendable(value) or name.lower() in OURS:
            raise UsageError(f"--header {number} is not 'NAME: VALUE' in printable ASCII, or a field that the client sets itself")
        found[name.title()] = value
    key = os.environ.get(key_env or KEY, "").strip() if key_env or url.startswith("https:") else ""
    if not _sendable(key) or (key_env and not key):
        raise UsageError(f"--api-key-env: {key_env or KEY} {'is not printable ASCII' if key else 'is not set'}")
    return ({"Authorization": f"Bearer {key}"} if key else {}) | found


def _sendable(value: str) -> bool:
    return value.isascii() and value.isprintable()


def run_each(found: list[Job], out: Path, *, resume: bool) -> int:
    """Do jobs one after the other, each in a process of its own, whatever becomes of each. Returns the worst exit status."""
    worst = 0
    for job in found:
        try:
            for path in jobs.run_apart(job, out, resume=resume):
                click.echo(path)
        except (SimctlError, OSError) as error:
            code, text = ending(error)
            click.echo(f"{job.stem}: {text}", err=True)
            worst = max(worst, code)
    return worst
