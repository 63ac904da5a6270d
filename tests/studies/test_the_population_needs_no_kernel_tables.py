"""What the population is learnt from is in the project: what kernel tables show of each GPU's rates, every digit kept."""

import h5netcdf
import numpy as np
import pytest

from sim.errors import UsageError
from sim.files import package_path
from studies.population.build import MEASURED, fingerprint, from_posterior
from studies.population.kernel_efficiency import BY_KERNELS, Efficiency, Estimate, estimates, read_efficiencies, written

POPULATION = package_path("scenarios", "data", "posteriors", "population.nc")


def test_the_packaged_population_was_learnt_from_it():
    engines = [each for gpu in MEASURED for each in from_posterior(gpu)]
    with h5netcdf.File(POPULATION) as file:
        assert file.attrs["data"] == fingerprint(estimates(read_efficiencies()), engines)


def test_what_is_written_is_read_to_the_last_digit(tmp_path):
    rng = np.random.default_rng(0)
    made = [Efficiency(Estimate("L40S", rate, -rng.random(), rng.random(), 9), 1e12 * rng.random()) for rate in BY_KERNELS]
    path = tmp_path / "efficiency.csv"
    path.write_text(written(made))
    assert read_efficiencies(path) == made


def test_a_share_follows_the_datasheet_of_today():
    (known,) = (each for each in read_efficiencies() if (each.share.gpu, each.share.rate) == ("L40S", "beta_kv"))
    (before,), (after,) = estimates([known]), estimates([Efficiency(known.share, 2 * known.peak)])
    assert before == known.share
    assert after.log_value - before.log_value == pytest.approx(np.log(2))


def test_gemms_measured_here_count_unless_left_out():
    (known,) = (each for each in read_efficiencies() if (each.share.gpu, each.share.rate) == ("H100", "beta"))
    assert estimates([known])[0].log_value != known.share.log_value
    assert estimates([known], "H100") == [known.share]


def test_another_file_is_refused_by_its_columns(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("gpu,rate\nL40S,beta_kv\n")
    with pytest.raises(UsageError, match="needs columns gpu, rate, log_share"):
        read_efficiencies(path)
