"""Report of a simulated run: latency distributions, the run over time, cost by term, batching, and its slowest requests explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sim.errors import SimctlError, UsageError
from sim.results import explain
from sim.results.intervals import around, block_intervals, rate_intervals, repeat_intervals
from sim.results.metrics import LATENCIES, LEVELS, PER_REQUEST, cost_shares, request_latencies_ms, summarise
from sim.results.record import RunRecord
from sim.results.series import Series, run_series
from sim.results.tables import benchmark_table
from simctl.report import charts
from simctl.report.page import ALL_MEASURED, Headline, Picture, ReportPart, cut, number, span, thinned
from simctl.text.explain_text import STAGES, one_request, several

QUANTILES = np.unique(np.concatenate([np.linspace(0.0, 0.98, 50), [0.99, 0.995, 0.999, 1.0]]))
BINS = 160
LANES = 48  # replicas in a picture
SLOWEST, WHOLE = 8, 3  # requests that are explained, and explained in full
QUESTIONS = {
    "ttft": "How long do users wait for the first token?",
    "tpot": "How fast do tokens then follow?",
    "e2el": "How long does a whole answer take?",
}
FOLLOWS = {"ttft": "have their first token", "tpot": "need", "e2el": "have all of their answer"}
HEADLINES = (
    ("request_throughput", "Request throughput", "req/s"), ("output_throughput", "Output tokens", "tok/s"),
    ("median_ttft_ms", "Median TTFT", "ms"), ("p99_ttft_ms", "P99 TTFT", "ms"),
    ("median_tpot_ms", "Median TPOT", "ms"), ("p99_tpot_ms", "P99 TPOT", "ms"), ("p99_e2el_ms", "P99 E2EL", "ms"),
    ("failed", "Failed requests", ""),
)  # fmt: skip
SETTINGS = (
    "model", "gpu", "tensor_parallel_size", "replicas", "router", "pools", "dtype", "kv_dtype", "engine", "attention", "max_num_seqs",
    "max_num_batched_tokens", "gpu_memory_utilization", "num_gpu_blocks", "block_size", "request_rate", "num_prompts", "random_input_len",
    "random_output_len", "trace", "seed", "simctl_version",
)  # fmt: skip


def part_of(record: RunRecord, dataset: Any) -> ReportPart:
    """The report of a run and of its draws and repeats, from the dataset of its run.nc. UsageError for one of no request."""
    if not record.request_ids:
        raise UsageError("a run of no request has nothing to report")
    attrs = dict(dataset.attrs)
    summary = summarise(record)
    rates, noise = _intervals(dataset, "draw"), _intervals(dataset, "repeat") or block_intervals(record)
    intervals = around(summary, noise)
    rates = around(summary, rates)
    notes, texts = [], [("All figures", benchmark_table(summary, intervals, rates or None, int(attrs.get("num_gpu_blocks", 0)) - 1))]
    pictures = list(_latencies(record, dataset))
    if len(record.iterations["start_s"]):
        pictures += [*over_time(record, int(attrs.get("num_gpu_blocks", 0))), *_cost(record), *_batching(record)]
        slow, said = _slowest(record, attrs)
        pictures += slow
        texts += said
    else:
        notes.append("The run kept no iteration log: no pictures over time and of cost, and no explained requests.")
    outside = [label for key, label, _ in HEADLINES if key in noise and not noise[key][0] <= summary[key] <= noise[key][1]]
    if outside:
        notes.append(
            "Run noise holds nine in ten runs with other arrivals and lengths. This run is one of the others for its "
            f"{', '.join(outside)}. Another --seed shows another run."
        )
    if not rates:
        notes.append("Rates held at their medians: simulate with --draws 20 for bands over what is not known about them.")
    several_ = f"{attrs.get('replicas', 1)} x " if int(attrs.get("replicas", 1)) > 1 else ""
    model, gpu = cut(attrs.get("model", "?"), 60), cut(attrs.get("gpu", "?"), 40)
    question = f"What latency do {summary['num_prompts']:,} requests see on {several_}{gpu} with {model}?"
    scope = str(attrs.get("rates_scope", ""))
    return ReportPart(
        f"Simulated run: {model} on {gpu}",
        question,
        [(name.replace("_", " "), _plain(attrs[name])) for name in SETTINGS if name in attrs and _plain(attrs[name]) not in ("", "0")],
        [_headline(each, summary, intervals, rates) for each in HEADLINES],
        [
            f"Rates: {cut(attrs.get('rates_basis', 'not said'), 600)}.",
            f"Host overhead: {cut(attrs.get('host_basis', 'not said'), 300)}.",
            cut(scope, 900) if scope else ALL_MEASURED if "rates_scope" in attrs else "",
        ],
        pictures,
        notes,
        texts,
    )  # fmt: skip


def _plain(value: Any) -> str:
    return cut(f"{value:.6g}" if isinstance(value, float) else value)


def _intervals(dataset: Any, dim: str) -> dict[str, tuple[float, float]]:
    """90 % intervals of the figures over draws of the rates, or over repeats; empty where there are too few."""
    if f"{dim}_value" not in dataset:
        return {}
    table = np.asarray(dataset[f"{dim}_value"].values, dtype=np.float64)
    columns = {str(name): table[:, i].tolist() for i, name in enumerate(dataset[f"{dim}_figure"].values.tolist())}
    if dim == "draw":
        return rate_intervals(columns)
    return repeat_intervals(columns) if len(table) in (10, 20) else {}


def _headline(figure: tuple[str, str, str], summary: Mapping[str, float], noise: Mapping[str, Any], rates: Mapping[str, Any]) -> Headline:
    key, label, unit = figure
    found = [(of, span(*table[key])) for of, table in (("run noise", noise), ("rates", rates)) if key in table]
    apart = [
        (of, text)
        for (of, text), table in zip(found, (noise, rates), strict=False)
        if table.get(key, (0, 1))[0] != table.get(key, (0, 1))[1]
    ]
    return Headline(label, number(float(summary[key]), unit), apart)


def _latencies(record: RunRecord, dataset: Any) -> Iterator[Picture]:
    """The distribution of TTFT, TPOT and E2EL with its band over draws of the rates."""
    draws = (
        np.asarray(dataset["draw_quantile_ms"].values) if "draw_quantile_ms" in dataset else np.empty((0, len(PER_REQUEST), len(LEVELS)))
    )
    for place, (name, values) in enumerate((name, request_latencies_ms(record)[name]) for name in PER_REQUEST):
        present = values[~np.isnan(values)]
        if not len(present):
            continue
        found = np.quantile(present, QUANTILES)
        rows: list[charts.Row] = [{"x": float(x), "y": 100 * float(q), "series": "this run"} for x, q in zip(found, QUANTILES, strict=True)]
        here = draws[:, place, :] if len(draws) and draws.shape[2] == len(LEVELS) else draws[:, 0, :0]
        table = [[f"{100 * q:g} %", number(float(np.quantile(present, q)), "ms")] for q in (0.1, 0.5, 0.9, 0.95, 0.99, 1.0)]
        band = ""
        if here.size and not np.isnan(here).all(axis=0).any():
            low, high = np.nanquantile(here, (0.05, 0.95), axis=0)
            mid = np.quantile(present, LEVELS)
            rows = [
                {"x": float(x), "y": 100 * q, "low": float(a), "high": float(b), "series": "this run"}
                for x, q, a, b in zip(mid, LEVELS, low, high, strict=True)
            ] + [row for row in rows if row["y"] > 100 * LEVELS[-1] or row["y"] < 100 * LEVELS[0]]
            rows.sort(key=lambda row: float(row["y"]))
            band = f" (band: {span(float(low[-1]), float(high[-1]), 'ms')} in 90 % of the draws of the rates)"
        short, long = LATENCIES[name][1], LATENCIES[name][0]
        wide = float(found[-1]) > 20 * max(float(found[1]), 1e-9) and float(found[0]) > 0
        x = charts.axis(
            f"{short} (ms){', log scale' if wide else ''}",
            [float(found[0]), float(found[-1]), *(row[k] for row in rows for k in ("low", "high") if k in row)] if wide else (),
        )
        y = charts.axis("requests done by then (%)", zero=True, scale={"domain": [0, 100]})
        half, most = float(np.quantile(present, 0.5)), float(np.quantile(present, 0.99))
        per = " per output token after the first" if name == "tpot" else ""
        within = "at most" if name == "tpot" else "within"
        reading = f"Half of the requests {FOLLOWS[name]} {within} {number(half, 'ms')}{per}, 99 % {within} {number(most, 'ms')}{band}."
        yield Picture(f"{name}", f"{QUESTIONS[name]} ({long.split(' (')[0]})", reading,
                      charts.lines(rows, x, y, ["this run"], across=True), ("requests", short), table)  # fmt: skip


def _rows(series: Series, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for every bin and named column that has a value."""
    centre_s = series.start_s + 0.5 * series.width_s
    return [
        {"x": float(f"{t:.6g}"), "y": float(f"{v:.4g}"), "series": name}
        for name, values in columns.items()
        for t, v in zip(centre_s.tolist(), np.asarray(values).tolist(), strict=True)
        if np.isfinite(v)
    ]


def _peak(series: Series, values: Any) -> tuple[float, float]:
    """(largest value, when), NaN where there is none."""
    if np.isnan(values).all():
        return float("nan"), float("nan")
    at = int(np.nanargmax(values))
    return float(values[at]), float(series.start_s[at])


def over_time(record: RunRecord, num_gpu_blocks: int) -> Iterator[Picture]:
    """Batch and queue, KV, TTFT, output, and the replicas of a fleet."""
    series = run_series(record, BINS)
    time = charts.axis("simulated time (s)", nice=False)

    def drawn(name: str, question: str, reading: str, title: str, columns: Mapping[str, Any], **more: Any) -> Picture:
        rows = _rows(series, columns)
        at = thinned(range(BINS), 16)
        table = [[number(float(series.start_s[i])), *(number(float(values[i])) for values in columns.values())] for i in at]
        y = charts.axis(title, zero=True, **more)
        return Picture(name, question, reading, charts.lines(rows, time, y, list(columns), zoom=True), ("second", *columns), table)

    most, when = _peak(series, series.waiting)
    queue = f"the queue is longest at {number(when, 's')} with {number(most)} waiting" if most >= 1 else "on average fewer than one waits"
    peak, _ = _peak(series, series.running)
    yield drawn("batch_and_queue", "Does a queue build up?", f"Up to {number(peak)} requests run at a time on a replica, and {queue}.",
                "requests per replica, mean of the bin", {"running": series.running, "waiting": series.waiting})  # fmt: skip
    if (blocks := num_gpu_blocks - 1) > 0:
        share, hits = 100 * series.kv_blocks_used / blocks, 100 * series.hit_rate
        preempted = int(series.preemptions.sum())
        reading = f"At most {number(_peak(series, share)[0], '%')} of the KV blocks are held, and {preempted:,} requests are preempted."
        found = {"KV blocks held": share, **({"prompt tokens cached": hits} if np.nansum(hits) else {})}
        yield drawn("kv", "Is KV memory what limits this?", reading, "%", found, scale={"domain": [0, 100]})
    if not np.isnan(series.ttft_p99_ms).all():
        worst, when = _peak(series, series.ttft_p99_ms)
        reading = f"P99 TTFT is highest, {number(worst, 'ms')}, for those who come at {number(when, 's')}."
        yield drawn("ttft_over_time", "When do users wait?", reading,
                    "TTFT of those who arrive then (ms)", {"median": series.ttft_p50_ms, "P99": series.ttft_p99_ms})  # fmt: skip
    best, when = _peak(series, series.output_tokens_per_s)
    yield drawn("output", "How much is generated?", f"At most {number(best, 'tokens')} a second, at {number(when, 's')}.",
                "output tokens per second", {"output": series.output_tokens_per_s})  # fmt: skip
    yield from _replicas(record, series, time)


def _replicas(record: RunRecord, series: Series, time: Any) -> Iterator[Picture]:
    """Busy share of every replica, where there are several; of many the first ones."""
    log = record.iterations
    owner = log["iteration_replica"].astype(np.int64)
    replicas = np.unique(owner)
    if len(replicas) < 2:
        return
    bins = 80
    begin, width = float(series.start_s[0]), series.width_s * BINS / bins
    lanes, where = replicas[:LANES], np.clip(((log["start_s"] - begin) / width).astype(np.int64), 0, bins - 1)
    rows, total = [], []
    for replica in lanes.tolist():
        mine = owner == replica
        busy = np.bincount(where[mine], weights=log["duration_s"][mine], minlength=bins) / width
        total.append(float(busy.sum() * width))
        rows += [
            {"x": begin + i * width, "x2": begin + (i + 1) * width, "name": str(replica), "share": min(1.0, round(float(share), 3))}
            for i, share in enumerate(busy)
            if share > 0.005
        ]
    most, least = int(np.argmax(total)), int(np.argmin(total))
    reading = (
        f"Replica {lanes[most]} computes for {number(total[most], 's')} and replica {lanes[least]}, the least busy, "
        f"for {number(total[least], 's')}" + (f"; the first {LANES} of {len(replicas)} are drawn." if len(replicas) > LANES else ".")
    )
    spec = charts.shades(rows, time, "replica", (("x", "from (s)"), ("name", "replica"), ("share", "busy share")))
    yield Picture("fleet", "Is the load spread evenly over the replicas?", f"{reading} Stronger colours are busier.", spec,
                  ("replica", "busy"),
                  [[str(replica), number(seconds, "s")] for replica, seconds in zip(lanes, total, strict=True)])  # fmt: skip


def _cost(record: RunRecord) -> Iterator[Picture]:
    """Busy time by term of the step time, over all and over time."""
    found = cost_shares(record)
    if not found:
        return
    named = {name: cut(name, 40) for name in found}
    kept = [name for name, share in found.items() if share >= 5e-4][:8]
    rows = [{"name": named[name], "x": 100 * found[name]} for name in kept]
    first = kept[0]
    reading = f"{named[first].capitalize()} take {number(100 * found[first], '%')} of the time in which the GPUs compute."
    spec = charts.bars(rows, charts.axis("share of busy time (%)", zero=True), tooltip=(("name", "term"), ("x", "% of busy time")))
    yield Picture("cost_by_term", "What does the time go into?", reading, spec, ("term", "share"),
                  [[named[name], number(100 * found[name], "%")] for name in kept])  # fmt: skip
    series = run_series(record, BINS // 2)
    large = [name for name in kept if found[name] >= 0.01][:6]
    over = _rows(series, {named[name]: series.busy[name] for name in large})
    x, y = charts.axis("simulated time (s)", nice=False), charts.axis("busy seconds per second, all replicas", zero=True)
    busy = sum(float(values.sum()) for values in series.busy.values()) * series.width_s
    reading = f"All replicas together compute for {number(busy, 's')}; a gap is idle time."
    yield Picture("cost_over_time", "Does that change over the run?", reading,
                  charts.stacked(over, x, y, [named[name] for name in large]))  # fmt: skip


def _batching(record: RunRecord) -> Iterator[Picture]:
    """Tokens a second of iterations that only decode, by how many requests they serve."""
    log = record.iterations
    only = (log["prefill_tokens"] == 0) & (log["sampled"] > 0) & (log["duration_s"] > 0)
    batch, each = log["scheduled"][only], 1.0 / np.where(only, log["duration_s"], 1.0)[only]
    if len(np.unique(batch)) < 3:
        return
    edges = np.unique(np.round(np.geomspace(1, batch.max() + 1, 25)))
    where = np.digitize(batch, edges)
    groups = [(float(np.mean(batch[where == i])), float(np.median(each[where == i]))) for i in np.unique(where)]
    rows: list[charts.Row] = [{"x": at, "y": value, "series": "tokens/s per request"} for at, value in groups]
    rows += [{"x": at, "y": at * value, "series": "tokens/s per replica"} for at, value in groups]
    (few, fast), (many, slow) = groups[0], groups[-1]
    reading = (
        f"In a batch of {number(many)} a request gets {number(slow)} tokens/s, {number(100 * slow / fast, '%')} of its {number(fast)} in a "
        f"batch of {number(few)}, and the replica makes {number(many * slow)} tokens/s."
    )
    x = charts.axis("requests in the batch, log scale", [row["x"] for row in rows])
    y = charts.axis("tokens/s, log scale", [row["y"] for row in rows])
    spec = charts.lines(rows, x, y, ["tokens/s per request", "tokens/s per replica"])
    yield Picture("batching", "Does batching still pay at these batch sizes?", reading, spec, ("batch", "per request", "per replica"),
                  [[number(at), number(value), number(at * value)] for at, value in groups])  # fmt: skip


def _slowest(record: RunRecord, attrs: Mapping[str, Any]) -> tuple[list[Picture], list[tuple[str, str]]]:
    """The stages of the slowest requests as a picture, and explained as `simctl explain` does."""
    try:
        found = explain.slowest(record, SLOWEST, "ttft", explain.api_server_of(attrs))
    except SimctlError:
        return [], []
    if not found:
        return [], []
    there = {part.stage for each in found for part in each.ttft}
    names = [label for stage, label in STAGES.items() if stage in there]
    rows: list[charts.Row] = [
        {"name": cut(each.request_id, 24), "series": STAGES[part.stage], "x": explain.ms(part.ticks)}
        for each in found
        for part in each.ttft
    ]
    totals: dict[str, float] = {}
    for row in rows:
        totals[row["series"]] = totals.get(row["series"], 0.0) + row["x"]
    largest = max(totals, key=lambda name: totals[name])
    whole = sum(totals.values()) or 1.0
    reading = f"Of the time to first token of the {len(found)} slowest requests, {number(100 * totals[largest] / whole, '%')} is {largest}."
    spec = charts.bars(
        rows,
        charts.axis("time to first token (ms)", zero=True),
        names=names,
        tooltip=(("name", "request"), ("series", "stage"), ("x", "ms")),
    )
    picture = Picture("slowest", "Why did the slowest requests wait?", reading, spec, ("request", "TTFT"),
                      [[cut(each.request_id, 24), number(explain.ms(each.ticks("ttft")), "ms")] for each in found])  # fmt: skip
    return [picture], [("The slowest requests", _text(several(found, "ttft")))] + [
        (f"Request {cut(each.request_id, 40)}, explained", _text(one_request(each, attrs))) for each in found[:WHOLE]
    ]


def _text(lines: Sequence[str]) -> str:
    """Lines as one text that stays bounded whatever names there are."""
    return "\n".join(line[:400] for line in "\n".join(lines).splitlines()[:200])
