"""A posterior file gives its draws back; a damaged, edited, foreign, outdated or misused one is a named error."""

import gc
import shutil
import sys

import h5netcdf
import numpy as np
import pytest
import xarray as xr

from calibrate.artifacts import write_posterior
from calibrate.sampling import Diagnostics, Settings
from sim.cost.batch import decode_batch
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.errors import SimctlError
from sim.rates.posterior import PosteriorError, digest, rates_for, rates_from_file, read_posterior
from sim.rates.priors import EIGHT_BITS
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from tests.calibrate.steps import TRUE

GOOD, BAD = Diagnostics(1.001, 1500.0, 0), Diagnostics(1.2, 30.0, 7)
H100 = get_gpu("H100")


def draws(seed=0, gpu="H100"):
    rng = np.random.default_rng(seed)
    scale = {n: (0.8 if gpu == "*" and v > 1e6 else v) for n, v in TRUE.items()}
    return xr.Dataset({n: (("chain", "draw"), v * np.exp(0.05 * rng.standard_normal((4, 100)))) for n, v in scale.items()})


def write(path, gpu="H100", diagnostics=GOOD, family="step-time", thin_to=None, posterior=None):
    return write_posterior(
        path,
        draws(gpu=gpu) if posterior is None else posterior,
        family=family,
        gpu=gpu,
        source=Provenance(Origin.IN_PROCESS, "posterior for a test"),
        sources=dict.fromkeys(UNITS, Provenance(Origin.IN_PROCESS, "learnt from a test")),
        data_fingerprint="0" * 64,
        diagnostics=diagnostics,
        settings=Settings(),
        thin_to=thin_to,
        weight_dtype="bf16",
    )


def test_the_draws_come_back(tmp_path):
    rates = rates_from_file(write(tmp_path / "p.nc"), H100)
    assert rates.count == 400
    np.testing.assert_array_equal(rates.draws.beta, draws()["beta"].values.ravel())
    assert rates.point.c0_s == pytest.approx(float(draws()["c0_s"].median()))
    assert rates.summary == "posterior for a test"


def test_model_error_moves_a_draws_step_times_as_a_whole(tmp_path):
    posterior = draws()
    error = np.stack([np.full((4, 100), s) for s in (0.03, 0.1, 0.1)], axis=-1)
    posterior["sigma"] = (("chain", "draw", "kind"), error)
    model, cells = get_model("Qwen2.5-7B"), ((1.0, 128.0), (64.0, 8192.0))
    exact, noisy = (rates_from_file(write(tmp_path / f"{n}.nc", posterior=p), H100) for n, p in (("a", draws()), ("b", posterior)))

    def times(rates, batch, context):
        bill = iteration_work(model, decode_batch(model, batch, context), Precision())
        return np.array([step_time_s(bill, rates.draws.at(i)) for i in range(rates.count)])

    first, second = (times(noisy, *cell) / times(exact, *cell) for cell in cells)
    np.testing.assert_allclose(first, second, rtol=1e-12)
    assert np.std(np.log(first)) == pytest.approx(0.03 * np.sqrt(5 / 3), rel=0.2)  # a Student-t with 5 degrees of freedom
    assert noisy.point == exact.point


def test_arviz_reads_the_file(tmp_path):
    from calibrate.backend import arviz

    data = arviz().from_netcdf(str(write(tmp_path / "p.nc")))
    assert dict(data.posterior.sizes)["chain"] == 4
    assert data.attrs["schema"] == "simctl-posterior/1"


def test_thinning_keeps_about_the_number_asked_and_the_file_small(tmp_path):
    path = write(tmp_path / "p.nc", thin_to=200)
    assert rates_from_file(path, H100).count == 200
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize(("want", "count"), [(50, 50), (400, 400), (1000, 1000)])
def test_any_number_of_draws_can_be_asked_for(tmp_path, want, count):
    path = write(tmp_path / "p.nc")
    first, second = (rates_for(H100, path=path, draws=want, seed=4) for _ in range(2))
    assert first.count == count
    np.testing.assert_array_equal(first.draws.beta, second.draws.beta)


def test_an_unconverged_posterior_says_so_in_every_answer(tmp_path):
    assert "NOT CONVERGED" in rates_from_file(write(tmp_path / "p.nc", diagnostics=BAD), H100).summary


def test_a_narrower_weight_dtype_scales_matrix_rates_only_and_says_so(tmp_path):
    path = write(tmp_path / "p.nc")
    sixteen, eight = rates_from_file(path, H100), rates_from_file(path, H100, Precision("fp8"))
    assert eight.point.linear_flops_per_s == pytest.approx(2 * EIGHT_BITS * sixteen.point.linear_flops_per_s, rel=0.01)
    assert eight.point.beta == sixteen.point.beta
    assert "datasheet" in eight.basis["linear_flops_per_s"]


def test_the_populations_efficiencies_become_rates_of_any_gpu(tmp_path):
    path = write(tmp_path / "p.nc", gpu="*")
    for name in ("A100-80G", "L4"):
        gpu = get_gpu(name)
        rates = rates_from_file(path, gpu)
        assert rates.point.beta == pytest.approx(0.8 * gpu.memory_bandwidth, rel=0.05)


def test_another_gpus_posterior_is_refused(tmp_path):
    with pytest.raises(PosteriorError, match="learnt on H100, not on L4"):
        rates_from_file(write(tmp_path / "p.nc"), get_gpu("L4"))


def edit_value(path):
    with h5netcdf.File(path, "a") as file:
        file.groups["posterior"].variables["beta"][0, 0] *= 1.01


def edit_attribute(path):
    with h5netcdf.File(path, "a") as file:
        file.attrs["gpu"] = "H200"


def drop_schema(path):
    with h5netcdf.File(path, "a") as file:
        del file.attrs["schema"]


def drop_digest(path):
    with h5netcdf.File(path, "a") as file:
        del file.attrs["digest"]


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def not_netcdf(path):
    path.write_text("beta,c0\n1,2\n")


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (edit_value, "does not match its digest"),
        (edit_attribute, "does not match its digest"),
        (drop_schema, "not a posterior of this project"),
        (drop_digest, "incomplete posterior"),
        (truncate, "damaged file"),
        (not_netcdf, "not a netCDF-4 file"),
        (empty, "not a netCDF-4 file"),
    ],
)
def test_a_spoilt_file_is_refused_by_name(tmp_path, spoil, says):
    path = write(tmp_path / "p.nc")
    spoil(path)
    with pytest.raises(PosteriorError, match=says) as caught:
        rates_from_file(path, H100)
    assert str(path) in str(caught.value)


def test_a_foreign_netcdf_is_refused(tmp_path):
    path = tmp_path / "other.nc"
    xr.Dataset({"beta": ("x", [1.0])}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(PosteriorError, match="not a posterior of this project"):
        read_posterior(path)


def test_rates_learnt_with_another_formula_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "p.nc")
    monkeypatch.setattr("sim.rates.posterior.formula_fingerprint", lambda: "1" * 64)
    with pytest.raises(PosteriorError, match="another version of the formula"):
        rates_from_file(path, H100)


@pytest.mark.parametrize("family", ["recall", "knees"])
def test_a_posterior_of_something_else_is_refused(tmp_path, family):
    with pytest.raises(PosteriorError, match=f"a posterior of '{family}'"):
        rates_from_file(write(tmp_path / "p.nc", family=family), H100)


@pytest.mark.parametrize("wrong", [np.nan, -1.0])
def test_draws_that_cannot_be_rates_are_refused(tmp_path, wrong):
    posterior = draws()
    posterior["beta"][0, 0] = wrong
    with pytest.raises(PosteriorError, match=r"finite|draws in 1e-30"):
        rates_from_file(write(tmp_path / "p.nc", posterior=posterior), H100)


def test_a_rate_that_is_missing_is_named(tmp_path):
    with pytest.raises(PosteriorError, match="gather_s"):
        rates_from_file(write(tmp_path / "p.nc", posterior=draws().drop_vars("gather_s")), H100)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = write(tmp_path / "p.nc")
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.nc"]
    with pytest.raises(SimctlError, match="no such folder"):
        write(tmp_path / "absent" / "p.nc")


def test_a_missing_file_is_an_operating_system_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_posterior(tmp_path / "none.nc")
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("basis", "not JSON", "does not say what its rates were learnt from"),
        ("basis", "[1]", "does not say what its rates were learnt from"),
        ("basis", "{}", "lacks c0_s, c_seq_s"),
        ("host_sd", "wide", "host_sd is not a number from 0 up to 10: 'wide'"),
        ("host_sd", np.nan, "host_sd is not a number from 0 up to 10: nan"),
        ("converged", "maybe", "converged is not a number"),
        ("host_request_s", -1.0, "host_request_s is not a number from 0 up to 1e.06: -1"),
    ],
)
def test_attributes_that_cannot_be_are_refused_even_with_a_digest_that_matches(tmp_path, name, value, says):
    posterior = draws()
    posterior["sigma"] = (("chain", "draw", "kind"), np.full((4, 100, 4), 0.03))
    path = write(tmp_path / "p.nc", posterior=posterior)
    with h5netcdf.File(path, "a") as file:
        file.attrs[name] = value
        attrs = {k: v.item() if isinstance(v, np.generic) else v for k, v in file.attrs.items()}
        held = file.groups["posterior"]
        file.attrs["digest"] = digest(attrs, {n: np.asarray(v[...]) for n, v in held.variables.items() if n not in held.dimensions})
    with pytest.raises(PosteriorError, match=says) as caught:
        rates_from_file(path, H100)
    assert str(path) in str(caught.value)


def test_what_a_damaged_file_leaves_behind_is_thrown_away_in_silence(tmp_path, monkeypatch):
    whole = write(tmp_path / "p.nc").read_bytes()
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    for seed in range(8):
        rng, spoilt = np.random.default_rng(seed), bytearray(whole)
        for place in rng.integers(0, len(spoilt), 300):
            spoilt[place] = rng.integers(256)
        path = tmp_path / f"{seed}.nc"
        path.write_bytes(bytes(spoilt))
        with pytest.raises(PosteriorError):
            read_posterior(path)
    gc.collect()
    assert printed == []
