"""`simctl calibrate`: learn the rates of a GPU from measurements, with held-out error, and write a posterior."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.files import writable
from simctl.options import DURATION, GOAL, GPU, MODEL, Sectioned

if TYPE_CHECKING:
    from calibrate.steps.report import Calibration

TUNE, TARGET_ACCEPT = 200, 0.9
# A few cells on top of the hierarchy over GPUs leave shares near their peaks, where steps must be small.
CAREFUL, CAREFUL_DRAWS = 0.98, 2000
LOGS = (".json", ".jsonl", ".csv")
# A dozen starts hardly tell three kinds of memory apart, nor two texts how much texts differ: chains mix slowly, and draws are cheap.
DRAWS = {"capacity": 4000, "recall": 3000, "rates": 600}


SECTIONS = {
    "Learn rates": (
        "hw", "engine", "from", "out", "folds", "worst", "draws", "chains", "seed", "thin", "from-datasheet",
        "allow-unconverged",
    ),
    "Measure first, then learn": ("collect", "cells"),
    "Learn from a served log (--from LOG)": (
        "model", "experiment", "dtype", "tp", "max-num-seqs", "max-num-batched-tokens", "prefix-block",
        "max-concurrency", "assume-prefix", "timeout",
    ),
    "Judge a posterior on grids it has not seen (--predict)": ("predict", "posterior"),
    "Choose which cells to measure (--budget and --for)": (
        "budget", "for", "allow-code", "metric", "goal", "sims", "cells-out",
    ),
    "Learn something else": ("kv-capacity", "recall"),
}  # fmt: skip


@click.command("calibrate", cls=Sectioned, sections=SECTIONS)
@click.option("--hw", type=GPU, metavar="GPU", help="The GPU: a catalogue name or alias; cpu with --collect.")
@click.option(
    "--from",
    "given",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Engine grid (.nc; may be repeated) or a served log (.json, .jsonl, .csv). [default: the GPU's packaged grids]",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the posterior here (InferenceData netCDF).")
@click.option("--list", "list_only", is_flag=True, help="List packaged measurements and posteriors, then stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--draws",
    type=click.IntRange(100),
    help="Draws per chain.  [default: 600, and 1200 where a gate fails with those; from the hierarchy 2000; 4000 with "
    "--kv-capacity, 3000 with --recall]",
)
@click.option("--chains", default=4, show_default=True, type=click.IntRange(2), help="Chains.")
@click.option("--seed", default=0, show_default=True, help="Seed of the sampler, the folds and the predictive draws.")
@click.option("--folds", default=5, show_default=True, type=click.IntRange(0), help="Folds of held-out cells; 0 skips them.")
@click.option(
    "--worst", default=0, show_default=True, type=click.IntRange(0), help="Also list so many held-out or predicted cells, worst first."
)
@click.option("--thin", type=click.IntRange(100), help="Keep about this many draws in all, as float32 (packaged files).")
@click.option("--allow-unconverged", is_flag=True, help="Write the posterior even when a gate fails, marked as unconverged.")
@click.option("--model", type=MODEL, help="The model it served: catalogue name or config.json. With --collect: the shape to measure.")
@click.option("--experiment", help="Which experiment, where LOG is a served measurement of ours (.nc).")
@click.option("--dtype", default="bf16", show_default=True, help="Weight dtype.")
@click.option("--tp", "-tp", default=1, show_default=True, type=click.IntRange(1, 64), help="GPUs per replica.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Engine limit it was taken under. [default: vLLM's]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Engine limit it was taken under. [default: vLLM's]")
@click.option("--engine", help="Only grids of this engine; of a served log, whose scheduler replays it.  [default: any; of a log vllm]")
@click.option("--prefix-block", default=512, show_default=True, type=click.IntRange(1), help="Tokens that one of prefix_ids stands for.")
@click.option("--max-concurrency", type=click.IntRange(1), metavar="N", help="Requests the benchmark kept in flight. [default: as it says]")
@click.option("--assume-prefix", type=click.IntRange(0), default=0, metavar="N", help="Tokens all prompts began with, if unsaid.")
@click.option("--timeout", type=DURATION, help="How long clients waited, where the log does not say; failures are then censored.")
@click.option(
    "--collect", type=click.Path(path_type=Path), metavar="DIR", help="Measure this machine into DIR: --hw cpu, or the GPU it has."
)
@click.option("--cells", type=click.Path(path_type=Path), help="Measure the cells of this file (see --cells-out) instead of a whole grid.")
@click.option("--budget", type=DURATION, metavar="TIME", help="Seconds of measuring to spend (90, 120s, 2m); with --collect, too.")
@click.option(
    "--for",
    "scenario",
    metavar="SCENARIO",
    type=click.Path(path_type=Path),
    help="The scenario whose decision the cells are for: a file, or the name of one that comes with simctl.",
)
@click.option("--allow-code", is_flag=True, help="Let that scenario name a scheduler class of its own, as `simctl run` does.")
@click.option("--metric", help="The figure that decides. [default: the first one the scenario reports]")
@click.option("--goal", type=GOAL, metavar="METRIC<=X", help="The decision is where the figure meets this bound.")
@click.option(
    "--posterior", type=click.Path(path_type=Path), help="What is known now; of --budget and --for, too. [default: the packaged posterior]"
)
@click.option("--predict", is_flag=True, help="Learn nothing: predict the grids of --from, and say how far off that is.")
@click.option(
    "--from-datasheet",
    is_flag=True,
    help="Start from the datasheet, not from the hierarchy over GPUs. [default where grids of the GPU are packaged]",
)
@click.option("--sims", default=80, show_default=True, type=click.IntRange(30, 2000), help="Draws of the rates to simulate.")
@click.option("--cells-out", type=click.Path(path_type=Path), help="Write the cells here, for `simctl measure --cells`.")
@click.option("--kv-capacity", is_flag=True, help="What engines take beside weights and KV, from the blocks they got.")
@click.option("--recall", is_flag=True, help="The recall of sparse decoding, from published needle trials.")
def command(
    hw: str | None,
    given: tuple[Path, ...],
    out: Path | None,
    thin: int | None,
    draws: int | None,
    chains: int,
    seed: int,
    folds: int,
    budget: float | None,
    scenario: Path | None,
    allow_code: bool,
    metric: str | None,
    goal: tuple[str, float] | None,
    posterior: Path | None,
    predict: bool,
    from_datasheet: bool,
    sims: int,
    cells_out: Path | None,
    worst: int,
    allow_unconverged: bool,
    model: str | None,
    experiment: str | None,
    dtype: str,
    tp: int,
    engine: str | None,
    prefix_block: int,
    max_concurrency: int | None,
    assume_prefix: int,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    timeout: float | None,
    kv_capacity: bool,
    collect: Path | None,
    cells: Path | None,
    recall: bool,
    list_only: bool,
    as_json: bool,
) -> None:
    """Learn the rates of the one formula for a GPU, and say how far to trust them.

    Learns from engine-grid measurements: those packaged for the GPU, or the files given with --from, eight cells at least. A GPU
    without packaged grids starts from the hierarchy over GPUs, which a handful of its cells narrows. Prints every rate with its unit,
    prior against posterior (5 %, median, 95 %), and errors on cells and models that the fit did not see.

    A posterior is written only when R-hat <= 1.01, every effective sample size >= 400 and no transition diverged.
    Exits 1 when one of these gates fails.

    A served log (`vllm bench serve` JSON with --save-detailed, GuideLLM JSON, AIPerf profile_export.jsonl, or a CSV with the
    columns arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s and optionally gave_up_s, seconds on one clock, and
    session or prefix_ids as in `simctl validate`) is learnt from through the simulator, request by request.

    With --predict nothing is learnt: a posterior is held against grids, by kind of iteration, and says how far off it is.

    With --budget and --for nothing is learnt, either: the cells of an engine grid are chosen that are expected to narrow the
    scenario's decision most, with what they cost and the interval they should leave, beside a grid of the same cost.

    \b
    Examples:
      simctl calibrate --hw h100                        from packaged data
      simctl calibrate --hw h100 --from GRID.nc --out posterior.nc
      simctl calibrate --predict --from GRID.nc         how far off was it?
      simctl calibrate --hw h100 --from LOG.json --model Llama-3.1-8B
      simctl calibrate --hw h100 --budget 10s --for h100s_for_a_chat_load
      simctl calibrate --hw cpu --collect out/          measure first
    """
    if list_only:
        _list(as_json)
        return
    writable(str(out) if out else None)
    if predict:
        from simctl.commands.predict import run as predict_grids

        if out is not None or collect is not None or scenario is not None or kv_capacity or recall or experiment is not None:
            raise UsageError("--predict learns nothing: it takes --from, --posterior, --hw, --worst, --seed and --json")
        if any(path.suffix.lower() in LOGS for path in given):
            raise UsageError("--predict is of engine grids (.nc); a served log is replayed by `simctl simulate`")
        predict_grids(hw, given, posterior, seed, worst, as_json)
        return
    asked_draws = draws
    draws = draws or DRAWS["capacity" if kv_capacity else "recall" if recall else "rates"]
    if kv_capacity:
        from simctl.commands.kv_capacity import run as learn_capacity

        learn_capacity(given, out, draws, chains, seed, as_json)
        return
    if recall:
        from simctl.commands.recall import run as learn_recall

        learn_recall(out, draws, chains, seed, as_json)
        return
    if not hw:
        raise UsageError("which GPU? give --hw (or --list to see what is packaged)")
    if cells is not None and collect is None:
        raise UsageError("--cells is what to measure: it needs --collect DIR")
    if scenario is not None or (budget is not None and collect is None):
        from simctl.commands.design import Asked, run

        if scenario is None or budget is None:
            raise UsageError("a design needs both --budget and --for")
        if posterior is not None and from_datasheet:
            raise UsageError("--posterior and --from-datasheet contradict each other")
        run(Asked(scenario, allow_code, hw, budget, metric, goal, posterior, from_datasheet, cells_out, sims, seed), as_json)
        return
    if experiment is not None or any(path.suffix.lower() in LOGS for path in given):
        from simctl.commands import from_logs

        if len(given) != 1:
            raise UsageError("a served log is learnt from alone: one --from LOG")
        from_logs.run(
            from_logs.Asked(
                path=given[0],
                gpu=hw,
                model=model,
                experiment=experiment,
                dtype=dtype,
                tp=tp,
                engine=engine or "vllm",
                prefix_block=prefix_block,
                max_concurrency=max_concurrency,
                assume_prefix=assume_prefix,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                timeout_s=timeout,
                out=out,
                draws=draws,
                chains=chains,
                seed=seed,
                from_datasheet=from_datasheet,
                allow_unconverged=allow_unconverged,
            ),
            as_json,
        )
        return
    from calibrate.backend import imported
    from calibrate.population.priors import starting_priors
    from calibrate.sampling import Settings
    from calibrate.sources import engine_grids, of_engine
    from calibrate.steps.cells import concatenate
    from calibrate.steps.engine_grid import read_engine_grid
    from calibrate.steps.fit import StepFit
    from calibrate.steps.microbenchmarks import packaged_microbenchmarks
    from calibrate.steps.report import calibrate, describe
    from calibrate.workers import begun, worker_processes
    from sim.specs.gpus import get_gpu
    from simctl.text.calibrate_text import show

    own = bool(given) or collect is not None
    with worker_processes() as workers:
        if not own:
            for _ in range(2):
                begun(workers, imported)  # there, while grids are read here
        if collect is not None:
            from simctl.commands.collect import collect as measured

            if given or scenario is not None:
                raise UsageError("--collect measures what is learnt from: it takes neither --from nor --for")
            found = measured(hw, model, collect, budget, cells.resolve() if cells else None, seed)
            gpu, grids = found.gpu, of_engine([read_engine_grid(found.path, found.gpu)], engine, own)
        else:
            gpu = get_gpu(hw)
            grids = of_engine(engine_grids(gpu, given), engine, own)
        every = concatenate([g.cells for g in grids])
        # a processor is no GPU: the hierarchy does not know it
        known, start = starting_priors(gpu, grids[0].precision, datasheet=from_datasheet or hw.lower() == "cpu")
        settings = Settings(draws=draws, tune=TUNE, target_accept=TARGET_ACCEPT, chains=chains, seed=seed)
        if start.pooled:
            settings = replace(settings, draws=asked_draws or CAREFUL_DRAWS, target_accept=CAREFUL)
        elif not asked_draws:
            settings = replace(settings, anew=2 * draws)
        result = calibrate(StepFit(every, known, settings), folds, seed, {} if own else packaged_microbenchmarks(gpu), workers)
    if as_json:
        click.echo(json.dumps(_plain(result, describe(grids), start.basis), indent=1))
    else:
        show(result, grids, describe(grids), start.basis, worst)
    if not allow_unconverged:
        result.diagnostics.require()
    if out is not None:
        from calibrate.steps.save import save

        path = save(out, result, grids, min(g.precision.weights for g in grids), thin)
        click.echo(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB)", err=True)


# What each suite of packaged files is for, by how its files' names begin.
USES = {
    "engine-grid": "engine grids: what --hw learns from (bf16), and --predict judges on",
    "decode": "decode steps of own kernels, and all-reduces: rates that no engine iteration shows",
    "floor": "floors: bandwidths and matrix products alone, all-reduces",
    "all-reduce": "all-reduces over several GPUs, by size",
    "served": "served runs: `simctl validate`; one --experiment of them is a log",
    "weight-axis": "decodes in fp8 over models and contexts: `simctl knees`, or --from",
    "profile": "kernels of an iteration, profiled",
    "products": "matrix products by rows: `python -m hw.show FILE point`",
    "kernels": "the decode kernels of docs/kernels.md",
}


def _list(as_json: bool) -> None:
    from calibrate.sources import packaged_measurements
    from sim.rates.posterior import packaged_posteriors, read_posterior
    from simctl.text.calibrate_text import say

    measured = [f"{p.parent.name}/{p.name}" for p in packaged_measurements()]
    posteriors = packaged_posteriors()
    if as_json:
        click.echo(json.dumps({"measurements": measured, "posteriors": [p.name for p in posteriors]}, indent=1))
        return
    click.echo("measurements:")
    for suite, use in USES.items():
        names = [name for name in measured if Path(name).stem.split("_")[0] == suite]
        if names:
            say(f"  {use}", "  ")
            for name in names:
                click.echo(f"    {name}")
    click.echo("posteriors (every other GPU has the one of the population):")
    for path in posteriors:
        say(f"  {path.name}: {read_posterior(path).attrs['summary']}", "    ")


def _plain(result: Calibration, title: str, start: str) -> dict[str, Any]:
    return {
        "summary": title,
        "start": start,
        "rates": [dataclasses.asdict(r) for r in result.rates],
        "held_out": [dataclasses.asdict(h) for h in result.held_out],
        "held_out_cells": [dataclasses.asdict(c) for c in result.cell_errors],
        "model_error": result.sigma,
        "noise_floor": dict(zip(("median", "p90", "cells_above_6_percent"), result.noise_floor, strict=True)),
        **dataclasses.asdict(result.diagnostics),
    }
