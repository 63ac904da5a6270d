from pathlib import Path

import pytest

from kernels import report, results

ROOT = Path(__file__).parents[2]
DATA = ROOT / "scenarios/data/measured/kernels"


def test_the_committed_document_is_what_the_report_makes_of_the_committed_data() -> None:
    assert report.main([str(DATA), "--doc", str(ROOT / "docs/kernels.md"), "--check"]) == 0


def test_a_changed_number_is_noticed(tmp_path) -> None:
    text = (ROOT / "docs/kernels.md").read_text()
    stale = tmp_path / "kernels.md"
    stale.write_text(text.replace(" us |", " us  |", 1))
    assert report.main([str(DATA), "--doc", str(stale), "--check"]) == 1


@pytest.mark.parametrize("path", sorted(DATA.glob("kernels_*.csv")), ids=lambda p: p.stem)
def test_both_files_of_a_run_hold_the_same_rows(path: Path) -> None:
    import xarray as xr

    table = report.load(path)
    with xr.open_dataset(path.with_suffix(".nc"), engine="scipy") as dataset:
        assert dataset.attrs == table.attributes
        for name in results.COLUMNS:
            mine = [r[name] for r in table.rows]
            theirs = dataset[name].values.tolist()
            assert mine == (theirs if name in results.TEXT else pytest.approx(theirs, rel=1e-5, nan_ok=True)), name


@pytest.mark.parametrize("path", sorted(DATA.glob("kernels_*.csv")), ids=lambda p: p.stem)
def test_every_timed_kernel_of_ours_met_its_gate_before_and_after(path: Path) -> None:
    timed = [r for r in report.load(path).rows if r["repeats"] and not str(r["variant"]).startswith(("sdpa", "fa3", "fla", "engine"))]
    gated = [r for r in timed if r["error_before"] == r["error_before"]]
    assert len(gated) > 100
    assert all(r["error_before"] <= r["error_bound"] and r["error_after"] <= r["error_bound"] for r in gated)
