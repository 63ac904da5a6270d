"""A served measurement whose columns cannot be what they are named is refused in one line, and nothing is written."""

import re
from importlib.resources import files

import numpy as np
import pytest
import xarray as xr

from calibrate.served.runs import read_served
from tests.cli import run

BURST = files("scenarios") / "data" / "measured" / "h100" / "served_qwen2.5-7b_burst.nc"


@pytest.fixture(scope="module")
def burst():
    with xr.open_dataset(str(BURST), decode_timedelta=False) as opened:
        return opened.load()


def column(name, value, where=5):
    def spoil(data):
        values = data[name].values.astype(float)
        values[where] = value
        return data.assign({name: (data[name].dims, values, data[name].attrs)})

    return spoil


def attribute(**changes):
    return lambda data: data.assign_attrs(changes)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (column("first_token_s", np.nan), "experiment 'burst', request 6 of the file: needs 0 < first_token_s <= finish_s"),
        (column("first_token_s", -0.1), "request 6 of the file: needs 0 < first_token_s"),
        (column("finish_s", 0.0), "request 6 of the file: needs 0 < first_token_s <= finish_s"),
        (column("finish_s", np.inf), "request 6 of the file: needs 0 < first_token_s"),
        (column("arrival_s", -2.0), "of the file: arrival_s is negative"),
        (
            lambda d: d.assign(first_token_s=d["first_token_s"] * 0 + 1, finish_s=d["finish_s"] * 0 + 2),
            "every request took exactly as long",
        ),
        (column("finish_s", 5000.0), "1 of 48 requests take [0-9]+ times as long per token as all the others: mixed units?"),
        (
            lambda d: d.assign(first_token_s=1e3 * d["first_token_s"], finish_s=1e3 * d["finish_s"]),
            "sequence alone takes .*H100: wrong unit?",
        ),
        (column("arrival_s", np.nan), "of the file: needs 0 < first_token_s"),
        (column("output_tokens", 0.0), "request 6 of the file: output_tokens says 0, token_request has 128"),
        (column("prompt_tokens", 1e300), "request 6 of the file: tokens are not whole numbers"),
        (column("prompt_tokens", 2.5), "request 6 of the file: tokens are not whole numbers"),
        (column("session", np.nan), "request 6 of the file: session is not a number of one"),
        (column("n", np.inf, 0), "experiment 'burst': n is not a number of clients (inf)"),
        (column("experiment_index", 7, slice(None)), "experiment 'burst': no requests"),
        (lambda d: d.assign(finish_s=d["finish_s"].assign_attrs(units="ms")), "finish_s is in 'ms', want 's'"),
        (lambda d: d.assign(finish_s=d["finish_s"].astype(str)), "finish_s not in numbers"),
        (lambda d: d.assign(finish_s=((), 1.0)), "finish_s not along the request dimension"),
        (lambda d: d.assign(name=((), "burst")), "name not along the experiment dimension"),
        (lambda d: d.drop_vars("prompt_tokens"), "lacks prompt_tokens"),
        (lambda d: d.assign(void=("experiment", np.array(["busy"], dtype=object))), "no experiment that is not void"),
        (attribute(schema=np.array([1.0, 2.0])), "not a measurement of served"),
        (
            attribute(starved_server_flags="--tensor-parallel-size two"),
            "server flags: --tensor-parallel-size must be a whole number from 1 up",
        ),
        (attribute(starved_server_flags="--max-num-seqs 0.5"), "server flags: --max-num-seqs must be a whole number from 1 up"),
    ],
)
def test_columns_that_cannot_be_what_they_are_named_are_refused(burst, tmp_path, spoil, says):
    file, target = tmp_path / "served.nc", tmp_path / "overhead.json"
    spoil(burst).to_netcdf(file, engine="h5netcdf")
    code, out, err = run("validate", "--run", str(file), "--draws", "2", "--save-overhead", str(target))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err or re.search(says, err), err
    assert [p.name for p in tmp_path.iterdir()] == ["served.nc"]


def test_parts_of_an_experiment_keep_the_times_of_their_own_tokens():
    (whole,) = read_served(BURST).experiments
    first, rest = whole.part(slice(0, 12), "first"), whole.part(slice(12, None), "rest")
    assert first.token_s is not None
    assert rest.token_s is not None
    assert (len(first.token_s), len(rest.token_s)) == (12, 36)
    np.testing.assert_allclose([t[0] for t in first.token_s], first.arrival_s + first.ttft_s, atol=1e-5)
    np.testing.assert_allclose([t[0] for t in rest.token_s], rest.arrival_s + rest.ttft_s, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\x7fELF\xd0\xff", "not UTF-8 text"),
        (b"arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n1,%s,3,4,5\n" % (b"9" * 200_000), "field larger than field limit"),
        (b"arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n1,1e300,3,4,5\n", "line 2: prompt_tokens must be a whole number"),
        (b"arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n1,9,3,4,1e300\n", "line 2: e2el_s is 1e+300 s: not in 0 to a day"),
    ],
)
def test_a_csv_that_is_none_is_refused_by_both_that_read_one(tmp_path, text, says):
    path = tmp_path / "log.csv"
    path.write_bytes(text)
    code, out, err = run("validate", "--run", str(path), "--model", "Qwen2.5-7B", "--gpu", "H100")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    if "1e300" not in text.decode("latin-1"):
        assert says in run("learn", str(path), "--gpu", "H100", "--model", "Qwen2.5-7B").stderr


def log(change):
    """Sixty requests of 100 tokens, one line each, after `change` of (line, [arrival_s, first_token_s, finish_s])."""
    lines = ["arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s"]
    for i in range(60):
        sent, first, last = change(i, [0.2 * i + 1, 0.2 * i + 1.05 + 1e-4 * i, 0.2 * i + 2.05])
        lines.append(f"{sent},1000,100,{first},{last}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda i, times: [1e3 * t for t in times] if i == 7 else times, "1 of 60 requests take [0-9]+ times as long .*: mixed units?"),
        (lambda i, times: [1e3 * t for t in times] if i < 30 else times, "30 of 60 requests take [0-9]+ times as long .*: mixed units?"),
        (lambda i, times: [1e3 * t for t in times], "[0-9]+ times what one sequence alone takes .*H100: wrong unit?"),
        (lambda i, times: [1.0, 1.05, 2.0], "zero variance"),
        (lambda i, times: [t - 3 for t in times] if i == 2 else times, "negative"),
        (lambda i, times: [times[0], times[0], times[2]] if i == 7 else times, "line 9: ttft_s is 0 s"),
    ],
)
def test_a_log_in_no_unit_that_can_be_is_refused_by_all_that_read_one(tmp_path, change, says):
    path, left = tmp_path / "log.csv", tmp_path / "left"
    path.write_text(log(change))
    for argv in (
        ("validate", "--run", str(path), "--model", "Qwen2.5-7B", "--gpu", "H100", "--save-overhead", str(left)),
        ("learn", str(path), "--gpu", "H100", "--model", "Qwen2.5-7B", "--out", str(left)),
    ):
        code, out, err = run(*argv)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert re.search(says, err), err
        assert not left.exists()
