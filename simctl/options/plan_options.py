"""Options of `simctl plan`: what it decides, beside those of `simctl simulate`."""

from __future__ import annotations

import click

from simctl.options.option_types import CURVE, DURATION, Parsed
from simctl.options.shared_options import grouped
from simctl.options.simulate_options import SECTIONS as OF_SIMULATE
from simctl.options.simulate_options import SIMULATE, GoodputCommand

# Options that take several values here
MANY = ("gpu", "tp", "dtype", "kv_dtype", "attention", "router", "max_num_seqs", "max_num_batched_tokens")
LEFT_OUT = ("replicas", "fleet_file", "goal", "draws", "iterations", "out", "plot", "chrome_trace", "as_json", *MANY)
MOST_STOCK = 1_000_000
EMITS = ("vllm", "compose", "k8s", "kserve", "llm-d", "dynamo", "ray")  # those of sim.planning.emitters, which is slow to import


def _values(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(found):
        raise ValueError
    return found


def _stock(text: str) -> dict[str, int]:
    pairs = [part.split("=") for part in text.split(",")]
    found = {name.strip(): int(count) for name, count in pairs}
    if len(found) < len(pairs) or not all(0 <= count <= MOST_STOCK for count in found.values()):
        raise ValueError
    return found


def _workers(text: str) -> int | str:
    if text.startswith(("tcp://", "tls://")):
        return text
    if not 1 <= int(text) <= 256:
        raise ValueError
    return int(text)


WORKERS = Parsed("n|address", _workers, "neither 1 to 256 processes nor a Dask scheduler at tcp://HOST:PORT or tls://HOST:PORT")


def _all_stock(_: click.Context, __: click.Parameter, given: tuple[dict[str, int], ...]) -> dict[str, int] | None:
    """The GPUs of all inventories."""
    found: dict[str, int] = {}
    for each in given:
        if twice := found.keys() & each:
            raise click.BadParameter(f"{min(twice)} has two numbers")
        found |= each
    return found or None


STOCK = Parsed("gpu=n[,...]", _stock, "not GPUs with one number each, as H100=16,L40S=24")
VALUES = Parsed("a[,b...]", _values, "not values with commas between them")
SECTIONS = {
    "What to decide": ("slo", "goodput", "gpu", "tp", "dtype", "kv-dtype", "attention", "router", "max-num-seqs", "max-num-batched-tokens",
                       "vary", "pools", "reserve", "for", "day", "growth", "most-gpus", "most-kw", "inventory", "price"),
    **{title: tuple(name for name in names if name.replace("-", "_") not in (*LEFT_OUT, "goodput", "fleet"))
       for title, names in OF_SIMULATE.items()},
    "Answer": ("compare", "plot", "emit", "quick", "within", "more-time", "workers", "progress", "seed", "out", "json"),
}  # fmt: skip


@click.command("plan", cls=GoodputCommand, sections=SECTIONS)
@grouped(
    click.option(
        "--slo", multiple=True, metavar="CONDITIONS", help="Conditions that must all hold: ttft:p99<2s tpot:p95<50ms failed<1% good>=99%."
    ),
    click.option("--gpu", type=VALUES, help="GPUs to choose among: H100,L40S."),
    click.option(
        "--tp",
        type=VALUES,
        help="GPUs per replica to choose among: 1,2. [default: 1; if that does not hold the model, the fewest that do, and twice as many]",
    ),
    click.option("--dtype", type=VALUES, help="Weight dtypes to choose among: bf16,fp8. [default: the checkpoint's, else 16 bits]"),
    click.option("--kv-dtype", type=VALUES, help="KV-cache dtypes to choose among. [default: 16 bits]"),
    click.option("--attention", type=VALUES, help="Attention policies to choose among: dense,pages:64. [default: dense]"),
    click.option("--router", type=VALUES, default="round-robin", show_default=True, help="Routers to choose among."),
    click.option("--max-num-seqs", type=VALUES, help="Batch caps to choose among. [default: the engine's]"),
    click.option("--max-num-batched-tokens", type=VALUES, help="Token budgets to choose among. [default: the engine's]"),
    click.option(
        "--vary",
        multiple=True,
        metavar="NAME=VALUE,VALUE",
        help="Values of a setting of --parallel, --engine-option or the engine to choose among: pp=1,2, draft_tokens=0,2.",
    ),
    click.option(
        "--pools",
        type=VALUES,
        default="one",
        show_default=True,
        help="Kinds of pools to choose among: one, prefill-decode, split (short prompts apart from long ones; the threshold is searched); "
        "of a ratio: prefill-decode:3x2.",
    ),
    click.option(
        "--reserve",
        type=click.Choice(["none", "replica", "node"]),
        default="none",
        show_default=True,
        help="Also buy what the loss of one replica, or of a node, takes from each pool.",
    ),
    click.option("--for", "for_s", type=DURATION, metavar="TIME", help="How long the load lasts: 90s, 30m, 1h. [default: without end]"),
    click.option(
        "--day",
        type=CURVE,
        metavar="NAME",
        help="Plan for the busiest hour of this rate curve, and say what every hour needs: servegen-day.",
    ),
    click.option(
        "--growth",
        type=click.FloatRange(1.0, 100.0, min_open=True),
        metavar="TIMES",
        help="Load in a year over today's: print what each month needs, and what to reserve.",
    ),
    click.option("--most-gpus", type=click.IntRange(1, 16384), default=64, show_default=True, help="Most GPUs of a deployment."),
    click.option(
        "--inventory",
        type=STOCK,
        multiple=True,
        callback=_all_stock,
        help="Available GPUs: H100=16,L40S=24. Several scenarios take from them in their order.",
    ),
    click.option("--most-kw", type=click.FloatRange(0.0, min_open=True), help="Highest sum of the power limits of a deployment's GPUs."),
    click.option(
        "--price",
        multiple=True,
        metavar="GPU=USD|FILE|market",
        help="Price per GPU-hour, a YAML file of them, or the median of many providers, instead of the catalogue's list price.",
    ),
    click.option(
        "--within",
        type=DURATION,
        metavar="TIME",
        default="60s",
        show_default=True,
        help="CPU seconds of all processes together, after which the plan answers with what it knows.",
    ),
    click.option(
        "--workers",
        type=WORKERS,
        metavar="N|ADDRESS",
        help="Processes, or the Dask scheduler at tcp://HOST:PORT or tls://HOST:PORT. [default: one per core]",
    ),
    click.option("--compare", is_flag=True, help="Print the cheapest deployment of each GPU side by side."),
    click.option(
        "--plot", type=click.Path(), metavar="FILE", help="With --compare: draw tok/s per GPU over tok/s per user (PNG, SVG, PDF)."
    ),
    click.option("--emit", type=click.Choice(EMITS), help="Print what starts the winner: commands, or a deployment file of that kind."),
    click.option("--quick", is_flag=True, help="Only find the cheapest; skip what more money buys, the highest rate and what to measure."),
    click.option("--progress/--no-progress", default=None, help="Report progress on stderr. [default: on a terminal; else every 10 s]"),
    click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON."),
)
def PARSER() -> None:
    """Reads the options; answers nothing."""


PARSER.params += [option for option in SIMULATE if option.name not in LEFT_OUT]
