"""Machine code of the engine in rows and its fleet, compiled ahead: `python -m sim.cluster.compile_fleet`, six seconds once."""

from __future__ import annotations

import sys

from sim.cluster.compiled import available, checked_cache, warm
from sim.cluster.fleet_runs import Servers, serve_calls
from sim.cost.rates import UNITS, Rates
from sim.engine.config import EngineConfig
from sim.engine.step_clock import StepTime
from sim.errors import SimctlError, ending
from sim.rates.serving import NO_HOST
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.termination import as_interruption
from sim.workload.trace import TraceBuilder


def main() -> None:
    """Compile now, so that no question waits for it."""
    if available() and not warm():
        checked_cache()
        rates = {name: 1e12 if unit.startswith(("bytes", "flop")) else 1e-6 for name, unit in UNITS.items()}
        steps = StepTime(get_model("Llama-3.1-8B"), Precision(), Rates(**rates))
        builder = TraceBuilder("one call")
        builder.add("0", arrival_s=0.0, prompt_tokens=1, output_tokens=2)
        serve_calls(builder.build(), Servers(EngineConfig(), steps, NO_HOST, router="lmetric"), keep=True, compiled=True)


if __name__ == "__main__":
    try:
        with as_interruption():
            main()
    except (SimctlError, OSError, MemoryError, KeyboardInterrupt) as error:
        code, text = ending(error)
        print(f"compile_fleet: {text}", file=sys.stderr)
        sys.exit(code)
