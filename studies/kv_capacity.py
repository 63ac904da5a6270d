"""Memory of engines beside weights and KV, learnt from the KV blocks they got; blocks predicted for each without its own model, and pools
that public start-up lines print (studies.kv_pools).

python -m studies.kv_capacity [--public | --from FILE.nc ... | --out memory.json] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sim.files import writable
from simctl.text.layout import table
from studies.program import program


def run(given: tuple[Path, ...], out: Path | None, draws: int, chains: int, seed: int, as_json: bool) -> None:
    """Learn from the files given, else the packaged ones; print predicted against got, and write the JSON to `out`."""
    import numpy as np

    from calibrate.measured_files import resolved
    from calibrate.sampling import Settings
    from sim.errors import UsageError
    from studies.engine_memory import distinct, learn, packaged_runs, read_run, write
    from studies.kv_pools import fitted_starts

    found = [read_run(resolved(path)) for path in given]
    if lacking := [path.name for path, each in zip(given, found, strict=True) if each is None]:
        raise UsageError(f"{', '.join(lacking)}: does not say how many KV blocks its engine got")
    runs = distinct([each for each in found if each is not None] if given else [*packaged_runs(), *fitted_starts()])
    fit, held = learn(runs, Settings(draws=draws, chains=chains, seed=seed, target_accept=0.99))
    d = fit.diagnostics
    rows = []
    for r in runs:
        low, mid, high = np.quantile(held[f"{r.name}@{r.gpu}"], [0.05, 0.5, 0.95])
        rows.append({"start": r.name, "gpu": r.gpu, "blocks": int(r.blocks), "predicted": mid, "low": low, "high": high,
                     "inside": bool(low <= r.blocks <= high)})  # fmt: skip
    names = (("fixed (graphs, workspaces)", fit.fixed / 1e9, "GB"), ("kept of a device's memory", 1e3 * fit.kept, "MB/GB"),
             ("as a server", fit.server / 1e9, "GB"), ("in a group of GPUs", fit.group / 1e9, "GB"),
             ("copies of the widest MLP activation", fit.mlp, ""),
             ("copies of the float32 logits", fit.logits, ""), ("missed by the line, by build (sd)", fit.scale / 1e9, "GB"),
             ("from start to start (sd)", fit.noise / 1e9, "GB"))  # fmt: skip
    parts = [{"name": name, "quantiles": np.quantile(values, [0.05, 0.5, 0.95]).tolist(), "unit": unit} for name, values, unit in names]
    if as_json:
        click.echo(json.dumps({"left_out": rows, "beside_weights_and_kv": parts, **asdict(d)}, indent=1))
    else:
        _show(rows, parts)
        click.echo(f"R-hat <= {d.rhat_max:.4f}, effective sample size >= {d.ess_min:.0f}, {d.divergences} divergences")
    d.require()
    if out is not None:
        write(out, fit, runs)
        click.echo(f"wrote {out}", err=True)


def _show(rows: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    from statistics import median

    lines = [
        (r["start"], r["gpu"], r["blocks"], f"{r['predicted']:.0f}", f"{r['low']:.0f}-{r['high']:.0f}",
         f"{r['predicted'] / r['blocks'] - 1:+.2%}{'' if r['inside'] else ' out'}")
        for r in rows
    ]  # fmt: skip
    click.echo(table(("engine start", "GPU", "got", "told", "90% interval", "error"), lines))
    off = [abs(r["predicted"] - r["blocks"]) for r in rows]
    share = [blocks / r["blocks"] for blocks, r in zip(off, rows, strict=True)]
    click.echo("KV blocks, each start predicted without any of its own model; out: beyond 90%")
    click.echo(
        f"left out: median error {median(off):.0f} blocks ({median(share):.2%}), worst {max(off):.0f} ({max(share):.2%}); "
        f"{sum(r['inside'] for r in rows)} of {len(rows)} inside\n"
    )
    rows_ = [(p["name"], *(f"{v:.3g}" for v in p["quantiles"]), p["unit"]) for p in parts]
    click.echo(table(("memory beside weights and KV", "5%", "median", "95%", ""), rows_))


def show_public(as_json: bool) -> None:
    """Print the pools of public lines: predicted over printed, from the line's bytes for KV and from the deployment."""
    from studies.kv_pools import public_lines, scores

    lines = public_lines()
    found = [(line, line.by_layout(), line.by_memory()) for line in lines]
    if as_json:
        rows = [{"line": line.row, "by_layout": layout, "by_memory": memory, "fit": line.fit} for line, layout, memory in found]
        click.echo(json.dumps({"lines": rows, "scores": scores(lines)}, indent=1))
        return
    cells = []
    for line, layout, memory in found:
        d = line.deployment
        where = f"{d.tp} x {d.gpu.name}" if line.sized else f"TP {d.tp}"
        printed = f"{line.tokens:.0f}" if line.tokens else ""
        errors = ("" if ratio is None else f"{ratio - 1:+.1%}" for ratio in (layout, memory))
        engine = f"{d.limits.engine} {d.limits.engine_version if d.limits.engine == 'vllm' else ''}".strip()
        cells.append((str(line.row) + "*" * line.fit, d.model.name, d.precision.weights, where, engine, printed, *errors))
    click.echo(table(("line", "model", "dtype", "GPUs", "engine", "tokens", "from bytes", "from deployment"), cells))
    click.echo("predicted over printed; *: learnt from. Lines that say no version: the newest rules")
    for question, which, n, middle, share in scores(lines):
        click.echo(f"{question}, {which} lines: n {n}, median error {middle:.1%}, {share:.0%} within 10 %")


@program("studies.kv_capacity")
def main(argv: Sequence[str]) -> int:
    """Learn, print, write. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.kv_capacity")
    parser.add_argument("--from", dest="given", action="append", default=[], type=Path, help="engine grid or served file; may be repeated")
    parser.add_argument("--out", type=Path, help="write the packaged JSON here")
    parser.add_argument("--draws", type=int, default=4000, help="draws per chain: a dozen starts hardly tell three kinds of memory apart")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--public", action="store_true", help="only the public lines, by the packaged overhead: nothing is learnt")
    args = parser.parse_args(argv)
    if args.public:
        show_public(args.json)
        return 0
    run(tuple(args.given), writable(args.out), args.draws, 4, args.seed, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
