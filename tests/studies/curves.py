"""Synthetic efficiency curves with known ratios, for the knee tests."""

from sim.closed_form.knee import eta
from studies.knees.curves import CurveCell, EfficiencyCurve

LADDER = (1, 2, 4, 8, 16, 32, 64)


def curve(model="m", gpu="H100", context=8192, alpha=1.0, weight=16e9, kv_per_token=1e5, ladder=LADDER, decode=64):
    """A curve whose true ratio is alpha times the cell's C k / W."""
    cell = CurveCell(model, gpu, "bf16", context, decode, weight, context * kv_per_token, 80e9)
    return EfficiencyCurve(cell, tuple(map(float, ladder)), tuple(eta(b, alpha * cell.kv_bytes / weight) for b in ladder))


def grid(**alpha_of_gpu):
    """Curves over three models, three contexts and the GPUs given, all crossing inside the ladder."""
    return [
        curve(f"m{i}", gpu, context, alpha, weight=(8 + 4 * i) * 1e9)
        for gpu, alpha in alpha_of_gpu.items()
        for i in range(3)
        for context in (4096, 8192, 32768)
    ]
