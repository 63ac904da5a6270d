"""`simctl calibrate --recall`: needle recall of sparse decoding, learnt from the published trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from simctl.tables import table


def run(out: Path | None, draws: int, chains: int, seed: int, sampler: Any) -> None:
    """Fit, print every published cell beside what as many trials at a cell like it, never tried, would show; write the JSON to `out`."""
    import numpy as np

    from calibrate.recall.package import learn, write
    from calibrate.recall.trials import published
    from calibrate.sampling import Settings

    evidence = published()
    model, diagnostics = learn(evidence, Settings(draws=draws, tune=2000, chains=chains, seed=seed, sampler=sampler, target_accept=0.995))
    rows, rng = [], np.random.default_rng([seed, 95])
    for t in evidence.trials:
        recall = model.predict(t.model, t.haystack, t.context_tokens, t.k_blocks)
        low, middle, high = np.quantile(rng.binomial(t.trials, recall) / t.trials, [0.05, 0.5, 0.95])
        seen = f"{t.successes / t.trials:.3f}"
        inside = "" if low <= t.successes / t.trials <= high else "outside"
        rows.append((t.model, t.haystack, t.context_tokens, t.k_blocks, t.trials, seen, f"{middle:.3f} [{low:.2f}-{high:.2f}]", inside))
    click.echo(table(("model", "haystack", "context", "k", "n", "observed", "n more trials there", ""), rows))
    for name in ("context_slope", "cell_sd", "haystack_sd", "model_sd"):
        low, middle, high = np.quantile(model.scalars[name], [0.05, 0.5, 0.95])
        click.echo(f"{name} {middle:.2f} [{low:.2f}-{high:.2f}]")
    click.echo(
        f"R-hat <= {diagnostics.rhat_max:.4f}, effective sample size >= {diagnostics.ess_min:.0f}, {diagnostics.divergences} divergences"
    )
    diagnostics.require()
    if out is not None:
        write(out, model)
        click.echo(f"wrote {out}", err=True)
