"""`simctl simulate`: a workload through a simulated engine."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sim.files import writable
from simctl import __version__
from simctl.options.option_groups import SettingGroup
from simctl.options.simulate_options import ARGUMENTS, SECTIONS, SIMULATE, GoodputCommand


@click.command("simulate", cls=GoodputCommand, sections=SECTIONS, params=SIMULATE)
def command(**options: Any) -> None:
    """Serve a workload on simulated engine replicas.

    Continuous batching with chunked prefill under one token budget, paged KV blocks, prefix caching, preemption by
    recompute: vLLM's decisions, iteration by iteration, each with its own step time. Figures are named as in `vllm bench
    serve`: TPOT is (E2EL - TTFT) / (output tokens - 1); ITL is per gap, pooled over requests.

    \b
    Examples:
      simctl simulate --trace trace.csv --trace-format azure --gpu H100
      simctl simulate --gpu A10 --model Qwen2.5-7B --max-model-len 32k \\
          --num-prompts 500 --request-rate 2 --goodput ttft:500 tpot:50 \\
          --out out/run1
    """
    from sim.files import replaced_directory
    from sim.results.run_files import RUN_FILE, SUMMARY_FILE, summary_json, write_run
    from simctl.from_options.answers import simulated, summary_of
    from simctl.from_options.questions import simulate_of
    from simctl.report.picture_files import plot_target

    out: Path | None = options["out"]
    chrome, plot = writable(options["chrome_trace"]), plot_target(options["plot"])
    staged = replaced_directory(out, (RUN_FILE, SUMMARY_FILE)) if out is not None else nullcontext(None)
    with staged as directory:
        question = simulate_of(options)
        run = simulated(replace(question, keep_iterations=question.keep_iterations or chrome is not None or plot is not None))
        summary = summary_of(run, options["seed"]) if out is not None or options["as_json"] else {}
        if directory is not None:
            write_run(directory, run.to_xarray(simctl_version=__version__, seed=options["seed"], options=_given()), summary)
        if chrome is not None:
            from sim.results.chrome_trace import write_chrome_trace

            write_chrome_trace(chrome, run.record)
        if plot is not None:
            from simctl.report import of_run, picture_files

            picture_files.plot(list(of_run.over_time(run.record, run.config.num_gpu_blocks)), plot)
    if options["as_json"]:
        click.echo(summary_json(summary))
        return
    from simctl.text.simulate_text import render, uncompiled

    render(run, options["explain"])
    if hint := uncompiled(run):
        click.echo(hint, err=True)
    for path in ([out / RUN_FILE, out / SUMMARY_FILE] if out is not None else []) + [each for each in (chrome, plot) if each]:
        click.echo(f"wrote {path}", err=True)


def _given() -> str:
    """The options of the command line as they were given, as JSON: what simulates the same again. Null where a file is named: a run does
    not say where files lie.
    """
    import json

    from simctl.options.file_options import options_by_name

    arguments = click.get_current_context().meta.get(ARGUMENTS, ())
    given, _, _ = command.make_parser(click.Context(command)).parse_args(list(arguments))
    for group in command.params:
        if isinstance(group, SettingGroup):
            found, rest = group.split(given.pop(group.name or "", ()))
            given |= found | ({group.name: rest} if rest else {})
    names = {option.name: name for name, option in options_by_name(command).items()}

    def kept(value: Any) -> Any:
        named = [part for part in (value, value.rpartition(":")[0]) if part] if isinstance(value, str) else []
        return None if any(Path(part).exists() for part in named) else value

    return json.dumps({names[key]: kept(value) for key, value in given.items() if key in names}, sort_keys=True)
