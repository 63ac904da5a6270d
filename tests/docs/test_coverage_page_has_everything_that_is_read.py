"""The site's coverage page names every model type, precision, quantisation, GPU and file format that is read."""

import runpy

from sim.specs.architectures import supported
from sim.specs.gpus import list_gpus
from sim.specs.precision import DTYPE_BYTES
from sim.specs.quantisation import METHODS
from sim.workload.formats import FORMATS
from tests.docs.pages import ROOT

SCRIPT = runpy.run_path(str(ROOT / "docs" / "coverage.py"))
PAGE = SCRIPT["page"]()


def test_everything_is_named():
    for name in (*supported(), *DTYPE_BYTES, *METHODS, *FORMATS, *list_gpus()):
        assert name in PAGE


def test_each_block_and_precision_has_a_status():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and ("| measured |" in line or "| priced |" in line)]
    assert len(rows) >= 18


def test_every_engine_says_of_every_feature_whether_it_has_it():
    words = {"measured", "checked", "priced", "refused"}
    for name in SCRIPT["FEATURES"]:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
        assert set(row.strip("| ").split(" | ")[1:]) <= words
    assert "| priorities | priced | refused | refused |" in PAGE


def test_no_run_stands_behind_rates_of_what_answers_call_unmeasured():
    """Answers widen these by declared priors: of those, runs may only have been predicted."""
    for name in ("pipeline parallel", "data parallel attention", "expert parallel", "no CUDA graphs", "adapters (LoRA)"):
        assert f"| {name} | measured" not in PAGE
