"""`python -m kernels.report [DATA] [--doc docs/kernels.md] [--check]`: tables, bars and plots from the committed measurements.

Reads every `kernels_*.csv` and `tune_dense_*.csv` of DATA (default scenarios/data/measured/kernels), prints the tables, and puts
them between the markers `<!-- begin NAME -->` and `<!-- end NAME -->` of the document, with the plots beside it. `--check` writes
nothing and exits 1 where the document differs from what the data say.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from kernels import report_plots, report_tuning
from kernels.report_bars import bars
from kernels.report_table import Table, best_dense, best_of, cells, context_text, load, markdown, share_text, time_text
from kernels.results import Row


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
        best, engine = best_of(t, "sdpa", b, c), best_of(t, "fa3", b, c)
        row: list[object] = [int(b), context_text(c)]
        variants = (
            "paged",
            "paged_sorted",
            "paged_in_order",
            "contiguous",
            "paged_in_turn",
            "paged_fixed",
            "paged_apart",
            "paged_16",
            "paged_256",
        )
        row += [time_text(t.value(suite="dense", batch=b, context=c, variant=v)) for v in variants]
        floor = t.value("of_floor", suite="dense", batch=b, context=c, variant="paged") or float("nan")
        other = [f"{time_text(best['median'])} {str(best['variant']).removeprefix('sdpa_')}" if best else ""]  # type: ignore[arg-type]
        ratio = row[2] and best and float(t.value(suite="dense", batch=b, context=c, variant="paged") or 0) / float(best["median"])  # type: ignore[arg-type]
        other += [f"{ratio:.3f}x" if ratio else "", time_text(engine["median"]) if engine else ""]  # type: ignore[arg-type]
        rows.append([*row, f"{floor * 100:.1f} %", *other])
    head = [
        "B",
        "context",
        "paged 128, random",
        "sorted",
        "in order",
        "contiguous",
        "in turn",
        "random, no queue",
        "K, V apart",
        "16, apart",
    ]
    head += ["paged 256", "random of read floor", "best SDPA", "random in its time", "FA3 paged"]
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


def steps(t: Table) -> str:
    rows = []
    beta = t.value("rate", suite="floor", op="read") or float("nan")
    for r in sorted(t.pick(suite="step"), key=lambda r: (r["variant"], r["batch"], r["context"])):  # type: ignore[arg-type,return-value]
        alone = str(r["variant"]) in ("dense", "sparse")
        over = time_text(float(r["median"]) - float(r["moved"]) / beta) if alone else ""  # type: ignore[arg-type]
        at = (r["variant"], int(r["batch"]), context_text(r["context"]), int(r["k_blocks"]))  # type: ignore[call-overload,arg-type]
        rows.append((*at, time_text(r["median"]), over, share_text(r)))  # type: ignore[arg-type]
    return markdown(["step", "B", "context", "k", "time", "over its bytes at the read floor", "of its floor"], rows)


SECTIONS: dict[str, Callable[[Table], str]] = {
    "provenance": provenance, "floors": floors, "bars": bars, "dense": dense, "sparse": sparse, "gdn": gdn, "host": host, "step": steps,
}  # fmt: skip


def bodies(tables: list[Table], tunings: list[report_tuning.Tuning]) -> dict[str, str]:
    """What every part SECTION TABLE of a document says."""
    found = {f"{name} {t.name}": section(t) for t in tables for name, section in SECTIONS.items()}
    return found | {f"{name} {t.name}": section(t) for t in tunings for name, section in report_tuning.SECTIONS.items()}


def fill(text: str, parts: dict[str, str]) -> str:
    """The document with every marked part replaced by what the data say; a part is named SECTION TABLE."""

    def part(match: re.Match[str]) -> str:
        return f"<!-- begin {match[1]} -->\n{parts.get(match[1], 'not measured')}\n<!-- end {match[1]} -->"

    return re.sub(r"<!-- begin (\w+ \w+) -->\n.*?<!-- end \1 -->", part, text, flags=re.DOTALL)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.report", description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=Path("scenarios/data/measured/kernels"))
    parser.add_argument("--doc", type=Path, default=Path("docs/kernels.md"))
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the document is stale")
    args = parser.parse_args(argv)
    tables = [load(p) for p in sorted(args.data.glob("kernels_*.csv"))]
    parts = bodies(tables, [report_tuning.load(p) for p in sorted(args.data.glob("tune_dense_*.csv"))])
    old = args.doc.read_text()
    new = fill(old, parts)
    if args.check:
        return int(old != new)
    args.doc.write_text(new)
    for name, body in parts.items():
        print(f"\n## {name}\n\n{body}")
    for table in tables:
        report_plots.write(table, args.doc.parent / "img")
    return 0


if __name__ == "__main__":
    sys.exit(main())
