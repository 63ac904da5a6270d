"""Options of `simctl what-if`."""

from __future__ import annotations

import click

from sim.specs.decode_stack import STACKS
from simctl.options.option_groups import Sectioned
from simctl.options.option_types import BATCHES, PAUSE, TOKENS
from simctl.options.shared_options import deployment_options, host_option, limit_options, rate_options, served_option, users_option

OUTPUT_TOKENS = 128  # that of sim.closed_form.serving_at_context, which takes long to import


@click.command("what-if", cls=Sectioned, sections={})
@click.option("--ctx", "context", type=TOKENS, help="Context length, prompt and answer: 8192, 128K, 1M (K = 2**10, M = 2**20).")
@deployment_options
@limit_options
@users_option
@click.option("--think-time", type=PAUSE, help="Time that each of --users thinks between requests: 30s. [default: 0]")
@click.option("--random-input-len", type=TOKENS, help="Instead of --ctx: prompt tokens; the output tokens come on top.")
@click.option("--random-output-len", type=TOKENS, help=f"Output tokens of an answer, at the context's end. [default: {OUTPUT_TOKENS}]")
@click.option("--batch", "batches", type=BATCHES, help="Users at once, comma-separated. [default: 1; of a map 1 to 32]")
@click.option("--sparse", is_flag=True, help="Also compare sparse attention. [default: from 64K tokens on, or with --k, --map or --stack]")
@click.option("--k", "ks", type=BATCHES, help="Selection budgets in blocks of 128 tokens. [default: 8,16,32; of a map 8]")
@click.option(
    "--map",
    "kv_in",
    type=click.Choice(["hbm", "host"]),
    help="Map where sparse decode beats dense, over batch and contexts from 8K to --ctx, with the KV cache in hbm or host.",
)
@click.option(
    "--stack",
    type=click.Choice(list(STACKS)),
    help="What runs a decode step. [default: kernels if they run the model and --ctx is 64K or more or --k or --map given; else vllm]",
)
@rate_options
@served_option
@host_option
@click.option("--draws", type=click.IntRange(20, 100_000), help="Draws behind the 5-95 % intervals. [default: 1000; of a map 500]")
@click.option("--explain", is_flag=True, help="Print all selections, and the sources of the answer.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON on stdout.")
@click.option("--plot", metavar="FILE", help="Also draw tok/s over context, with intervals (PNG, SVG or PDF).")
@click.option("--out", metavar="FILE", help="Also write the step times of every option at every draw (netCDF).")
def PARSER() -> None:
    """Reads the options; answers nothing."""
