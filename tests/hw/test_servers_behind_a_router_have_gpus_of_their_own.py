"""hw.engines.vllm_fleet: GPUs and ports of each server, the router's command line; replicas and pools as the simulator sees them."""

from dataclasses import replace

import pytest

from calibrate.served.runs import ServedRun
from hw.command import jobs_of
from hw.engines.vllm_fleet import environments, router_command, serve
from hw.jobs import Job
from sim.cluster.pools import DECODE, PREFILL
from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Limits

URLS = [f"http://127.0.0.1:{port}" for port in (8001, 8002, 8003)]


def test_no_two_servers_share_a_gpu_or_a_port():
    found = environments(3, 2, connected=True)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["0,1", "2,3", "4,5"]
    assert len({each["VLLM_NIXL_SIDE_CHANNEL_PORT"] for each in found}) == 3
    assert environments(1, 1, connected=False) == [{"CUDA_VISIBLE_DEVICES": "0"}]


def test_the_router_takes_all_servers_or_parts_those_that_prefill():
    together, apart = router_command(URLS, 0, 9000), router_command(URLS, 1, 9000)
    assert together[together.index("--worker-urls") + 1 :] == URLS
    assert [apart[i + 1] for i, word in enumerate(apart) if word == "--prefill"] == URLS[:1]
    assert [apart[i + 1] for i, word in enumerate(apart) if word == "--decode"] == URLS[1:]
    assert "--worker-urls" not in apart


def test_files_tell_replicas_from_pools_by_name():
    job = Job("served", "cuda", "qwen3-14b", replicas=2)
    assert job.stem == "served_qwen3-14b_x2"
    assert replace(job, prefill=1).stem == "served_qwen3-14b_p1d1"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"suite": "engine-grid"}, "for the suite served"),
        ({"device": "cpu"}, "needs CUDA devices"),
        ({"iterations": True}, "one server"),
        ({"prefill": 2}, "leaves none to answer"),
    ],
)
def test_what_no_fleet_can_do_is_refused(more, says):
    with pytest.raises(UsageError, match=says):
        jobs_of(replace(Job("served", "cuda", replicas=2), **more), ("qwen3-14b",))


def test_a_measured_prefill_pool_is_simulated_as_one():
    d = ServedRun("made", get_gpu("H200"), get_model("Qwen3-14B"), Precision(), Limits(), 1, "vllm", (), replicas=3, prefill=1)
    assert d.fleet is not None
    assert [(pool.role, pool.deployment.replicas) for pool in d.fleet.pools] == [(PREFILL, 1), (DECODE, 2)]
    assert d.fleet.pools[0].deployment == d.deployment


def test_a_missing_router_is_named_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with (
        pytest.raises(UsageError, match="vllm-router is not installed"),
        serve("qwen3-14b", tmp_path, replicas=2, prefill=0, tensor_parallel=1, flags=(), max_model_len=None, log=tmp_path / "log"),
    ):
        pass
    assert not list(tmp_path.iterdir())
