"""`python -m hw.products_price`: how far iterations of the catalogue's models are priced otherwise where their products were measured.

With the table a price has what products take beyond smooth; without it the last tile stands for that (docs/adr/0021). Decodes of every
captured size at CONTEXT tokens, and beyond the graphs chunks of every measured number of rows, are priced both ways, at the median rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import click

from hw.exits import call
from hw.products_list import gpus_of
from hw.profile_table import aligned
from sim.bill import CAPTURED, bill_from, coefficients, decode_shape, mixed_shape
from sim.errors import UsageError
from sim.precision import Precision
from sim.price import step_time_s
from sim.products import GRAPHS, Measured, Product, beyond, measured, products_of, read_table
from sim.rates import Rates
from sim.specs.model import ModelSpec

CONTEXT = 1024.0
SHOWN = 12  # numbers of rows that are named


class Change(NamedTuple):
    """Of a model split over `tp` GPUs, by rows, what the price with measured products is of the price without."""

    model: str
    tp: int
    by_rows: dict[int, float]

    def beyond(self, least: float, graphs: bool) -> list[int]:
        """The numbers of rows at which it changes by more than `least`, those that graphs are captured for or those above."""
        return [rows for rows, ratio in self.by_rows.items() if abs(ratio - 1.0) > least and (rows <= GRAPHS) == graphs]

    def most(self, graphs: bool) -> tuple[int, float]:
        """(rows, change) where it changes most."""
        rows, ratio = max(((r, x) for r, x in self.by_rows.items() if (r <= GRAPHS) == graphs), key=lambda item: abs(item[1] - 1.0))
        return rows, ratio - 1.0


def change(model: ModelSpec, tp: int, known: Mapping[Product, Measured], rates: Rates) -> Change | None:
    """None where a product of the model was not measured, or the model does not split so."""
    products = products_of(model, tp)
    by_rows = beyond(products, known)
    if by_rows is None:
        return None
    without = coefficients(model, Precision(), tp)
    found = {}
    rows = sorted({*CAPTURED, *(int(r) for product, _ in products for r in known[product].rows if r > GRAPHS)})
    for r in rows:
        shape = decode_shape(model, float(r), CONTEXT) if r <= GRAPHS else mixed_shape(model, [], [(float(r), float(r), True)], tp=tp)
        with_it, bare = (float(step_time_s(bill_from(c, shape, tp=tp), rates)) for c in (without._replace(choice=by_rows), without))
        found[r] = with_it / bare
    return Change(model.name, tp, found)


def table(changes: Sequence[Change], least: float) -> str:
    """A line per model and number of GPUs: how many sizes of graphs and numbers of rows above change by more, where most."""
    lines = [["model", "GPUs", "graphs", "most", "at", "beyond", "most", "at"]]
    for each in changes:
        cells = []
        for graphs in (True, False):
            rows, most = each.most(graphs)
            cells += [str(len(each.beyond(least, graphs))), f"{most:+.1%}", str(rows)]
        lines.append([each.model, str(each.tp), *cells])
    return aligned(lines)


def said(changes: Sequence[Change], least: float) -> str:
    """Two lines: of how many models and sizes the price changes, and at which rows most often."""
    lines = []
    for graphs, name in ((True, "in graphs"), (False, "beyond them")):
        where = Counter(rows for each in changes for rows in each.beyond(least, graphs))
        models = sum(bool(each.beyond(least, graphs)) for each in changes)
        most = ", ".join(f"{rows} ({count})" for rows, count in where.most_common(SHOWN)) or "none"
        lines.append(f"{name}: {models} of {len(changes)} change by more than {least:.0%} somewhere, most often at {most}")
    return "\n".join(lines)


@click.command("products_price", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--gpu", default="H100", show_default=True, help="The GPU of the catalogue.")
@click.option("--tp", "tps", default="1,2,4,8", show_default=True, help="Numbers of GPUs that models are split over, comma-separated.")
@click.option(
    "--table", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Another table (hw.products_pack) than packaged."
)
@click.option("--least", type=click.FloatRange(0), default=0.02, show_default=True, help="Change of a price that counts, as a share.")
def command(gpu: str, tps: str, file: Path | None, least: float) -> None:
    """Show for which catalogue models measured matrix products change the price of an iteration, and at which rows.

    "graphs" are sizes of captured graphs, as decodes at 1,024 tokens; "beyond" are chunks of more rows. Counted are sizes at which the
    price changes by more than --least.
    """
    from sim.products import known_to
    from sim.rate_source import rates_for
    from sim.specs.gpus import get_gpu
    from sim.specs.models import get_model, list_models

    spec = get_gpu(gpu)
    if file is None:
        tables = measured()
    else:
        tables = _table_of(file)
    known = tables.get(known_to(spec))
    if not known:
        raise UsageError(f"no products of {spec.name!r} were measured; of {', '.join(sorted(tables))}")
    models = [get_model(name) for name in list_models()]
    changes = []
    for tp in gpus_of(tps):
        rates = rates_for(spec, Precision(), tp=tp).point
        changes += [found for model in models if (found := change(model, tp, known, rates))]
    click.echo(f"{spec.name}: {len(known)} products known, all of {len(changes)} models and numbers of GPUs\n")
    if changes:
        click.echo(f"{table(changes, least)}\n\n{said(changes, least)}")


def _table_of(file: Path) -> dict[str, dict[Product, Measured]]:
    try:
        with file.open("rb") as opened:
            return read_table(opened)
    except (AttributeError, EOFError, IndexError, KeyError, TypeError, ValueError, BadZipFile):
        raise UsageError(f"{file.name}: not a table of products (hw.products_pack)") from None


def main() -> None:
    """Run the command."""
    call(command, "python -m hw.products_price")


if __name__ == "__main__":
    main()
