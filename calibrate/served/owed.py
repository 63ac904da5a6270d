"""What decodes are late after prefill, learnt from the packaged duty measurement (hw.suites.duty): `python -m calibrate.served.owed`.

A batch of decodes ran by itself, then with a chunk in every k-th iteration, then by itself again. How late a decode is, so many
iterations after a chunk, is what it takes over the calm ones of its own sequence, at the same contexts. The host's slow spells only ever
add, to both, so lower quartiles are compared.

The account: products add a share of their time to what is owed, up to a limit; every decode iteration that follows is longer by a part of
what is owed still. Its constants are the point of a grid of them whose lateness is nearest to all that was seen, by absolute differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.text_files import csv_rows
from sim.engine.boost import Boost
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S
from sim.posterior import rates_for
from sim.precision import Precision
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model

Array = NDArray[np.float64]
LEAST_OWED_S = 1e-5  # a thousandth of a step: the rest is forgotten
GPU, MODELS = "H100", ("llama3.1-8b", "qwen2.5-7b")
FOLDER = "data/measured/h100"
WARM, CALM = 10, 16  # decodes of a sequence's beginning, and after prefill, that are not calm yet
LEAST_SEEN = 4  # iterations of a kind
MOST_COUNTED = 25  # of them: beyond, they are no longer independent
OWED = np.arange(0.010, 0.0601, 0.0025)
OWED_MOST_S = np.arange(0.6e-3, 2.41e-3, 0.1e-3)
PAID = np.arange(0.20, 0.801, 0.05)


class Account(NamedTuple):
    """Seconds owed for every second of products, at most so many, and the part of what is owed that one decode iteration pays; floats, or
    arrays of one shape.
    """

    owed: Any
    most_s: Any
    paid: Any


NONE = Account(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Row:
    """Decodes at one duty, arrays [iteration]: seconds of products, iterations since the last with prefill, and how late each decode was
    beyond the calm ones (nan with prefill), seconds.
    """

    label: str
    during: NDArray[np.bool_]
    since: NDArray[np.int64]
    products_s: Array
    late_s: Array

    def seen(self) -> dict[int, tuple[float, int]]:
        """{iterations since prefill: (seconds late, how many were seen)} between chunks."""
        found = {}
        for since in range(1, int(self.since[self.during].max()) + 1):
            own = self.late_s[self.during & (self.since == since)]
            if len(own) >= LEAST_SEEN:
                found[since] = (float(np.quantile(own, 0.25)), len(own))
        return found


def measured(model: str) -> list[Row]:
    """The sequences with decodes of the packaged duty measurement of `model`."""
    folder = files("scenarios").joinpath(FOLDER)
    name = f"duty_{model}"
    told, rows = (csv_rows(folder.joinpath(f"{name}{end}").read_text(encoding="utf-8"), name)[1] for end in (".csv", ".iterations.csv"))
    counted = Boost(share=1.0)  # any boost has products counted
    steps = StepTime(get_model(model), Precision(), rates_for(get_gpu(GPU), Precision()).point, boost=counted)
    columns = ("sequence_index", "model_s", "decode_seqs", "decode_context_tokens", "prefill_tokens")
    table = np.array([[float(row[column] or "nan") for column in columns] for _, row in rows])
    parts = np.array([row["part"] for _, row in rows])
    return [
        _row(str(one["label"]), table[own, 1:], parts[own], steps)
        for i, (_, one) in enumerate(told)
        if one["kind"] == "duty" and (own := table[:, 0] == i).any()
    ]


def _row(label: str, table: Array, part: NDArray[np.str_], steps: StepTime) -> Row:
    took, seqs, contexts, prefill = table.T
    products = [steps.products(int(n), [(int(new), int(new), 1)] if new else []) * TICK_S for n, new in zip(seqs, prefill, strict=True)]
    place, alone = np.arange(len(took)), prefill == 0
    last = np.maximum.accumulate(np.where(alone, -CALM, place))
    since = place - last
    priced = [steps.stretch(int(n), int(c)).first * TICK_S if a else np.nan for n, c, a in zip(seqs, contexts, alone, strict=True)]
    late = took - np.array(priced)
    calm = alone & (place >= WARM) & (part != "during") & (since >= CALM)
    return Row(label, part == "during", since, np.array(products), late - np.quantile(late[calm], 0.25))


def lateness(row: Row, account: Account) -> Array:
    """Seconds [iteration, ...] by which decodes are late by such an account."""
    owed, most_s, paid = (np.asarray(each, dtype=np.float64) for each in account)
    left, found = np.zeros_like(owed), np.zeros((len(row.products_s), *owed.shape))
    for i, products_s in enumerate(row.products_s):
        if products_s > 0:
            left = np.minimum(left + owed * products_s, most_s)
        else:
            found[i] = left * paid
            left = np.where(found[i] > LEAST_OWED_S, left - found[i], 0.0)
    return found


def missed_s(rows: Sequence[Row], account: Account) -> Array:
    """Mean absolute difference [...] between the lateness that was seen of kinds of iterations and that of the account, seconds."""
    off, weight = np.zeros(np.shape(account.owed)), 0.0
    for row in rows:
        late = lateness(row, account)
        for since, (seen, count) in row.seen().items():
            told = late[row.during & (row.since == since)].mean(axis=0)
            own = float(np.sqrt(min(count, MOST_COUNTED)))
            off, weight = off + own * np.abs(told - seen), weight + own
    return np.asarray(off / weight)


def fit(rows: Sequence[Row]) -> Account:
    """The account that explains these best."""
    grid = np.array(np.meshgrid(OWED, OWED_MOST_S, PAID, indexing="ij")).reshape(3, -1)
    owed, most_s, paid = (float(x) for x in grid[:, int(np.argmin(missed_s(rows, Account(*grid))))])
    return Account(round(owed, 4), round(most_s, 5), round(paid, 2))


def main() -> None:
    """How late decodes are after prefill, and what an account of one model says of another."""
    rows = {model: measured(model) for model in MODELS}
    both = [row for each in rows.values() for row in each]
    account = fit(both)
    print(f"{'learnt on':14s} {'owed':>6s} {'most':>8s} {'paid':>6s}  left of lateness, us: " + ", ".join(MODELS))
    for name, one in (*((model, fit(each)) for model, each in rows.items()), ("both", account), ("(nothing)", NONE)):
        left = ", ".join(f"{1e6 * float(missed_s(each, one)):.0f}" for each in rows.values())
        print(f"{name:14s} {one.owed:6.4f} {1e3 * one.most_s:5.1f} ms {one.paid:6.2f}  {left}")
    for model, each in rows.items():
        print(f"{model}: microseconds late, seen / by the account of both, 1, 2, 3, ... decodes after a chunk")
        for row in each:
            late = lateness(row, account)
            pairs = [(seen, late[row.during & (row.since == since)].mean()) for since, (seen, _) in row.seen().items()]
            print(f"  {row.label:27s} " + " ".join(f"{1e6 * seen:.0f}/{1e6 * told:.0f}" for seen, told in pairs))


if __name__ == "__main__":
    main()
