"""GEMM surfaces: learnt from a table they give its times back; a card with one is priced by it, siblings and 8-bit weights, too."""

from pathlib import Path

import numpy as np
import pytest

from sim.cost.gemm import over_roofline
from sim.cost.gemm_surface import packaged, read_surfaces, surface_of
from sim.cost.smooth import smooth_max
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.kernel_tables.gemm_fit import pack, surfaces
from studies.kernel_tables.latency_tables import Table

MODEL = get_model("Llama-3.1-8B")


def made():
    """Products twice as slow as the fastest one's roofline at 64 rows, at any size."""
    gpu, rows = get_gpu("L40S"), []
    for n in (2048, 4096, 8192, 32768):
        for k in (2048, 8192):
            for m in (1, 64, 256, 8192):
                best = smooth_max(2.0 * n * k / 0.8e12, 2.0 * m * n * k / 3e14)
                rows.append((m, n, k, best * (2.0 if m == 64 else 1.0) * 1e3))
    m, n, k, latency = np.array(rows).T
    columns = {"m": m, "n": n, "k": k, "latency": latency, "gemm_dtype": np.full(m.size, "bfloat16")}
    return Table(gpu, "gemm_perf", "1", Path("made"), columns)


def test_a_surface_gives_its_tables_times_back(tmp_path):
    pack(surfaces(made()), tmp_path / "surfaces.npz")
    with (tmp_path / "surfaces.npz").open("rb") as file:
        found = read_surfaces(file)["L40S", "bf16"]
    assert (found.bytes_per_s, found.flops_per_s) == pytest.approx((0.8e12, 3e14), rel=0.02)
    times = found.seconds(4096.0 * 4096, np.array([1.0, 64.0, 8192.0]))
    best = [smooth_max(2.0 * 4096**2 / 0.8e12, 2.0 * m * 4096**2 / 3e14) for m in (1, 64, 8192)]
    assert times / best == pytest.approx([1.0, 2.0, 1.0], rel=0.05)


@pytest.mark.parametrize("key", sorted(packaged()), ids=" ".join)
def test_packaged_times_never_fall_with_a_row_and_never_beat_the_roofline_by_much(key):
    surface, rows = packaged()[key], np.arange(1.0, 8193.0)
    for weights in (4e6, 3e7, 1e8, 5e8):
        seconds = surface.seconds(weights, rows)
        assert (np.diff(seconds) >= 0).all()
        # smooth_max is above the larger of both times where they are alike
        assert (seconds > 0.75 * surface.roofline_s(weights, rows)).all()


def test_cards_known_by_tables_are_over_their_roofline_where_rows_fill_no_tile():
    for name in ("A100-80G", "B200", "L40S", "RTX-PRO-6000-Server"):
        over = over_roofline(MODEL, Precision(), 1, get_gpu(name))
        assert over is not None
        assert over[128] > 1.05


def test_siblings_share_a_surface_and_a_users_card_has_none(tmp_path):
    assert surface_of(get_gpu("A100-40G"), "bf16") is surface_of(get_gpu("A100-80G"), "bf16")
    own = tmp_path / "mine.yaml"
    own.write_text(
        "{name: L40S, memory_bytes: 48.0e+9, memory_bandwidth: 864.0e+9, flops: {bf16: 362.0e+12}, host_link_bandwidth: 32.0e+9}"
    )
    assert surface_of(get_gpu(str(own)), "bf16") is None


def test_eight_bits_are_half_of_sixteen_above_the_floor():
    sixteen, eight = (over_roofline(MODEL, Precision(dtype), 1, get_gpu("L40S")) for dtype in ("bf16", "fp8"))
    assert sixteen is not None
    assert eight is not None
    assert eight[256] == pytest.approx(sixteen[256], rel=0.1)
    assert eight[257] > 1.5 * eight[256]  # a whole tile of rows
