"""Serving overheads of all packaged runs with a ladder, each fitted by itself, as one packaged file.

    python -m studies.serving_overheads OUT.json

A fit takes a minute. It is kept in out/rates/overheads under a hash of what it was made of, so that an interrupted run goes on.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from calibrate.measured_files import packaged_measurements
from calibrate.served.overhead import fit_overhead
from calibrate.served.runs import read_served
from calibrate.served.validation import RATE_DRAWS, low_load
from sim.files import write_text
from sim.rates.load import load_rates
from sim.rates.posterior import best_posterior
from sim.rates.serving import ServingOverhead, parse_overhead, write_overheads
from studies.program import program

FITTED = Path("out/rates/overheads")


def fitted(path: Path) -> ServingOverhead | None:
    """The overhead of a served file; None where it has no ladder."""
    run = read_served(path)
    rungs = [e for e in run.experiments if e.kind == "ladder"]
    if not rungs:
        return None
    posterior = best_posterior(run.gpu)
    mark = hashlib.sha256(path.read_bytes() + (posterior.read_bytes() if posterior else b"")).hexdigest()[:16]
    kept = FITTED / f"{run.gpu.name}_{path.stem}_{mark}.json"
    if kept.exists():
        return parse_overhead(kept.read_bytes(), str(kept))
    overhead = fit_overhead(run, load_rates(run.deployment, draws=RATE_DRAWS), low_load(run), rungs).overhead
    FITTED.mkdir(parents=True, exist_ok=True)
    write_text(kept, write_overheads([overhead]))
    return overhead


@program("studies.serving_overheads", "OUT.json")
def main(argv: Sequence[str]) -> int:
    """Fit and write. Returns the exit code."""
    found = []
    for path in packaged_measurements():
        if path.name.startswith("served_") and (overhead := fitted(path)) is not None:
            found.append(overhead)
            print(
                f"{path.parent.name}/{path.name}: hides {1e3 * overhead.hidden_c0_s:.2f} ms, launches x {overhead.launch:.2f}", flush=True
            )
    write_text(argv[0], write_overheads(found))
    print(f"wrote {argv[0]}: {len(found)} hosts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
