"""A grid measured on a card that no catalogue knows is read for the YAML file that names it, and for no other."""

from pathlib import Path

import pytest

from calibrate.measured_files import engine_grids
from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from tests.docs.pages import ROOT

GRID = ROOT / "scenarios" / "data" / "measured" / "h100" / "engine-grid_llama3.1-8b.nc"
YAML = """
name: {name}
aliases: [{alias}]
memory_bytes: 85.5e+9
memory_bandwidth: 3.0e+12
flops: {{fp16: 900.0e+12, bf16: 900.0e+12}}
host_link_bandwidth: 63.0e+9
"""


def card(folder: Path, alias: str):
    file = folder / "card.yaml"
    file.write_text(YAML.format(name="Prototype-7", alias=alias), encoding="utf-8")
    return get_gpu(str(file))


def test_the_file_names_what_the_driver_calls_it(tmp_path):
    own = card(tmp_path, "NVIDIA H100 80GB HBM3")
    (grid,) = engine_grids(own, [GRID])
    assert grid.gpu == own
    assert len(grid.cells) > 100


def test_a_grid_of_another_card_is_refused(tmp_path):
    with pytest.raises(UsageError, match="neither that name nor such an alias"):
        engine_grids(card(tmp_path, "Prototype-8"), [GRID])
