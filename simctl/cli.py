"""The `simctl` command group. Each command lives in its own module and is imported only when it is asked for."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any

import click

from sim import termination
from sim.errors import INTERRUPTED, SimctlError, UsageError, ending
from sim.specs.lookup import did_you_mean
from simctl import __version__

# command name -> (module, one-line help); the help stands here so that `simctl --help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "what-if": ("simctl.commands.what_if_command", "Can this GPU serve this context, how fast, and what binds?"),
    "simulate": ("simctl.commands.simulate_command", "Serve a workload, replayed or drawn, on simulated engine replicas."),
    "watch": ("simctl.commands.watch_command", "A running server beside its twin: predicted latency, and when its SLO breaks."),
    "check": ("simctl.commands.check_command", "Is my server as fast as it should be? By logs of it; if not, why."),
    "explain": ("simctl.commands.explain_command", "Where the time of a simulated request went, in parts that add up."),
    "calibrate": ("simctl.commands.calibrate_command", "Learn the rates of a GPU from measurements, with held-out error."),
    "learn": ("simctl.commands.learn_command", "Learn the rates behind a served log, request by request."),
    "design": ("simctl.commands.design_command", "Which cells to measure next for one decision."),
    "plan": ("simctl.commands.plan_command", "Find the cheapest deployment that meets an SLO, and with what probability."),
    "sweep": ("simctl.commands.sweep_command", "Answer a scenario at many cells, on all cores or on Dask, into one zarr store."),
    "run": ("simctl.commands.run_command", "Answer the question of a scenario file, over its whole sweep."),
    "measure": ("hw.command", "Measure this machine: floors, an engine iteration by iteration, a server under load."),
    "gates": ("hw.gates_of_servers", "Do two running servers say the same? Top-1 agreement, KL, perplexity."),
    "loop": ("simctl.commands.loop_command", "Close the loop on this machine: measure, calibrate, predict, measure again."),
    "replicate": ("simctl.commands.replicate_command", "Published reports, claim by claim: what they say and what we get."),
    "validate": ("simctl.commands.validate_command", "How wrong are we on served runs the calibration never saw?"),
    "report": ("simctl.commands.report_command", "Saved results as one HTML file with interactive pictures."),
    "models": ("simctl.commands.models_command", "List the model catalogue, or show one model."),
    "gpus": ("simctl.commands.gpus_command", "List the GPU catalogue, or show one GPU."),
    "cache": ("simctl.commands.cache_command", "Show or clear the cache of machine code."),
}


class LazyGroup(click.Group):
    """A click group that imports a command's module on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[name][0]).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion for a mistyped name."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise UsageError(f"no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}; see simctl --help")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, without its empty line where nobody has typed Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if termination.came():
                raise click.Abort from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="simctl")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="End what takes longer, with exit code 124.")
@click.option("--max-memory", type=click.FloatRange(0, min_open=True), metavar="GB", help="Refuse a question that needs more, by process.")
def group(timeout: float | None, max_memory: float | None) -> None:
    """Simulate, calibrate and measure LLM serving.

    One formula prices every engine iteration; its rates come with intervals, and so do the answers.
    Token counts take binary suffixes: 8K is 8192, 1M is 2**20 = 1048576.

    Exit codes: 0 ok, 1 the model or a check says no, 2 usage; 130 interrupted, 143 terminated.
    """
    try:
        if max_memory is not None:
            termination.bounded(int(max_memory * 1e9))
        if timeout is not None:
            termination.within(timeout)
    except (AttributeError, ImportError):
        raise UsageError("--timeout and --max-memory need a POSIX system") from None


def main(argv: list[str] | None = None) -> Any:
    """Entry point: run the group, and turn any expected failure into one line on stderr and its exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # starting threads takes a tenth of a what-if, and no matrix here is large
    gc.set_threshold(100_000)  # requests are many objects and no circles: looking for those took a quarter of reading a trace
    try:
        with termination.as_interruption():
            return _ended(group.main(args=argv, prog_name="simctl", standalone_mode=False) or 0)
    except click.exceptions.Exit as stop:
        sys.exit(_ended(stop.exit_code))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt, click.ClickException, SimctlError, OSError, OverflowError, MemoryError) as error:
        code, text = ending(error)
        click.echo(f"simctl: {text}", err=True)
        sys.exit(code)


def _ended(code: Any) -> Any:
    """The exit code of a command that has said itself that it was interrupted: that of what did it."""
    outside = termination.came()
    return outside[0] if outside and code == INTERRUPTED else code
