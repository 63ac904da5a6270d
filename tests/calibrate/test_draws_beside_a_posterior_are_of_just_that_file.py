"""The .npy beside a posterior's netCDF answers for that file alone: one of another file, or a damaged one, is passed over."""

import numpy as np
import pytest

from sim.rates.draws_file import draws_file, read_draws
from sim.rates.posterior import PosteriorError, packaged_posteriors, rates_from_file, read_posterior
from sim.specs.gpus import get_gpu
from tests.calibrate.test_posterior_files_are_checked_on_loading import draws, write


@pytest.mark.parametrize("path", packaged_posteriors(), ids=lambda path: path.stem)
def test_every_packaged_posterior_has_its_draws_beside_it(path, tmp_path):
    alone = tmp_path / path.name
    alone.write_bytes(path.read_bytes())
    fast, slow = read_posterior(path), read_posterior(alone)
    assert read_draws(path) is not None
    assert read_draws(alone) is None
    assert fast.attrs == slow.attrs
    assert fast.variables.keys() == slow.variables.keys()
    for name, values in slow.variables.items():
        np.testing.assert_array_equal(fast.variables[name], values)


def test_only_thinned_files_have_one(tmp_path):
    write(tmp_path / "whole.nc")
    write(tmp_path / "thinned.nc", thin_to=200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thinned.nc", "thinned.npy", "whole.nc"]


def test_draws_of_another_file_are_not_used(tmp_path):
    path, other = write(tmp_path / "p.nc", thin_to=200), write(tmp_path / "o.nc", thin_to=200, posterior=draws(seed=1))
    draws_file(path).write_bytes(draws_file(other).read_bytes())
    assert read_draws(path) is None
    np.testing.assert_array_equal(read_posterior(path).variables["beta"], draws()["beta"][:, ::2].values.ravel().astype(np.float32))


def test_a_damaged_netcdf_is_refused_though_its_draws_are_whole(tmp_path):
    path = write(tmp_path / "p.nc", thin_to=200)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PosteriorError):
        read_posterior(path)


def test_damaged_draws_are_passed_over(tmp_path):
    path = write(tmp_path / "p.nc", thin_to=200)
    expected, whole = rates_from_file(path, get_gpu("H100")), draws_file(path).read_bytes()
    rng = np.random.default_rng(0)
    spoilt = [b"", whole[:100], whole[:-8], b"\x93NUMPY" * 9]
    for _ in range(60):
        bytes_ = bytearray(whole)
        for place in rng.integers(0, len(whole) if rng.random() < 0.5 else 6000, 3):
            bytes_[place] = rng.integers(256)
        spoilt.append(bytes(bytes_))
    for content in spoilt:
        draws_file(path).write_bytes(content)
        np.testing.assert_array_equal(rates_from_file(path, get_gpu("H100")).draws.beta, expected.draws.beta)
