"""What `simctl validate --iterations` prints: iterations that a server wrote down, each held to its own price."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from simctl.wrap import wrapped

LEAST_OFF_S = 1e-3  # of prefill in a bin of rows, to be named
HEAD = (
    "iterations as the server wrote them down, each held to its own price (milliseconds: means, and the median of measured less priced); "
    "prefill where it comes alone, with what its launch keeps the decode before it waiting:"
)


def held(run: Any, path: Any, iterations: dict[int, Any]) -> dict[str, Any]:
    """Kinds of iterations by load (what is sent again belongs to it), rows of prefill that are off, and how long launches take (s)."""
    from calibrate.served.iterations import kinds, launches_s, priced_s, rows_off, step_times
    from calibrate.served.repeats import load_of

    steps = step_times(run, path)
    prices = {index: priced_s(steps, seen) for index, seen in iterations.items()}
    loads: dict[str, list[int]] = {}
    for index in iterations:
        loads.setdefault(load_of(run.experiments[index].name), []).append(index)
    launches = launches_s(list(iterations.values()))
    return {
        "loads": {
            load: [asdict(kind) for kind in kinds([iterations[i] for i in own], [prices[i] for i in own])]
            for load, own in loads.items()
            if not load.startswith("ladder")
        },
        "rows_off": [asdict(kind) for kind in rows_off(list(iterations.values()), list(prices.values()), LEAST_OFF_S)],
        "launches": len(launches),
        "launch_s": [float(q) for q in np.quantile(launches, [0.1, 0.5, 0.9])] if len(launches) else None,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The section, no line wider than a terminal."""
    out = [*wrapped(HEAD), f"{'load':<14}{'iterations':<32}{'n':>6}{'measured':>10}{'priced':>9}{'off':>8}"]
    for load, own in found["loads"].items():
        out += [
            f"{load[:13]:<14}{kind['name'][:31]:<32}{kind['count']:>6}{1e3 * kind['measured_s']:>10.2f}{1e3 * kind['priced_s']:>9.2f}"
            f"{1e3 * kind['off_s']:>+8.2f}"
            for kind in own
        ]
    if found["rows_off"]:
        each = ", ".join(f"{kind['name']} {1e3 * kind['off_s']:+.1f} ms ({kind['count']})" for kind in found["rows_off"])
        out += wrapped(f"prefill off by {1e3 * LEAST_OFF_S:.0f} ms or more, by rows: {each}")
    if found["launch_s"]:
        low, middle, high = (1e3 * q for q in found["launch_s"])
        said = (
            f"the host launches an iteration beyond the captured graphs in {middle:.1f} ms (median of {found['launches']}; a tenth in less "
            f"than {low:.1f}, a tenth in more than {high:.1f}, waiting for what was under way included)"
        )
        out += wrapped(said)
    return [*out, ""]
