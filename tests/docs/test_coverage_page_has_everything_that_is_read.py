"""The site's coverage page names every model type, precision, quantisation, GPU and file format that is read."""

import runpy

from sim.specs.architectures import supported
from sim.specs.gpus import list_gpus
from sim.specs.precision import DTYPE_BYTES
from sim.specs.quantisation import METHODS
from sim.workload.formats import FORMATS
from tests.docs.pages import ROOT

PAGE = runpy.run_path(str(ROOT / "docs" / "coverage.py"))["page"]()


def test_everything_is_named():
    for name in (*supported(), *DTYPE_BYTES, *METHODS, *FORMATS, *list_gpus()):
        assert name in PAGE


def test_each_block_and_precision_has_a_status():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and ("| measured |" in line or "| priced |" in line)]
    assert len(rows) >= 18
