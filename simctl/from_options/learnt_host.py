"""The host of a server, learnt from a log of it or from a measurement by URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError
from simctl.from_options.logs import read_served_log, served_by

if TYPE_CHECKING:
    from calibrate.served.host_fit import Learnt

RATE_DRAWS = 200


def host_of_log(path: Path, options: Mapping[str, Any]) -> Learnt:
    """Learnt from all loads of a measurement but its ladder and its burst, or from the whole log. UsageError where nothing says what
    served it, or no engine was stepped on its GPU.
    """
    from calibrate.logs.read import is_log
    from calibrate.served.host_fit import learn_host
    from calibrate.served.runs import read_served
    from calibrate.served.time_units import check_times
    from sim.rates.load import load_rates
    from sim.rates.serving import packaged_overhead

    if is_log(path):
        log, run = read_served_log(path, options)
        loads = [log.experiment]
    else:
        run = read_served(path, given=served_by(options))
        loads = [each for each in run.experiments if each.kind not in ("ladder", "burst")]
    check_times(run)
    rates, overhead = load_rates(run.deployment, draws=RATE_DRAWS), packaged_overhead(engine=run.limits.engine)
    if overhead is None or not rates.source.stepped:
        raise UsageError(f"{run.gpu.name}: no engine was stepped on this GPU: learn its rates instead (--out)")
    return learn_host(run, loads, rates, overhead.elsewhere(None))
