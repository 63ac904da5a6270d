"""Of a host never seen launching is known widely; its speed, told or measured, moves what it does and narrows that."""

from importlib.resources import files

import numpy as np
import pytest
import xarray as xr

from sim import Deployment
from sim.errors import SimctlError, UsageError
from sim.rates.host import Host
from sim.rates.load import load_rates
from sim.rates.serving import as_served
from sim.rates.source import RateSource
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.study.deployment import Limits
from tests.cli import run

HOSTS = [files("scenarios") / "data" / "measured" / "validation" / name for name in ("h100_host.nc", "h100_host_1.nc")]


@pytest.fixture(scope="module")
def in_process():
    return load_rates(Deployment.of("Llama-3.1-8B", "H100"), draws=200)


def spread(rates) -> float:
    return float(np.std(np.log(rates.draws.launch_layer_s)))


def test_the_reference_is_the_middle_of_the_packaged_hosts():
    found = [Host.of(str(path)) for path in HOSTS]
    assert np.mean([each.launch for each in found]) == pytest.approx(1.0, abs=1e-3)
    assert np.mean([each.work for each in found]) == pytest.approx(1.0, abs=1e-3)


def test_a_speed_that_is_told_narrows_launching(in_process):
    unseen, _ = as_served(in_process)
    told, _ = as_served(in_process, speed=Host())
    assert spread(told) < 0.8 * spread(unseen)
    assert float(told.point.launch_layer_s) == float(unseen.point.launch_layer_s)


def test_a_host_twice_as_fast_launches_and_answers_in_half_the_time(in_process):
    slow, slow_host = as_served(in_process, speed=Host.of("1"))
    fast, fast_host = as_served(in_process, speed=Host.of(0.5))
    assert float(fast.point.launch_layer_s) == pytest.approx(0.5 * float(slow.point.launch_layer_s))
    assert fast_host.serial_s == pytest.approx(0.5 * slow_host.serial_s)
    assert float(fast.point.beta) == float(slow.point.beta)


def test_without_graphs_interpreting_is_half_of_launching():
    limits = Limits(enforce_eager=True)
    launch_s = {}
    for eager in (False, True):
        d = Deployment(get_model("Llama-3.1-8B"), get_gpu("H100"), limits=limits if eager else Limits())
        one, fast = (RateSource(host_scale=Host(1.0, speed)).of(d, 20)[0].point.launch_layer_s for speed in (1.0, 0.5))
        launch_s[eager] = fast / one
    assert launch_s == pytest.approx({False: 1.0, True: 0.5**0.5})


@pytest.mark.parametrize("told", ["0", "-1", "nan", "inf", "20.1", "no-such-file.nc"])
def test_a_scale_that_is_none_is_refused(told):
    with pytest.raises(UsageError, match=r"host's time|neither a number nor a file"):
        Host.of(told)


@pytest.mark.parametrize("given", [0.05, 20])
def test_every_scale_that_may_be_given_may_be_of_an_eager_engine(given):
    d = Deployment(get_model("Llama-3.1-8B"), get_gpu("H100"), limits=Limits(enforce_eager=True))
    assert RateSource(host_scale=given).of(d, 2)[0].point.launch_layer_s > 0


def test_a_file_that_times_no_launch_is_refused(tmp_path):
    xr.Dataset({"what": ("row", ["interpreter_loop"]), "value_median": ("row", [1e-8])}).to_netcdf(tmp_path / "cpu.nc", engine="scipy")
    with pytest.raises(SimctlError, match="no launch"):
        Host.of(tmp_path / "cpu.nc")


def test_host_work_varies_with_the_served_hosts_alone(in_process):
    """Hosts stepped in process are left out, of engines that hide their host work and of those that show it."""
    for version in ("0.11", "0.23"):
        d = Deployment.of("Llama-3.1-8B", "H100", engine_version=version)
        served, _ = RateSource(host_scale=Host()).of(d, 200)
        assert served.host is None
        assert np.std(np.log(in_process.host)) > 0.1
        assert np.std(np.log(RateSource().of(d, 200)[0].host_work)) == pytest.approx(np.hypot(0.35, 0.3), rel=0.15)


@pytest.mark.parametrize("told", ["0", "no-such-file.nc", __file__])
def test_the_command_names_the_option_in_one_line(told):
    result = run("simulate", "--gpu", "H100", "--num-prompts", "5", "--request-rate", "2", "--host-scale", told)
    assert result.code == 2
    assert result.stderr.startswith("simctl: --host: ")
    assert result.stderr.count("\n") == 1
