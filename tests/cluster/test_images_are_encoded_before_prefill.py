"""Images pass a stage of encoders of a fixed time each; where nothing encodes them, or a format cannot say them, one line refuses."""

import json

import numpy as np
import pytest

from sim import Deployment, Fleet, PoolSpec, Workload, simulate
from sim.cluster.encoders import EncoderSpec
from sim.errors import UsageError
from sim.workload.formats import load_trace
from sim.workload.trace import TraceBuilder
from tests.cli import run

POOL = PoolSpec(Deployment.of("Llama-3.1-8B", "H100"))
IMAGE_S = 0.5
OTHERS = {
    "custom": '{"prompt": "what is it?", "multi_modal_data": {"image": "a.png"}}',
    "mooncake": '{"timestamp": 0, "input_length": 9, "output_length": 2, "images": ["a.png"]}',
    "sharegpt": '[{"image": "a.png", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]',
    "sharegpt-sessions": '[{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}]',
}


def served(images, encoders, cancel_s=np.inf):
    builder = TraceBuilder("test")
    for i, count in enumerate(images):
        builder.add(f"{i}", arrival_s=0.1 * i, prompt_tokens=100, output_tokens=10, images=count, cancel_s=cancel_s)
    return simulate(Fleet((POOL,), encoders=encoders), Workload(builder.build()), draws=0)


def waits(answer):
    """Seconds until each call is on its way to a replica."""
    order = np.argsort([int(name) for name in answer.record.request_ids])
    return (answer.record.requests["reached_s"] - answer.record.requests["arrival_s"])[order]


def test_first_come_first_served():
    answer = served([2, 1, 0, 1], EncoderSpec(1, IMAGE_S))
    np.testing.assert_allclose(waits(answer), [1.0, 1.4, 0.0, 1.7], atol=1e-9)  # done at 1, 1.5 and 2
    assert answer.event_by_event == "images that are encoded first"
    np.testing.assert_allclose(waits(served([2, 1, 0, 1], EncoderSpec(2, IMAGE_S))), [1.0, 0.5, 0.0, 0.8], atol=1e-9)


def test_an_encoder_that_takes_no_time_changes_nothing():
    a, b = served([2, 1, 0, 1], EncoderSpec(1, 0.0)), served([0, 0, 0, 9], EncoderSpec(1, 0.0))
    assert a.summary == b.summary


def test_who_gives_up_at_the_encoder_reaches_no_replica():
    answer = served([4, 0], EncoderSpec(1, IMAGE_S), cancel_s=1.0)
    assert np.isnan(answer.record.requests["first_token_s"]).sum() == 1
    assert answer.summary["completed"] == 1


def test_images_and_encoders_come_together():
    with pytest.raises(UsageError, match="requests have images: a fleet file says how long its encoders take"):
        served([1], None)
    with pytest.raises(UsageError, match="encoders: no request has images"):
        served([0], EncoderSpec(1, IMAGE_S))


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_refuse_what_is_no_text(name, tmp_path):
    path = tmp_path / "trace"
    path.write_text(OTHERS[name] + "\n")
    with pytest.raises(UsageError, match="prompts of this format are read as text; `images` are of --trace-format jsonl"):
        load_trace(path, name)


def test_a_fleet_file_and_a_trace_say_it(tmp_path):
    fleet, trace = tmp_path / "fleet.yaml", tmp_path / "trace.jsonl"
    fleet.write_text("pools: [{gpu: H100, model: Llama-3.1-8B}]\nencoders: {replicas: 1, image-s: 0.5}\n")
    trace.write_text(json.dumps({"arrival_s": 0.0, "prompt_tokens": 9, "output_tokens": 2, "images": 2}) + "\n")
    found = json.loads(run("simulate", "--fleet", str(fleet), "--trace", str(trace), "--json").stdout)
    assert found["mean_ttft_ms"] > 1000
    refused = run("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--trace", str(trace))
    assert (refused.code, refused.stdout) == (2, "")
    assert "requests have images: a fleet file says how long its encoders take" in refused.stderr
