import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hw.artifact import write
from hw.suites import kernels
from kernels import bench, results

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernels_page", ROOT / "docs" / "kernels_page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def test_page_and_listings_are_those_of_the_data(page: ModuleType) -> None:
    assert page.main(["--check"]) == 0


def test_a_changed_number_is_noticed(page: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stale = tmp_path / "docs" / "kernels.md"
    stale.parent.mkdir()
    stale.write_text(page.PAGE.read_text().replace(" us |", " ms |", 1))
    monkeypatch.setattr(page, "PAGE", stale)
    monkeypatch.setattr(page, "ROOT", tmp_path)
    assert page.main(["--check"]) == 1


def test_a_new_run_of_the_benchmark_can_be_listed(page: ModuleType, tmp_path: Path) -> None:
    limits = [
        results.row("floor", "read", "floor", median=1e-3, moved=3e9, rate=3e12),
        results.row("dense", "dense_decode", "sdpa", note="absent"),
    ]
    mine = results.row("dense", "dense_decode", "paged", batch=1, context=8192, median=12e-6, rate=1.4e12, of_floor=0.44)
    path = write(kernels.dataset([{"rows": [*limits, mine]}], {"gpu": "A GPU"}), tmp_path / "kernels_b200.nc")
    table = page.load(path)
    assert table.name == "B200"
    assert "| dense decode, 1 x 8K | 12.0 us | 1.40 TB/s | 44 % |  |" in page.summary(table)
    assert len(page.listing(table).splitlines()) == 7


def test_every_timed_kernel_met_its_gate_before_and_after(page: ModuleType) -> None:
    for path in page.DATA.glob("kernels_*.nc"):
        ours = [r for r in page.load(path).rows if not str(r["variant"]).startswith((*bench.BASELINES, "fla"))]
        gated = [r for r in ours if r["error_before"] == r["error_before"]]
        assert len(gated) > 100
        assert all(r["error_before"] <= r["error_bound"] and r["error_after"] <= r["error_bound"] for r in gated)
