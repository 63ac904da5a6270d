"""Rotary scaling extends the declared context, in both spellings."""

import pytest

from sim.errors import UsageError
from sim.specs.hf_config import spec_from_config
from sim.study.deployment import Deployment
from tests.specs.configs import config


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("declared", "rope", "context"),
    [
        (40960, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (32768, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (163840, {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840),
        (8192, {"type": "linear", "factor": 4.0}, 32768),
        (8192, {"type": "dynamic", "factor": 2.0}, 16384),
        (131072, {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
        (131072, {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}, 131072),
        (131072, {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}, 131072),
        (32768, {"rope_type": "default", "mrope_section": [1, 2]}, 32768),
    ],
)
def test_both_spellings(field, declared, rope, context):
    assert spec_from_config(config("llama", max_position_embeddings=declared) | {field: rope}, "", "").max_context == context


def test_an_unknown_scaling_is_refused():
    with pytest.raises(UsageError, match="rope_type"):
        spec_from_config(config("llama") | {"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "", "")


@pytest.mark.parametrize(
    ("declared", "fields", "version", "length"),
    [
        (40960, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, "0.33", 40960),
        (40960, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, "0.29", None),
        (163840, {"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}}, "0.33", None),
        (131072, {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, "0.12", 4096),
        (8192, {"rope_scaling": {"type": "linear", "factor": 4.0}}, "0.33", None),
    ],
)
def test_vllm_starts_yarn_and_longrope_shorter_unasked(declared, fields, version, length):
    spec = spec_from_config(config("llama", max_position_embeddings=declared) | fields, "", "")
    assert Deployment.of(spec, "H100", engine_version=version).started == length
