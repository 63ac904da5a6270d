"""`python -m kernels.report [DATA] [--doc docs/kernels.md] [--check]`: tables, bars and plots from the committed measurements.

Reads every `kernels_*.csv` of DATA (default scenarios/data/measured/kernels), prints the tables, and puts them between the
markers `<!-- begin NAME -->` and `<!-- end NAME -->` of the document, with the plots beside it. `--check` writes nothing and
exits 1 where the document differs from what the data say.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from kernels import report_plots
from kernels.results import TEXT, Row

M = 2**20


@dataclass(frozen=True)
class Table:
    """One run: attributes and rows, numbers as floats."""

    name: str
    attributes: dict[str, str]
    rows: list[Row]

    def pick(self, **want: object) -> list[Row]:
        """Timed rows whose columns equal `want`; a callable is a predicate."""
        return [
            r for r in self.rows
            if r["median"] == r["median"] and all(w(r[c]) if callable(w) else r[c] == w for c, w in want.items())
        ]  # fmt: skip

    def value(self, column: str = "median", **want: object) -> float | None:
        found = self.pick(**want)
        return float(found[0][column]) if found else None  # type: ignore[arg-type]


def load(path: Path) -> Table:
    """A table as `kernels.results.write` left it."""
    lines = path.read_text().splitlines()
    head = [line for line in lines if line.startswith("# ")]
    attributes = dict(line[2:].split(": ", 1) for line in head)
    rows = [{k: v if k in TEXT else float(v) for k, v in r.items()} for r in csv.DictReader(lines[len(head) :])]
    return Table(path.stem, attributes, rows)  # type: ignore[arg-type]


def context_text(tokens: float) -> str:
    """8192 as 8K, 2^20 as 1M."""
    n = int(tokens)
    return f"{n // M}M" if n >= M and n % M == 0 else f"{n / 1024:.4g}K"


def time_text(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} us"


def markdown(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A markdown table."""
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in r) + " |" for r in rows])


def cells(t: Table, suite: str) -> list[tuple[float, float]]:
    """(batch, context) of a suite in order."""
    return sorted({(r["batch"], r["context"]) for r in t.pick(suite=suite)})  # type: ignore[type-var]


def best_sdpa(t: Table, batch: float, context: float) -> Row | None:
    found = t.pick(suite="dense", batch=batch, context=context, variant=lambda v: v.startswith(("sdpa", "fa3")))
    return min(found, key=lambda r: r["median"]) if found else None  # type: ignore[arg-type,return-value]


def best_dense(t: Table, batch: float, context: float) -> float | None:
    found = [float(r["median"]) for r in t.pick(suite="dense", batch=batch, context=context)]  # type: ignore[arg-type]
    return min(found) if found else None


def provenance(t: Table) -> str:
    keep = ("gpu", "driver", "torch", "cuda", "cudnn", "triton", "python", "date", "suites", "seconds", "shape", "protocol")
    return f"`{t.name}`: " + "; ".join(f"{k} {t.attributes[k]}" for k in keep if k in t.attributes)


def floors(t: Table) -> str:
    def rate(r: Row) -> str:
        return f"{float(r['rate']) / 1e9:.1f} GB/s" if r["moved"] else str(r["note"])  # type: ignore[arg-type]

    return markdown(["floor", "value", "median"], [(r["op"], rate(r), time_text(r["median"])) for r in t.pick(suite="floor")])  # type: ignore[arg-type]


def dense(t: Table) -> str:
    rows = []
    for b, c in cells(t, "dense"):
        best = best_sdpa(t, b, c)
        row: list[object] = [int(b), context_text(c)]
        variants = ("paged", "paged_16", "paged_256", "paged_in_order", "contiguous")
        row += [time_text(t.value(suite="dense", batch=b, context=c, variant=v)) for v in variants]
        floor = t.value("of_floor", suite="dense", batch=b, context=c, variant="paged") or float("nan")
        rows.append([*row, f"{floor * 100:.1f} %", f"{time_text(best['median'])} {best['variant']}" if best else ""])  # type: ignore[arg-type]
    head = ["B", "context", "paged 128, random", "paged 16", "paged 256", "128 in order", "contiguous", "paged of read floor", "best other"]
    return markdown(head, rows)


def sparse(t: Table) -> str:
    rows = []
    order = ("variant", "k_blocks", "batch", "context")
    for r in sorted(t.pick(suite="sparse", op="select_gather"), key=lambda r: tuple(r[c] for c in order)):  # type: ignore[arg-type,return-value]
        at = {"suite": "sparse", "batch": r["batch"], "context": r["context"], "k_blocks": r["k_blocks"], "variant": r["variant"]}
        reference = best_dense(t, r["batch"], r["context"])  # type: ignore[arg-type]
        ratio = f"{reference / float(r['median']):.1f}x" if reference else ""  # type: ignore[arg-type]
        parts = [time_text(t.value(op=op, **at)) for op in ("select", "gather")]
        rows.append((int(r["batch"]), context_text(r["context"]), int(r["k_blocks"]), r["variant"], time_text(r["median"]), *parts, ratio))  # type: ignore[call-overload,arg-type]
    return markdown(["B", "context", "k", "summaries", "select + gather", "select alone", "gather alone", "over best dense"], rows)


def gdn(t: Table) -> str:
    rows = []
    for r in t.pick(op="gdn_decode"):
        heads = str(r["note"]).split(" ")[0]
        rows.append((int(r["batch"]), heads, r["variant"], time_text(r["median"]), f"{float(r['of_floor']) * 100:.1f} %"))  # type: ignore[call-overload,arg-type]
    return markdown(["B", "value heads", "kernel", "time", "of read + write floor"], rows)


def host(t: Table) -> str:
    rows = [(r["op"], r["variant"], int(r["k_blocks"]), time_text(r["median"]), share_text(r)) for r in t.pick(suite="host")]  # type: ignore[call-overload,arg-type]
    return markdown(["what", "how", "k", "time", "of link"], rows)


def share_text(r: Row) -> str:
    """The row's share of its floor in percent, empty where it has none."""
    share = float(r["of_floor"])  # type: ignore[arg-type]
    return "" if share != share else f"{share * 100:.1f} %"


def steps(t: Table) -> str:
    rows = []
    beta = t.value("rate", suite="floor", op="read") or float("nan")
    for r in sorted(t.pick(suite="step"), key=lambda r: (r["variant"], r["batch"], r["context"])):  # type: ignore[arg-type,return-value]
        alone = str(r["variant"]) in ("dense", "sparse")
        over = time_text(float(r["median"]) - float(r["moved"]) / beta) if alone else ""  # type: ignore[arg-type]
        at = (r["variant"], int(r["batch"]), context_text(r["context"]), int(r["k_blocks"]))  # type: ignore[call-overload,arg-type]
        rows.append((*at, time_text(r["median"]), over, share_text(r)))  # type: ignore[arg-type]
    return markdown(["step", "B", "context", "k", "time", "over its bytes at the read floor", "of its floor"], rows)


def bars(t: Table) -> str:
    """What was asked for against what this run shows; a bar without its cells in the run is left out."""
    out: list[tuple[str, str, str]] = []

    def bar(text: str, met: bool, shown: str) -> None:
        out.append((text, shown, "met" if met else "**missed**"))

    for variant, text in (("paged", "pages in random order"), ("contiguous", "contiguous")):
        worst = []
        for b, c in cells(t, "dense"):
            mine, other = t.value(suite="dense", batch=b, context=c, variant=variant), best_sdpa(t, b, c)
            if c >= 2**15 and mine and other:
                worst.append((mine / float(other["median"]), b, c))  # type: ignore[arg-type]
        if worst:
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


SECTIONS: dict[str, Callable[[Table], str]] = {
    "provenance": provenance, "floors": floors, "bars": bars, "dense": dense, "sparse": sparse, "gdn": gdn, "host": host, "step": steps,
}  # fmt: skip


def fill(text: str, tables: list[Table]) -> str:
    """The document with every marked part replaced by what the data say; a part is named SECTION TABLE."""

    def part(match: re.Match[str]) -> str:
        section, name = match[1].split(" ")
        table = next((t for t in tables if t.name == name), None)
        body = SECTIONS[section](table) if table else "not measured"
        return f"<!-- begin {match[1]} -->\n{body}\n<!-- end {match[1]} -->"

    return re.sub(r"<!-- begin (\w+ \w+) -->\n.*?<!-- end \1 -->", part, text, flags=re.DOTALL)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.report", description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=Path("scenarios/data/measured/kernels"))
    parser.add_argument("--doc", type=Path, default=Path("docs/kernels.md"))
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the document is stale")
    args = parser.parse_args(argv)
    tables = [load(p) for p in sorted(args.data.glob("kernels_*.csv"))]
    old = args.doc.read_text()
    new = fill(old, tables)
    if args.check:
        return int(old != new)
    args.doc.write_text(new)
    for table in tables:
        for name, section in SECTIONS.items():
            print(f"\n## {table.name}: {name}\n\n{section(table)}")
        report_plots.write(table, args.doc.parent / "img")
    return 0


if __name__ == "__main__":
    sys.exit(main())
