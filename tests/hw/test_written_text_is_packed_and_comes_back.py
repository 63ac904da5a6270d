"""netCDF-4 files hold text as compressed characters: it comes back as it was, and repeating it costs next to nothing."""

from pathlib import Path

import numpy as np
import xarray as xr

from hw.artifact import SCHEMA, load, write


def made(texts: list[str]) -> xr.Dataset:
    return xr.Dataset(
        {"text": ("row", np.array(texts, dtype=object), {"units": ""}), "n": ("row", np.arange(len(texts)))}, attrs={"schema": SCHEMA}
    )


def test_text_comes_back(tmp_path: Path) -> None:
    for texts in (["", "aé√", "a longer one"], ["", ""], []):
        write(made(texts), tmp_path / "x.nc")
        read = load(tmp_path / "x.nc")
        assert read.text.values.astype(str).tolist() == texts
        assert read.text.attrs == {"units": ""}


def test_a_thousand_long_names_are_smaller_than_their_letters(tmp_path: Path) -> None:
    write(made(["nvjet_sm90_tst_512x64_64x2_2x1_v_bz_coopB_TNN" * 4] * 1000), tmp_path / "x.nc")
    assert (tmp_path / "x.nc").stat().st_size < 20_000
