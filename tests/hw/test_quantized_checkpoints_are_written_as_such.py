"""A shape measured as a quantized checkpoint says so in its config.json, and files measured so are read back in the formula's dtypes."""

import json
from pathlib import Path

import pytest

from calibrate.measurement import open_measurement, precision_of
from hw.engines.shapes import CHECKPOINTS, engine_flags, write_model
from hw.jobs import Job
from hw.suites.served import _flags

VALIDATION = Path(__file__).parents[2] / "scenarios/data/measured/validation"


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_checkpoint_says_how_it_is_quantized_and_the_engine_is_not_told(name: str, tmp_path: Path) -> None:
    folder = write_model("tiny-25m", tmp_path, quantization=name)
    assert json.loads((folder / "config.json").read_text())["quantization_config"] == CHECKPOINTS[name]
    assert engine_flags(name) == {}
    assert "--quantization" not in _flags(Job("served", "cuda", "tiny-25m", quantization=name))


def test_other_names_are_the_engines(tmp_path: Path) -> None:
    folder = write_model("tiny-25m", tmp_path, quantization="fp8")
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    flags = _flags(Job("served", "cuda", "tiny-25m", quantization="fp8"))
    assert flags[flags.index("--quantization") + 1] == "fp8"


@pytest.mark.parametrize(
    ("file", "weights"),
    [
        ("h100_engine-grid_llama3.1-8b_gptq", "int4"),
        ("h100_engine-grid_llama3.1-8b_awq_marlin", "int4"),
        ("h100_served_llama3.1-8b_fp8-block", "fp8"),
        ("h100_served_gpt-oss-20b", "mxfp4"),
        ("h100_served_deepseek-v2-lite", "bf16"),
    ],
)
def test_measured_files_are_of_the_dtype_their_weights_have(file: str, weights: str) -> None:
    assert precision_of(open_measurement(VALIDATION / f"{file}.nc", ()).attrs).weights == weights
