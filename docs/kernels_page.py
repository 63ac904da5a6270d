"""Tables and pictures of docs/kernels.md, from the measured data: `python docs/kernels_page.py [--check]`.

Reads scenarios/data/measured/kernels/kernels_*.nc, fills the marked parts of the
page, writes every timed row to docs/data/kernels_<gpu>.txt and draws docs/img/kernels_*.png. `--check` writes nothing and exits 1
where page or listings are stale.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernels import results  # noqa: E402
from kernels.results import Row  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DATA = ROOT / "scenarios" / "data" / "measured" / "kernels"
PAGE = ROOT / "docs" / "kernels.md"
K, M = 2**10, 2**20
# Variants that are no longer in the benchmark: layouts, backends and summaries that were slower everywhere.
SLOWER = ("sdpa_efficient", "sdpa_math", "sdpa_cudnn_packed", "sdpa_flash_packed", "paged_16", "paged_256", "paged_apart", "paged_fixed",
          "paged_in_turn", "paged_sorted", "sort_pages", "mean", "zero_copy_32", "zero_copy_128")  # fmt: skip
DENSE = [(1, 8 * K), (1, 128 * K), (1, M), (8, 128 * K), (8, M)]


@dataclass(frozen=True)
class Table:
    """One benchmark run: GPU, attributes, timed rows."""

    name: str
    attributes: dict[str, str]
    rows: list[Row]

    def pick(self, **want: object) -> list[Row]:
        return [r for r in self.rows if all(r[c] == v for c, v in want.items())]

    def best(self, prefix: str, **want: object) -> Row | None:
        """The fastest row whose variant begins with `prefix` and is still in the benchmark."""
        found = [r for r in self.pick(**want) if str(r["variant"]).startswith(prefix) and not str(r["variant"]).startswith(SLOWER)]
        return min(found, key=lambda r: number(r, "median")) if found else None


def number(r: Row, column: str = "median") -> float:
    return float(r[column])  # type: ignore[arg-type]


def load(path: Path) -> Table:
    """A file of `python -m hw --suite kernels`."""
    with xr.open_dataset(path) as opened:
        columns = {name: opened[name].values.tolist() for name in results.COLUMNS if name in opened}
        attributes = {str(name): str(value) for name, value in opened.attrs.items()}
    records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    rows = [{k: str(v) if k in results.TEXT else float(v) for k, v in r.items()} for r in records]
    return Table(path.stem.removeprefix("kernels_").upper(), attributes, [r for r in rows if number(r) == number(r)])


def tokens(n: float) -> str:
    return f"{n / M:.3g}M" if n > 1000 * K else f"{n / K:.3g}K"


def seconds(s: float) -> str:
    return f"{s * 1e3:#.3g} ms" if s >= 1e-3 else f"{s * 1e6:#.3g} us".replace(". us", " us")


def rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e12:.2f} TB/s" if bytes_per_s >= 2e11 else f"{bytes_per_s / 1e9:.1f} GB/s"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def line(what: str, r: Row, compared: str = "") -> list[str]:
    return [what, seconds(number(r)), rate(number(r, "rate")), percent(number(r, "of_floor")), compared]


def summary(t: Table) -> str:
    """One row per kernel and size: time, bandwidth, share of the roofline measured in the same run, the comparison that matters."""
    lines: list[list[str]] = []
    for batch, context in DENSE:
        for r in t.pick(suite="dense", variant="paged", batch=batch, context=context):
            other = t.best("sdpa", suite="dense", batch=batch, context=context)
            compared = f"cuDNN: {seconds(number(other))}" if other else ""
            lines.append(line(f"dense decode, {batch} x {tokens(context)}", r, compared))
    for batch, context in ((1, 16 * K), (1, M), (8, M)):
        for r in t.pick(op="select_gather", variant="minmax_fp8", batch=batch, context=context, k_blocks=8):
            dense = t.best("", suite="dense", batch=batch, context=context)
            compared = f"dense: {seconds(number(dense))}" if dense else ""
            lines.append(line(f"sparse decode, {batch} x {tokens(context)}", r, compared))
    for batch in (8, 128):
        for r in t.pick(op="gdn_decode", variant="f32_state", batch=batch):
            if str(r["note"]).startswith("48"):
                other = t.best("engine", op="gdn_decode", batch=batch, note=r["note"])
                compared = f"vLLM: {seconds(number(other))}" if other else ""
                lines.append(line(f"gated delta rule, batch {batch}", r, compared))
    for r in t.pick(op="host_gather", variant="zero_copy_64", k_blocks=32):
        staged = t.best("staged", op="host_gather", k_blocks=32)
        lines.append(line("host gather, 32 blocks", r, f"staged: {seconds(number(staged))}" if staged else ""))
    for mode in ("dense", "sparse", "tiered"):
        steps = [r for r in t.pick(suite="step", variant=mode, batch=1) if round(number(r, "context") / M) == 1]
        lines += [[f"{mode} step, 1 x 1M", seconds(number(r)), "", percent(number(r, "of_floor")), ""] for r in steps]
    head = ["kernel, batch x context", "time", "bandwidth", "of roofline", "beside"]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def rooflines(t: Table) -> str:
    """The bounds and where they come from, in a sentence."""
    named = {r["op"]: rate(number(r, "rate")) for r in t.pick(suite="floor") if number(r, "moved")}
    a = t.attributes
    gpu = a.get("gpu") or a["gpu_name"]
    return (
        f"{gpu}, {a['date'][:10]}, torch {a['torch']}, Triton {a['triton']}, driver {a['driver']}. Roofline: read {named['read']}, "
        f"read and write in place {named['update']}, host to device {named['h2d']}."
    )


def listing(t: Table) -> str:
    """Every timed row as plain text; errors of the gated delta rule are multiples of their bounds."""
    out = [f"{key}: {value}" for key, value in t.attributes.items()]
    head = ("suite", "op", "variant", "batch", "context", "k", "median us", "p10", "p90", "GB/s", "roofline", "error")
    form = "{:7} {:20} {:24} {:>5} {:>8} {:>3} {:>11} {:>11} {:>11} {:>8} {:>8} {:>8}"
    out += ["", form.format(*head)]
    for r in t.rows:
        if str(r["variant"]).startswith(SLOWER) or r["op"] == "overlap":
            continue
        us = [f"{number(r, c) * 1e6:.2f}" if number(r, c) == number(r, c) else "" for c in ("median", "p10", "p90")]
        gb = f"{number(r, 'rate') / 1e9:.1f}" if number(r, "rate") == number(r, "rate") else ""
        share = f"{number(r, 'of_floor') * 100:.1f} %" if number(r, "of_floor") == number(r, "of_floor") else ""
        error = f"{number(r, 'error_after'):.1e}" if number(r, "error_after") == number(r, "error_after") else ""
        sizes = [int(number(r, c)) for c in ("batch", "context", "k_blocks")]
        out.append(form.format(str(r["suite"]), str(r["op"]), str(r["variant"]), *sizes, *us, gb, share, error).rstrip())
    return "\n".join(out) + "\n"


def filled(text: str, tables: list[Table]) -> str:
    """The page with each part between `<!-- begin NAME -->` and `<!-- end NAME -->` replaced."""
    parts = {f"{part} {t.name}": make(t) for t in tables for part, make in (("roofline", rooflines), ("summary", summary))}

    def part(match: re.Match[str]) -> str:
        return f"<!-- begin {match[1]} -->\n{parts.get(match[1], 'not measured')}\n<!-- end {match[1]} -->"

    return re.sub(r"<!-- begin (\w+ \w+) -->\n.*?<!-- end \1 -->", part, text, flags=re.DOTALL)


# (label, op, variant, batch, colour, line, marker)
BANDWIDTH = [
    ("ours, 1 sequence", "dense_decode", "paged", 1, "C0", "-", "o"), ("ours, 8 sequences", "dense_decode", "paged", 8, "C0", "--", "s"),
    ("cuDNN, contiguous, 1", "dense_decode", "sdpa_cudnn_gqa", 1, "C1", "-", "^"),
    ("cuDNN, contiguous, 8", "dense_decode", "sdpa_cudnn_gqa", 8, "C1", "--", "v"),
]  # fmt: skip
ATTENTION = [
    ("dense, 1 sequence", "dense_decode", "paged", 1, "C0", "-", "o"), ("dense, 8 sequences", "dense_decode", "paged", 8, "C0", "--", "s"),
    ("sparse, 1 sequence", "select_gather", "minmax_fp8", 1, "C3", "-", "^"),
    ("sparse, 8 sequences", "select_gather", "minmax_fp8", 8, "C3", "--", "v"),
]  # fmt: skip


def draw(axis: Axes, t: Table, curves: list[tuple[str, str, str, int, str, str, str]], column: str, scale: float) -> None:
    for label, op, variant, batch, colour, style, marker in curves:
        rows = [r for r in t.pick(op=op, variant=variant, batch=batch) if r["k_blocks"] in (0, 8)]
        points = sorted((number(r, "context"), number(r, column) * scale) for r in rows)
        if points:
            axis.plot(*zip(*points, strict=True), style, color=colour, marker=marker, markersize=4, linewidth=1.3, label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks([2.0**n for n in (13, 15, 17, 19, 21)], ["8K", "32K", "128K", "512K", "2M"])
    axis.set_xlabel("context (tokens a sequence)")
    axis.set_title(t.name, fontsize=10)
    axis.grid(alpha=0.3)


def pictures(tables: list[Table], folder: Path) -> None:
    """kernels_bandwidth.png: KV bandwidth of dense decode under the roofline; kernels_attention.png: time of dense and sparse decode."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for name, curves, column, scale, text in (
        ("kernels_bandwidth", BANDWIDTH, "rate", 1e-12, "KV bandwidth (TB/s)"),
        ("kernels_attention", ATTENTION, "median", 1e6, "attention of one layer (us)"),
    ):
        figure, axes = plt.subplots(1, len(tables), figsize=(4.2 * len(tables), 3.6), sharey=True, squeeze=False)
        for axis, t in zip(axes[0], tables, strict=True):
            draw(axis, t, curves, column, scale)
            if column == "rate":
                axis.axhline(
                    number(t.pick(suite="floor", op="read")[0], "rate") * scale, color="black", linestyle=":", label="roofline: read"
                )
                axis.set_ylim(0, 5)
            else:
                axis.set_yscale("log")
                axis.set_yticks([10, 100, 1000, 10000], ["10", "100", "1,000", "10,000"])
        axes[0][0].set_ylabel(text)
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncol=4, fontsize=8, frameon=False)
        figure.tight_layout(rect=(0, 0.12, 1, 1))
        figure.savefig(folder / f"{name}.png", dpi=90, metadata={"Software": ""})
        plt.close(figure)


def main(arguments: list[str]) -> int:
    tables = [load(path) for path in sorted(DATA.glob("kernels_*.nc")) or sorted(DATA.glob("kernels_*.csv"))]
    written = {PAGE: filled(PAGE.read_text(encoding="utf-8"), tables)}
    written |= {PAGE.parent / "data" / f"kernels_{t.name.lower()}.txt": listing(t) for t in tables}
    stale = [path for path, text in written.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        print("\n".join(f"stale: {path.relative_to(ROOT)}" for path in stale), end="\n" if stale else "")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(written[path], encoding="utf-8")
    pictures(tables, PAGE.parent / "img")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
