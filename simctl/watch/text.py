"""A report of the twin as lines of at most 80 columns, and as metrics for Prometheus."""

from __future__ import annotations

import math

from sim.twin.forecast import MOST_ADDED, SAFE, Forecast
from sim.twin.twin import SEEN_S, SeenLatency, SeenSlo, TwinReport

SLO = {True: "holds", False: "BROKEN", None: "at its limit"}


def lines_of(report: TwinReport, clock: str, servers: int) -> list[str]:
    """The load, a line a server, the forecast, and alerts."""
    load = f"{clock}  {report.servers_up} of {servers} up"
    if math.isfinite(report.rate_per_s):
        load += f", {report.rate_per_s:.3g} requests/s, {report.running:.0f} running, {report.waiting:.0f} waiting"
        load += f", {100 * report.cached_share:.0f} % of prompts cached" if report.cached_share >= 0.005 else ""
    lines = [load]
    for url, seen in report.seen.items():
        low, median, high = report.slowness[url]
        lines.append(f"  {url}: takes {median:.2f}x [{low:.2f}-{high:.2f}] of the simulated time")
        lines += [f"    {_seen(row)}" for row in seen]
    if report.slo:
        lines.append(f"  seen in {SEEN_S / 60:.0f} min: " + "; ".join(_slo(each) for each in report.slo))
    if report.forecast:
        lines.append(f"  {said(report.forecast)}")
    if report.disagrees:
        lines.append("  the forecast and what is seen disagree: the servers do better than their twin")
    return lines + [f"  ALERT {alert}" for alert in report.alerts]


def _slo(row: SeenSlo) -> str:
    low, high = row.between_ms
    where = f"{low:.3g}" if low == high else f"{low:.3g}-{high:.3g}"
    return f"{row.condition} {where} ms, {SLO[row.holds]}"


def _seen(row: SeenLatency) -> str:
    low, high = row.predicted_ms
    verdict = "as predicted" if row.inside else "OUTSIDE"
    bucket = f"{row.bucket_ms[0]:.3g}-{row.bucket_ms[1]:.3g}"
    return f"{row.metric.upper()} mean {row.mean_ms:.3g}, p50 in {bucket} ms, predicted {low:.3g}-{high:.3g}: {verdict}"


def said(forecast: Forecast) -> str:
    """The forecast as a sentence."""
    within = f"in the next {forecast.horizon_s / 60:.0f} min"
    if forecast.chance <= SAFE or forecast.after_s is None or forecast.between_s is None:
        return f"at this growth the SLO holds {within} with chance {1 - forecast.chance:.2f}"
    early, late = (each / 60 for each in forecast.between_s)
    when = "now" if forecast.after_s == 0 else f"in {forecast.after_s / 60:.0f} min [{early:.0f}-{late:.0f}]"
    count = forecast.add_replicas
    advice = f"add {count} replica{'s' if count > 1 else ''}" if count else f"even {MOST_ADDED} more replicas do not help"
    return f"at this growth {forecast.condition} breaks {when} with chance {forecast.chance:.2f}; {advice}"


def metrics_of(report: TwinReport | None) -> str:
    """Gauges in Prometheus' text format; what is not known is left out."""
    if report is None:
        return ""
    rows: list[tuple[str, str, float]] = [
        ("servers_up", "", report.servers_up),
        ("servers", "", len(report.slowness)),
        ("request_rate", "", report.rate_per_s),
    ]
    for url, (_, median, _) in report.slowness.items():
        rows.append(("slowness", f'server="{_label(url)}"', median))
    for url, seen in report.seen.items():
        for row in seen:
            for end, value in zip(("p05", "p95"), row.predicted_ms, strict=True):
                rows.append((f"predicted_{row.metric}_median_seconds", f'server="{_label(url)}",quantile="{end}"', value / 1e3))
            rows.append((f"seen_{row.metric}_median_seconds", f'server="{_label(url)}"', row.median_ms / 1e3))
            rows.append((f"seen_{row.metric}_mean_seconds", f'server="{_label(url)}"', row.mean_ms / 1e3))
    if report.forecast:
        rows.append(("slo_break_chance", "", report.forecast.chance))
        rows.append(("slo_break_after_seconds", "", math.nan if report.forecast.after_s is None else report.forecast.after_s))
        rows.append(("replicas_to_add", "", math.nan if report.forecast.add_replicas is None else report.forecast.add_replicas))
    known_slo = [each for each in report.slo if each.holds is not None]
    rows += [("slo_holds", f'condition="{_label(each.condition)}"', float(each.holds or 0)) for each in known_slo]
    rows.append(("cached_share", "", report.cached_share))
    rows.append(("alerts", "", len(report.alerts)))
    known = [(name, labels, value) for name, labels, value in rows if math.isfinite(value)]
    text, named = [], set()
    for name, labels, value in sorted(known, key=lambda row: row[0]):
        if name not in named:
            text.append(f"# TYPE simctl_watch_{name} gauge")
            named.add(name)
        text.append(f"simctl_watch_{name}{{{labels}}} {value:g}" if labels else f"simctl_watch_{name} {value:g}")
    return "\n".join(text)


def _label(value: str) -> str:
    """A label's value as Prometheus' text format escapes it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
