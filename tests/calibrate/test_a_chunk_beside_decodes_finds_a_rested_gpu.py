"""In grids a chunk beside decodes takes less time than the same chunk alone, though it computes more (log: power limit)."""

import numpy as np
import pytest

from calibrate.measured_files import engine_grids
from sim.specs.gpus import get_gpu

MIXTURE = "a3b"  # which experts a chunk meets is chance, and outweighs it


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_a_chunk_of_2048_takes_less_beside_eight_decodes_than_alone(gpu: str) -> None:
    ratios, longer = [], []
    for grid in engine_grids(get_gpu(gpu)):
        if grid.tp > 1 or MIXTURE in grid.source:
            continue
        took = dict(zip(grid.cells.cell.tolist(), grid.cells.step_s.tolist(), strict=True))
        for ends, found in ((("8x1024+1x2048@0", "0+1x2048@0"), ratios), (("8x1024+1x8184@0", "0+1x8192@0"), longer)):
            beside, alone = took.get(f"mixed:{ends[0]}"), took.get(f"prefill:{ends[1]}")
            if beside and alone:
                found.append(beside / alone)
    assert len(ratios) >= 6
    assert 0.94 < float(np.median(ratios)) < 0.99
    assert np.mean(np.array(ratios) < 1.0) > 0.75
    # what decodes earn is milliseconds, whatever the chunk
    assert abs(float(np.median(longer)) - 1.0) < 1.0 - float(np.median(ratios))
