"""Two measurements of the same requests lie as far apart as their noise says; a prediction of their median misses 1 / sqrt(2) of that."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from calibrate.served.overhead import fit_overhead
from calibrate.served.runs import Experiment, read_served, with_token_times
from calibrate.served.scores import replicates, replicates_of
from tests.cli import run
from tests.served.made_runs import IN_PROCESS, RUN, open_loop

PACKAGED = Path(__file__).resolve().parents[2] / "scenarios" / "data" / "measured" / "h100" / "served_qwen2.5-7b.nc"
FIRST = open_loop("open 8/s", 8.0, 400)
NOISE = {"ttft_s": 0.06, "e2el_s": 0.004}
MEDIAN = 0.6745  # of the absolute value of a standard normal


def measured(experiment, name, seed):
    """The experiment as measured once: log-normal noise on each request."""
    rng = np.random.default_rng(seed)
    times = {metric: getattr(experiment, metric) * np.exp(rng.normal(0, sd, len(experiment.ttft_s))) for metric, sd in NOISE.items()}
    return replace(experiment, name=name, replicate=int("again" in name), **times)


def test_the_difference_is_that_of_two_noisy_measurements_and_the_floor_that_of_one():
    pair = measured(FIRST, "open 8/s", 1), measured(FIRST, "open 8/s again", 2)
    (found,) = replicates(pair)
    assert (found.experiment, found.requests) == ("open 8/s", 400)
    for metric, sd in NOISE.items():
        assert found.apart[metric] == pytest.approx(MEDIAN * np.sqrt(2) * sd, rel=0.15)
        truth = getattr(FIRST, metric)
        missed = np.median(np.abs(np.log(truth / getattr(pair[0], metric))))  # by the truth, which knows the middle
        assert found.floor[metric] == pytest.approx(missed, rel=0.2)


def test_requests_are_told_apart_by_size_and_time_not_by_their_place_in_the_file():
    arrival = FIRST.arrival_s.copy()
    arrival[7] = arrival[8]
    first = replace(FIRST, arrival_s=arrival, prompt_tokens=FIRST.prompt_tokens + np.arange(400))
    swapped = np.arange(400)
    swapped[[7, 8]] = 8, 7  # two that were sent almost together overtook one another
    columns = {name: getattr(first, name)[swapped] for name in ("prompt_tokens", "ttft_s", "e2el_s")}
    again = replace(first, name="open 8/s again", replicate=1, **columns)
    (found,) = replicates((first, again))
    assert found.apart["ttft_s"] == found.apart["e2el_s"] == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"name": "open 8/s once more"},
        {"prompt_tokens": FIRST.prompt_tokens + 1},
        {"output_tokens": FIRST.output_tokens[::-1] + np.arange(400)},
        {"kind": "burst"},
    ],
)
def test_another_load_is_no_replicate(change):
    other = replace(FIRST, **{"name": "open 8/s again", "replicate": 1, **change})
    assert replicates((FIRST, other)) == []
    fewer = replace(
        FIRST, name="open 8/s again", replicate=1, **{n: getattr(FIRST, n)[:9] for n in ("arrival_s", "prompt_tokens", "output_tokens")}
    )
    assert replicates_of(FIRST, (FIRST, fewer)) == [FIRST]


def clients(name, seed, size=900):
    """Eight clients of four turns each, noise on every time; what a client sends, it sends once its last answer is back."""
    rng, turns = np.random.default_rng(seed), 4
    session = np.repeat(np.arange(8), turns)
    ttft_s, e2el_s = (value * np.exp(rng.normal(0, sd, 32)) for value, sd in ((0.1, NOISE["ttft_s"]), (0.9, NOISE["e2el_s"])))
    arrival = np.concatenate([np.concatenate([[0.0], np.cumsum(own + 0.2)[:-1]]) for own in e2el_s.reshape(8, turns)])
    order = np.argsort(arrival, kind="stable")
    sizes = {"prompt_tokens": size + session, "output_tokens": np.full(32, 64)}
    columns = {"arrival_s": arrival, "ttft_s": ttft_s, "e2el_s": e2el_s, "session": session} | sizes
    return Experiment(name, "sessions", **{column: values[order] for column, values in columns.items()}, clients=8)


def test_replicates_of_clients_that_wait_are_matched_client_by_client_and_all_pairs_count():
    sendings = tuple(
        replace(clients(f"sessions 8x4{again}", seed), replicate=seed) for seed, again in enumerate(("", " again", " again 2", " again 3"))
    )
    assert replicates_of(sendings[0], sendings) == list(sendings)
    (found,) = replicates(sendings)
    assert (found.sent, found.requests) == (4, 32)
    for metric, sd in NOISE.items():
        assert found.apart[metric] == pytest.approx(MEDIAN * np.sqrt(2) * sd, rel=0.2)
    swapped = sendings[1].session.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    for other in (clients("sessions 8x4 again", 1, size=901), replace(sendings[1], session=swapped)):
        assert replicates((sendings[0], replace(other, replicate=1))) == []


def test_a_low_load_sent_twice_is_learnt_from_as_a_whole():
    low = open_loop("low", 1.0, 12)
    once, twice = (fit_overhead(RUN, IN_PROCESS, lows, ()) for lows in ([low], [low, replace(low, name="low again")]))
    assert twice.fitted_to == ("low", "low again")
    assert twice.rates.point.c0_s == pytest.approx(once.rates.point.c0_s, rel=1e-9)
    late = replace(low, name="low again", ttft_s=low.ttft_s + 2e-3, e2el_s=low.e2el_s + 2e-3)
    both = fit_overhead(RUN, IN_PROCESS, [low, late], ())
    assert both.host.request_s - once.host.request_s == pytest.approx(1e-3, abs=2e-4)
    assert both.overhead.noise["ttft_s"] > once.overhead.noise["ttft_s"]


def test_validate_pairs_the_experiments_of_a_file_scores_both_and_prints_the_floor(tmp_path):
    served, data = read_served(PACKAGED), xr.open_dataset(PACKAGED, decode_timedelta=False).load()
    data = with_token_times(data, PACKAGED.name).drop_vars(["token_request", "token_wait_us"])  # tokens request by request, to be cut
    names = ["open 2/s", "open 8/s"]
    keep = [[e.name for e in served.experiments].index(name) for name in names]
    index, tokens = data["experiment_index"].values, data["output_tokens"].values
    parts = []
    for copy, (place, name) in enumerate((i, f"{n}{suffix}") for suffix in ("", " again") for i, n in zip(keep, names, strict=True)):
        mine = index == place
        one = data.isel(experiment=[place], request=np.flatnonzero(mine), token=np.flatnonzero(np.repeat(mine, tokens)))
        one["experiment_index"] = one["experiment_index"] * 0 + copy
        one["name"] = ("experiment", [name])
        if name.endswith("again"):
            one["first_token_s"] = one["first_token_s"] * np.exp(np.random.default_rng(copy).normal(0, 0.05, mine.sum()))
        parts.append(one)
    file = tmp_path / "served_twice.nc"
    xr.merge(
        [xr.concat([p[[v for v in p if p[v].dims == (d,)]] for p in parts], d) for d in ("experiment", "request", "token")]
    ).assign_attrs(data.attrs).drop_encoding().to_netcdf(file)
    arguments = ("validate", "--run", str(file), "--draws", "2")
    (report,) = json.loads(run(*arguments, "--json").stdout)
    assert report["fitted_to"] == ["open 2/s", "open 2/s again"]
    assert {s["experiment"] for s in report["scores"]} == {"open 8/s", "open 8/s again"}
    low, high = report["replicates"]
    assert (low["experiment"], high["experiment"]) == ("open 2/s", "open 8/s")
    assert 0.03 < high["apart"]["ttft_s"] < 0.07
    assert high["floor"]["ttft_s"] == pytest.approx(high["apart"]["ttft_s"] / np.sqrt(2))
    printed = run(*arguments).stdout.splitlines()
    assert max(map(len, printed)) <= 80
    floor, apart = (f"{100 * high[kind]['ttft_s']:.1f}%" for kind in ("floor", "apart"))
    end = next(line.index("floor") for line in printed if line.startswith("experiment")) + len("floor")
    scored = [line for line in printed if line.startswith("open 8/s") and " TTFT " in line and "p99" not in line]
    assert [line[:end].split()[-1] for line in scored] == [floor, floor]
    differences = printed[next(i for i, line in enumerate(printed) if line.startswith("replicates differ by")) :]
    assert [line.split()[2:4] for line in differences if line.startswith("open 8/s ")] == [["2", apart]]


def test_a_long_name_leaves_the_table_in_eighty_columns(tmp_path):
    file = tmp_path / "served_on_a_server_whose_file_has_a_name_that_is_much_too_long_for_any_line_of_a_table.csv"
    rows = ["arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s"]
    rows += [f"{0.5 * i},{200 + 9 * i},{20 + i},{0.5 * i + 0.03},{0.51 * i + 0.5}" for i in range(30)]
    file.write_text("\n".join(rows) + "\n")
    printed = run("validate", "--run", str(file), "--model", "qwen2.5-7b", "--gpu", "h100", "--draws", "2").stdout.splitlines()
    assert len(printed) > 10
    assert max(map(len, printed)) <= 80
