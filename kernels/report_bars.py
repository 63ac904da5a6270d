"""What the kernels are held to, against what a run shows."""

from __future__ import annotations

from kernels.report_table import Table, best_dense, best_of, cells, context_text, markdown, time_text

M = 2**20


def bars(t: Table) -> str:
    """What was asked for against what this run shows; a bar without its cells in the run is left out."""
    out: list[tuple[str, str, str]] = []

    def bar(text: str, met: bool, shown: str) -> None:
        out.append((text, shown, "met" if met else "**missed**"))

    orders = {
        "paged": "pages in random order",
        "paged_sorted": "the same pages sorted",
        "paged_in_order": "pages in the order of the sequence",
    }
    for variant, text in (orders | {"contiguous": "contiguous"}).items():
        worst = []
        held = [(b, c) for b, c in cells(t, "dense") if c >= 2**15 and best_of(t, "sdpa", b, c)]
        for b, c in held:
            mine, other = t.value(suite="dense", batch=b, context=c, variant=variant), best_of(t, "sdpa", b, c)
            if mine and other:
                worst.append((mine / float(other["median"]), b, c))  # type: ignore[arg-type]
        if worst and len(worst) == len(held):  # what was measured in a few cells only is no bar
            ratio, b, c = max(worst)
            within = sum(r <= 1 for r, *_ in worst)
            bar(f"dense ({text}) no slower than the best SDPA from 32K up", ratio <= 1,
                f"{within} of {len(worst)} cells; worst {ratio:.3f}x its time (B={int(b)}, {context_text(c)})")  # fmt: skip
    floor = [(float(r["of_floor"]), r["context"]) for r in t.pick(suite="dense", variant="paged", batch=8.0, context=lambda c: c >= 2**17)]  # type: ignore[arg-type]
    if floor:
        low, c = min(floor)
        bar("dense paged at least 95 % of the read floor from 128K up, B=8", low >= 0.95, f"lowest {low * 100:.1f} % ({context_text(c)})")  # type: ignore[arg-type]
    for b, least in ((8.0, 100), (1.0, 25)):
        mine = t.value(op="select_gather", variant="minmax_fp8", k_blocks=8.0, batch=b, context=float(M))
        reference = best_dense(t, b, M)
        if mine and reference:
            bar(f"sparse (k=8) at least {least}x the best dense at 1M, B={int(b)}", reference / mine >= least, f"{reference / mine:.1f}x")
    even = []
    for b, c in cells(t, "sparse"):
        found = t.pick(op="select_gather", k_blocks=8.0, batch=b, context=c, variant=lambda v: v.startswith("minmax"))
        reference = best_dense(t, b, c)
        if b == 1 and found and reference and min(float(r["median"]) for r in found) < reference:  # type: ignore[arg-type]
            even.append(c)
    if even:
        bar("sparse faster than the best dense from 16K or less, B=1", min(even) <= 2**14, f"from {context_text(min(even))}")
    beta = t.value("rate", suite="floor", op="read") or float("nan")
    for mode in ("dense", "sparse"):
        found = t.pick(suite="step", variant=mode, batch=1.0)
        if found:
            r = min(found, key=lambda r: r["context"])  # type: ignore[arg-type,return-value]
            c0 = float(r["median"]) - float(r["moved"]) / beta  # type: ignore[arg-type]
            bar(f"7B step, fixed cost at most 1.5 ms ({mode})", c0 <= 1.5e-3, f"{time_text(c0)} at {context_text(r['context'])}")  # type: ignore[arg-type]
    both = [t.value(suite="step", variant=mode, batch=1.0, context=float(M)) for mode in ("dense", "sparse")]
    if all(both):
        bar("7B step, sparse at least 3x dense at 1M, B=1", both[0] / both[1] >= 3, f"{both[0] / both[1]:.2f}x")  # type: ignore[operator]
    tier = t.pick(suite="step", variant="tiered", context=lambda c: c > 1e6)
    if tier:
        c, time = tier[0]["context"], float(tier[0]["median"])  # type: ignore[arg-type]
        link = t.value(suite="step", variant="dense over link, floor", context=c)
        share = float(tier[0]["of_floor"])  # type: ignore[arg-type]
        bar(
            "1M in host memory, k=32: at least 70 % of weights / beta + keep-set / link",
            share >= 0.7,
            f"{share * 100:.1f} %, {1 / time:.1f} tokens/s",
        )
        if link:
            bar("and at least 40x the dense floor over the link", link / time >= 40, f"{link / time:.0f}x")
    g = [r for r in t.pick(op="gdn_decode", batch=128.0) if str(r["note"]).startswith("48")]
    mine = {str(r["variant"]): r for r in g}
    if "f32_state" in mine:
        share = float(mine["f32_state"]["of_floor"])  # type: ignore[arg-type]
        bar("gated delta, B=128, 48 heads: at least 92 % of the read + write floor", share >= 0.92, f"{share * 100:.1f} %")
        other = [float(r["median"]) for v, r in mine.items() if "fused" in v]  # type: ignore[arg-type]
        if other:
            ratio = min(other) / float(mine["f32_state"]["median"])  # type: ignore[arg-type]
            bar("and no slower than the FLA kernel", ratio >= 1, f"{ratio:.2f}x its speed")
    return markdown(["bar", "this run", ""], out)
