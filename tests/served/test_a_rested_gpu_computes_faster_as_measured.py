"""The boost of a rested GPU is that of the packaged measurement: chunks in a row, after quiet and after decodes, the clocks beside."""

import csv
from importlib.resources import files

import numpy as np
import pytest

from calibrate.served.rested import BOOST

MEASURED = files("scenarios").joinpath("data/measured/h100")
STEADY_S = (0.2, 0.7)  # of chunks in a row: the first rest is used up, and the limit has not yet cut deep


@pytest.fixture(scope="module")
def rows_of():
    """[(what, cell, seconds quiet before), (since_s, step_s)] of every row of iterations."""
    with MEASURED.joinpath("clocks_llama3.1-8b.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    found = []
    for row in rows:
        if row["k"] == "0":
            found.append(((row["what"], row["cell"], float(row["quiet_s"])), []))
        found[-1][1].append((float(row["since_s"]), float(row["step_s"])))
    return [(key, np.array(times).T) for key, times in found]


def gains(rows_of, begins, quiet=None):
    """By how much the first iteration of each such row is faster than its steady ones, shares."""
    out = []
    for (what, cell, quiet_s), (since, step) in rows_of:
        if what.startswith(begins) and cell == "prefill:0+1x2048@0" and quiet in (None, quiet_s):
            steady = np.median(step[(since >= STEADY_S[0]) & (since < STEADY_S[1])])
            out.append(1 - step[0] / steady)
    return np.array(out)


def test_first_chunks_after_decodes_and_after_idleness_are_faster_by_about_the_share(rows_of):
    decodes, idle = gains(rows_of, "after"), gains(rows_of, "prefill")
    assert len(decodes) == 6
    assert len(idle) == 4
    assert (decodes > 0).all()
    assert (idle > 0).all()
    of_a_step = BOOST.share / (1 + BOOST.share)
    for seen in (decodes, idle):
        assert abs(seen.mean() - of_a_step) < 0.015


def test_three_tenths_of_a_second_rest_as_well_as_two_seconds(rows_of):
    short, long = gains(rows_of, "prefill", 0.3), gains(rows_of, "prefill", 2.0)
    assert abs(short.mean() - long.mean()) < 0.02
    assert BOOST.refill * 0.3 >= BOOST.budget_s


def test_what_a_rest_saves_lies_between_chunks_of_2048_and_of_8192(rows_of):
    """Less time than at the steady pace, over the first seven tenths of a second in a row."""
    saved = {}
    for (what, cell, _), (since, step) in rows_of:
        if what == "prefill" and cell in ("prefill:0+1x2048@0", "prefill:0+1x8192@0"):
            first = since < STEADY_S[1]
            steady = np.median(step[first & (since >= STEADY_S[0])])
            saved.setdefault(cell, []).append(float((steady - step[first & (since < STEADY_S[0])]).sum()))
    short, long = (np.mean(saved[f"prefill:0+1x{tokens}@0"]) for tokens in (2048, 8192))
    assert 0 < short < BOOST.share * BOOST.budget_s < 1.5 * long


def test_the_clock_falls_within_two_tenths_of_a_second_of_prefill():
    with MEASURED.joinpath("clocks_llama3.1-8b.smi.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    clock, power = (np.array([float(row[name]) for row in rows]) for name in ("sm_mhz", "power_w"))
    assert clock[power < 150].max() == 1980
    assert np.median(clock[power > 700]) < 0.9 * 1980


def medians(rows_of, what):
    """Median step of all such rows of iterations, their first three aside, by the decodes that they hold or join."""
    steps = {}
    for (kind, cell, _), (_, step) in rows_of:
        if kind == what:
            steps.setdefault(cell.removeprefix("decode:").partition("+")[0], []).append(np.median(step[3:]))
    return {cell: float(np.mean(found)) for cell, found in steps.items()}


@pytest.fixture(scope="module")
def iterations():
    """Rows as `rows_of` has them, of decodes before and between chunks of 2,048."""
    with MEASURED.joinpath("clocks_llama3.1-8b.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["what"] in ("decode", "between")]
    found = {}
    for row in rows:
        found.setdefault((row["what"], row["cell"], 0.0), []).append((0.0, float(row["step_s"])))
    return [(key, np.array(times).T) for key, times in found.items()]


def test_decodes_between_chunks_take_longer_than_decodes_among_themselves(iterations):
    """No price knows of it: what waits for multiprocessors and not for memory takes longer at the clock that prefill leaves."""
    alone, between = medians(iterations, "decode"), medians(iterations, "between")
    assert alone.keys() == between.keys() == {"16x1024", "64x1024", "16x8192"}
    longer = {cell: between[cell] / alone[cell] - 1 for cell in alone}
    assert 0.05 < longer["16x1024"] < 0.10
    assert 0.05 < longer["64x1024"] < 0.10
    assert 0.03 < longer["16x8192"] < 0.07  # of a step that mostly waits for memory it is less


def after_chunks(table, iterations):
    """By how much the decode iteration after a chunk is longer than the decode cell of the same 32 sequences at 8,192 tokens, by chunk."""
    cells = [(row["kind"], row["role"], row["label"].partition(":")[2]) for row in csv.DictReader(table)]
    steps = {}
    for row in csv.DictReader(iterations):
        kind, role, label = cells[int(row["cell_index"])]
        decodes, _, chunk = label.partition("+")
        alone = kind == "decode" and row["target"] == "1"
        if role == "grid" and decodes == "32x8192" and row["warmup"] == "0" and (alone or (kind == "mixed" and row["target"] == "0")):
            steps.setdefault(chunk, []).append(float(row["model_s"]))
    return {chunk: np.median(found) / np.median(steps[""]) - 1 for chunk, found in steps.items() if chunk and "" in steps}


def test_in_grids_the_decode_after_a_chunk_is_longer_the_longer_the_chunk():
    """So it is the prefill that does it, and not that a request leaves."""
    longer = {}
    for path in MEASURED.parent.glob("h[12]00/engine-grid_*.iterations.csv"):
        if "_tp" not in path.name:
            model = path.name.removesuffix(".iterations.csv").rstrip("_0123456789")
            with path.with_name(path.name.replace(".iterations", "")).open() as table, path.open() as iterations:
                for chunk, share in after_chunks(table, iterations).items():
                    longer.setdefault(chunk, {}).setdefault((path.parent.name, model), []).append(share)
    shares = {chunk: [float(np.median(found)) for found in models.values()] for chunk, models in longer.items()}
    short = [share for chunk in ("1x64@0", "1x256@0", "1x512@0") for share in shares[chunk]]
    assert min(short) > -0.01
    assert max(short) < 0.03
    assert 0.0 < min(shares["1x2048@0"]) < max(shares["1x2048@0"]) < 0.10
    assert 0.025 < min(shares["1x8160@0"]) < max(shares["1x8160@0"]) < 0.10


@pytest.fixture(scope="module")
def duty_rows():
    """[chunk, (since_s, step_s)] of every row of chunks of the duty measurements, of two models on another H100."""
    found = []
    for model in ("llama3.1-8b", "qwen2.5-7b"):
        with MEASURED.joinpath(f"duty_{model}.csv").open(encoding="utf-8") as lines:
            kinds = [(row["kind"], int(row["chunk_tokens"])) for row in csv.DictReader(lines)]
        with MEASURED.joinpath(f"duty_{model}.iterations.csv").open(encoding="utf-8") as lines:
            seen = [(int(row["sequence_index"]), float(row["since_s"]), float(row["model_s"])) for row in csv.DictReader(lines)]
        for i, (kind, chunk) in enumerate(kinds):
            if kind == "row":
                found.append((chunk, np.array([(since, step) for index, since, step in seen if index == i]).T))
    return found


def test_on_another_machine_a_rest_saves_less(duty_rows):
    """3 to 7 ms of chunks of 8,192 tokens in a row, of 7 that are simulated; the first chunk of 2,048 is 4 % faster, of 6."""
    saved, firsts = {}, []
    for chunk, (since, step) in duty_rows:
        first = since < STEADY_S[1]
        steady = np.median(step[first & (since >= STEADY_S[0])])
        saved.setdefault(chunk, []).append(float((steady - step[first & (since < STEADY_S[0])]).sum()))
        firsts += [1 - step[0] / steady] if chunk == 2048 else []
    assert len(firsts) == 4
    assert 0.03 < np.mean(firsts) < 0.05 < BOOST.share
    assert 0.003 < min(saved[8192]) < max(saved[8192]) < BOOST.share * BOOST.budget_s
    assert 0.001 < np.median(saved[2048]) < BOOST.share * BOOST.budget_s


def test_a_chunk_after_eleven_decodes_is_little_faster_than_after_one():
    """So a rest by decodes is not as long as it takes, or a tenth of a second's prefill in all is not what ends it: not simulated."""
    for model in ("llama3.1-8b", "qwen2.5-7b"):
        with MEASURED.joinpath(f"duty_{model}.csv").open(encoding="utf-8") as lines:
            labels = [row["label"] for row in csv.DictReader(lines)]
        steps = {every: [] for every in (2, 4, 12)}
        with MEASURED.joinpath(f"duty_{model}.iterations.csv").open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                for every, found in steps.items():
                    if labels[int(row["sequence_index"])] == f"duty 48x768+2048 every {every}" and row["prefill_tokens"] == "2048":
                        found.append(float(row["model_s"]))
        often, sometimes, seldom = (float(np.median(found)) for found in steps.values())
        assert 0.015 < 1 - seldom / often < 0.04
        assert 0.01 < 1 - sometimes / often < 0.03
