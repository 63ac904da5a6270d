"""Iterations that a server wrote down are held to their own price: what is off is named, what is not is not; packaged runs show both."""

import csv
import gzip
import json
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from calibrate.served.iterations import COLUMNS, LEAST_SEEN, Iterations, beside, kinds, launches_s, priced_s, read_iterations, rows_off
from calibrate.served.rested import BOOST
from sim.deployment import plan_engine
from sim.engine.presets import step_settings
from sim.engine.steptime import StepTime
from sim.errors import UsageError
from simctl.iterations_text import lines
from tests.cli import run
from tests.served.made import HOST, IN_PROCESS, RUN, as_served

MEASURED = Path(str(files("scenarios"))) / "data" / "measured" / "h100"


@pytest.fixture(scope="module")
def steps():
    config, _ = plan_engine(RUN.model, RUN.gpu, RUN.precision, RUN.tp, RUN.limits)
    return StepTime(RUN.model, RUN.precision, as_served(IN_PROCESS).point, **step_settings(config, HOST.work, BOOST))


def iterations(steps, rows=(200, 440, 440, 700, 900, 440, 440, 440, 1500)):
    """Decodes of 24 sequences, and after every thirty of them one with prefill of so many rows in all, all of them collected as priced."""
    chunks, context, decodes = [], [], 24
    for n in rows:
        chunks += [()] * 30 + [((n - decodes, 0),)]
    chunks += [()] * 30
    count = len(chunks)
    context = 24 * (700 + np.arange(count))
    blank = np.zeros(count)
    # decided while the one before runs: all that the clocks ask is that it be so
    one = Iterations(blank, blank, blank + 1.0, np.full(count, decodes), context, np.full(count, 90.0), tuple(chunks))
    collected = priced_s(steps, one)
    decided = np.concatenate([[0.0, 0.0], collected[:-2]])
    return replace(one, decided_s=decided, scheduled_s=decided + 1e-4, collected_s=collected)


def test_what_takes_its_price_is_off_by_nothing(steps):
    one = iterations(steps)
    assert one.follows[1:].all()
    found = kinds([one], [priced_s(steps, one)])
    assert {kind.name for kind in found} >= {"decodes 1-4 after prefill", "decodes 17+ after prefill", "prefill of 257-512 rows"}
    for kind in found:
        assert abs(kind.off_s) < 1e-6
        assert kind.measured_s == pytest.approx(kind.priced_s, abs=1e-6)
    assert rows_off([one], [priced_s(steps, one)], 1e-4) == []


def test_rows_that_take_longer_are_named_and_no_others(steps):
    one = iterations(steps)
    late = np.cumsum(np.where((one.rows > 432) & (one.rows <= 448) & one.prefill, 4e-3, 0.0))
    slower = replace(one, collected_s=one.collected_s + late, decided_s=one.decided_s + late, scheduled_s=one.scheduled_s + late)
    (named,) = rows_off([slower], [priced_s(steps, slower)], 1e-3)
    assert (named.name, named.count) == ("433-448", 5)
    assert named.off_s == pytest.approx(4e-3, rel=0.02)


def test_decodes_that_take_longer_after_prefill_are_told_from_later_ones(steps):
    one = iterations(steps, rows=(1500,) * 8)
    place = np.concatenate([np.arange(31) if i else np.full(30, 99) for i in range(9)])[: len(one.chunks)]
    after = np.array([int(np.argmax(one.prefill[: i + 1][::-1])) if one.prefill[: i + 1].any() else 99 for i in range(len(one.chunks))])
    assert len(place) == len(after)
    late = np.cumsum(np.where((after >= 1) & (after <= 4), 3e-4, 0.0))
    slower = replace(one, collected_s=one.collected_s + late, decided_s=one.decided_s + late, scheduled_s=one.scheduled_s + late)
    off = {kind.name: kind.off_s for kind in kinds([slower], [priced_s(steps, slower)])}
    assert off["decodes 1-4 after prefill"] == pytest.approx(3e-4, rel=0.05)
    assert abs(off["decodes 17+ after prefill"]) < 2e-5


def table(path, rows):
    text = "\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


GOOD = (0, 0.1, 0.2, 0.3, 4, 4000, 10.0, "64@0 1@5")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ((7, *GOOD[1:]), "line 3"),
        ((-1, *GOOD[1:]), "line 3"),
        ((0, 0.3, 0.2, 0.1, *GOOD[4:]), "line 3"),
        ((0, "nan", 0.2, 0.3, *GOOD[4:]), "line 3"),
        ((*GOOD[:4], -4, *GOOD[5:]), "line 3"),
        ((*GOOD[:4], 0, 0, 0.0, ""), "line 3"),
        ((*GOOD[:7], "0@4"), "line 3"),
        ((*GOOD[:7], "64"), "line 3"),
        (GOOD[:5], "columns"),
    ],
)
def test_a_line_that_is_no_iteration_is_named(row, named, tmp_path):
    for name in ("x.iterations.csv", "x.iterations.csv.gz"):
        with pytest.raises(UsageError, match=f"{name}.*{named}"):
            read_iterations(table(tmp_path / name, [GOOD, row]), 2)


def test_files_that_are_none_are_named(tmp_path):
    whole = table(tmp_path / "x.iterations.csv.gz", [GOOD] * 50)
    assert list(read_iterations(whole, 1)) == [0]
    whole.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(UsageError, match="not a whole gzip file"):
        read_iterations(whole, 1)
    damaged = table(tmp_path / "damaged.csv.gz", [(*GOOD[:1], 0.1 + i * 1e-4, *GOOD[2:]) for i in range(500)])
    packed = bytearray(damaged.read_bytes())
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(255 - byte for byte in packed[len(packed) // 2 : len(packed) // 2 + 40])
    damaged.write_bytes(packed)
    with pytest.raises(UsageError, match="not a whole gzip file"):
        read_iterations(damaged, 1)
    (tmp_path / "latin.csv").write_bytes(b"experiment\xe9\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_iterations(tmp_path / "latin.csv", 1)
    with pytest.raises(UsageError, match="holds no iterations"):
        read_iterations(table(tmp_path / "empty.csv", []), 1)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="columns are not"):
        read_iterations(tmp_path / "other.csv", 1)


def test_every_packaged_table_reads_and_stands_beside_a_run_of_as_many_experiments():
    tables = sorted(MEASURED.glob("*.iterations.csv.gz"))
    assert len(tables) >= 3
    for path in tables:
        run_csv = path.with_name(path.name.replace(".iterations.csv.gz", ".csv"))
        with run_csv.open(encoding="utf-8") as lines:
            experiments = len(list(csv.DictReader(lines)))
        assert beside(run_csv.with_suffix(".nc")) == path
        seen = read_iterations(path, experiments)
        assert len(seen) >= experiments - 2  # of the first it is not always known when they began
        assert min(len(one.chunks) for one in seen.values()) > 100


@pytest.fixture(scope="module")
def packaged():
    result = run("validate", "--run", "h100/served_llama3.1-8b_2", "--iterations", "--draws", "2", "--json")
    (report,) = json.loads(result.stdout)
    return report["iterations"]


def test_a_packaged_run_shows_decodes_longer_after_prefill_the_more_of_it_there_is(packaged):
    longer = {}
    for load in ("open 2/s", "open 8/s", "open 24/s"):
        share = {kind["name"]: kind["measured_s"] / kind["priced_s"] - 1 for kind in packaged["loads"][load]}
        longer[load] = share["decodes 1-4 after prefill"]
        assert abs(share["decodes 17+ after prefill"]) < 0.01
    assert longer["open 2/s"] < 0.005 < longer["open 8/s"] < longer["open 24/s"] < 0.04


def test_no_size_of_a_captured_graph_is_off_in_a_packaged_run(packaged):
    """A graph of 448 rows takes a third longer than its neighbours, and its price does, too; beyond the graphs a host's spells show."""
    off = [kind["name"] for kind in packaged["rows_off"]]
    assert off
    assert all(int(name.partition("-")[0]) > 512 for name in off)


def between(one, begin_s, end_s):
    """The iterations decided in that span."""
    first, last = np.searchsorted(one.decided_s, [begin_s, end_s])
    return Iterations(*(getattr(one, field.name)[first:last] for field in fields(one)))


def test_the_host_launches_in_spells_of_two_speeds():
    """Twelve to fifteen milliseconds for some seconds, then more than twenty: no request, and no one load, tells which it will be."""
    path = MEASURED / "served_qwen2.5-7b_3.iterations.csv.gz"
    medians = []
    for one in read_iterations(path, 24).values():
        for start in np.arange(0.0, one.decided_s[-1], 4.0):
            waits = launches_s([between(one, start, start + 4.0)])
            if len(waits) >= 2 * LEAST_SEEN and np.median(waits) < 0.04:  # waves pack chunks that the GPU computes for longer
                medians.append(float(np.median(waits)))
    quick, slow = (sum(test) for test in ([m < 0.016 for m in medians], [m > 0.0215 for m in medians]))
    assert len(medians) > 20
    assert min(quick, slow) >= 4


def test_a_run_without_them_says_so():
    result = run("validate", "--run", "h100/served_qwen2.5-7b_burst", "--iterations", "--draws", "2")
    assert result.code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == ["simctl: no iterations were written down with served_qwen2.5-7b_burst"]


def test_the_section_fits_eighty_columns(packaged):
    section = lines(packaged)
    assert any(text.startswith("prefill off by 1 ms or more, by rows:") for text in section)
    assert max(map(len, section)) <= 80
