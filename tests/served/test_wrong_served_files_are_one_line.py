"""A served measurement whose columns cannot be what they are named is refused in one line, and nothing is written."""

from importlib.resources import files

import numpy as np
import pytest
import xarray as xr

from calibrate.served.runs import first_part, read_served
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
        (column("arrival_s", np.nan), "of the file: needs 0 < first_token_s"),
        (column("output_tokens", 0.0), "request 6 of the file: tokens are not whole numbers"),
        (column("prompt_tokens", 1e300), "request 6 of the file: tokens are not whole numbers"),
        (column("prompt_tokens", 2.5), "request 6 of the file: tokens are not whole numbers"),
        (column("session", np.nan), "session is not a number of one (nan)"),
        (column("n", np.inf, 0), "experiment 'burst': n is not a number of clients (inf)"),
        (column("experiment_index", 7, slice(None)), "experiment 'burst': no requests"),
        (lambda d: d.assign(finish_s=d["finish_s"].assign_attrs(units="ms")), "finish_s is in 'ms', want 's'"),
        (lambda d: d.assign(finish_s=d["finish_s"].astype(str)), "finish_s not in numbers"),
        (lambda d: d.assign(finish_s=((), 1.0)), "finish_s not along the request dimension"),
        (lambda d: d.assign(name=((), "burst")), "name not along the experiment dimension"),
        (lambda d: d.drop_vars("prompt_tokens"), "lacks prompt_tokens"),
        (lambda d: d.assign(void=("experiment", np.array(["busy"], dtype=object))), "no experiment that is not void"),
        (attribute(schema=np.array([1.0, 2.0])), "not a measurement of served"),
        (attribute(starved_server_flags="--tensor-parallel-size two"), "server flag --tensor-parallel-size: not a number: 'two'"),
        (attribute(starved_server_flags="--max-num-seqs 0.5"), "server flag --max-num-seqs: must be a whole number from 1 up"),
    ],
)
def test_columns_that_cannot_be_what_they_are_named_are_refused(burst, tmp_path, spoil, says):
    file, target = tmp_path / "served.nc", tmp_path / "path.json"
    spoil(burst).to_netcdf(file, engine="h5netcdf")
    code, out, err = run("validate", "--run", str(file), "--draws", "2", "--save-path", str(target))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert [p.name for p in tmp_path.iterdir()] == ["served.nc"]


def test_parts_of_an_experiment_keep_the_times_of_their_own_tokens():
    (whole,) = read_served(BURST).experiments
    first, rest = first_part(whole, 0.25)
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
        (b"arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n1,9,3,4,1e300\n", "line 2: takes 1e+300 s: not in seconds?"),
    ],
)
def test_a_csv_that_is_none_is_refused_by_all_that_read_one(tmp_path, text, says):
    path = tmp_path / "log.csv"
    path.write_bytes(text)
    code, out, err = run("validate", "--run", str(path), "--model", "Qwen2.5-7B", "--gpu", "H100")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    if "1e300" not in text.decode("latin-1"):
        assert says in run("calibrate", "--hw", "H100", "--from", str(path), "--model", "Qwen2.5-7B").stderr
        header = b"model,gpu,context_tokens,batch,step_s\n"
        path.write_bytes(text if says.endswith("text") else header + text.split(b"\n")[1])
        assert says in run("knees", str(path)).stderr
