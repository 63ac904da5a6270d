"""What `plan --emit` writes, `--from-deployment` reads as the same deployment, in every format; what a format cannot say is said."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.cluster.router import ROUTERS
from sim.errors import UsageError
from sim.planning.emit import emitted
from sim.planning.emitters import KINDS
from sim.planning.question import Plan
from sim.planning.servers import Server, serve_arguments, storage_gib
from sim.specs.gpus import get_gpu
from sim.specs.parallel import Parallel
from sim.specs.topology import default_topology, with_node
from sim.study.deployment import Deployment
from sim.study.fleet_spec import PoolSpec
from sim.workload.workload import Workload
from simctl.commands.simulate_command import command
from simctl.from_options.deployments import deployment_of, fleet_of
from simctl.options.plan_options import EMITS

LIMITS = {
    "max_num_seqs": st.sampled_from([None, 8, 256]),
    "max_num_batched_tokens": st.sampled_from([None, 2048, 16384]),
    "max_model_len": st.sampled_from(["auto", 4096]),
    "gpu_memory_utilization": st.sampled_from([None, 0.8]),
    "enable_prefix_caching": st.sampled_from([None, False]),
    "enable_chunked_prefill": st.booleans(),
    "policy": st.sampled_from(["fcfs", "priority"]),
    "kv_offloading_size": st.sampled_from([None, 8.0]),
    "enforce_eager": st.booleans(),
    "prefill_schedule_interval": st.sampled_from([1, 3]),
    "num_gpu_blocks": st.sampled_from([None, 5000]),
    "dtype": st.sampled_from([None, "fp8"]),
    "kv_dtype": st.sampled_from([None, "fp8"]),
}


def server_of(replicas, model="Llama-3.1-8B", **given):
    d = Deployment.of(model, replicas=replicas, **given)
    return Server("vllm", "serve", replicas, d, serve_arguments(PoolSpec(d)))


def read_back(kind, server, path):
    """The deployment that `simulate --from-deployment` takes from what the format says."""
    path.write_text(KINDS[kind]([server])[0])
    more = ["--gpu", server.deployment.gpu.name, "--replicas", str(server.replicas)] if kind == "vllm" else []  # a command knows neither
    return deployment_of(command.make_context("simulate", ["--from-deployment", str(path), *more]).params)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    replicas=st.integers(1, 4),
    gpu=st.sampled_from(["H100", "L40S", "H200"]),
    tp=st.sampled_from([1, 2]),
    parallel=st.sampled_from([Parallel(), Parallel(2, 1), Parallel(1, 2)]),
    limits=st.fixed_dictionaries({}, optional=LIMITS),
)
def test_the_same_deployment(kind, replicas, gpu, tp, parallel, limits, tmp_path):
    if limits.get("enable_prefix_caching") is False:
        limits.pop("kv_offloading_size", None)
    if limits.get("enable_chunked_prefill") is False:
        limits |= {"max_model_len": 4096, "max_num_batched_tokens": 16384}
    if "num_gpu_blocks" in limits:
        limits["max_model_len"] = 4096
    server = server_of(replicas, gpu=gpu, tp=tp, parallel=parallel, **limits)
    if kind == "compose" and replicas * server.deployment.gpus > 8:
        with pytest.raises(UsageError, match="one host of"):
            KINDS[kind]([server])
        return
    found = read_back(kind, server, tmp_path / "deployment")
    assert (found.replicas, found.gpu.name, found.tp, found.parallel.parts) == (replicas, gpu, tp, parallel.parts)
    assert serve_arguments(PoolSpec(found)) == server.arguments


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_a_repository_is_read_back(kind, tmp_path):
    server = server_of(2, model="Qwen3-0.6B", gpu="L4", router="least-requests")
    found = read_back(kind, server, tmp_path / "deployment")
    assert (found.model.name, found.router, serve_arguments(PoolSpec(found))) == ("Qwen3-0.6B", "least-requests", server.arguments)


@pytest.mark.parametrize("kind", ["vllm", "compose", "k8s"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tp": 2, "dtype": "fp8", "kv_dtype": "fp8", "max_num_seqs": 64, "max_model_len": 4096, "gpu_memory_utilization": 0.7},
        {"enable_prefix_caching": False, "enforce_eager": True, "options": {"schedule_policy": "lpm", "overlap_schedule": False}},
        {"block_size": 1, "max_num_batched_tokens": 2048, "router": "sglang-router", "options": {"cuda_graph_max_bs": 128}},
    ],
)
def test_sglang_is_read_back(kind, given, tmp_path):
    server = server_of(2, gpu="H100", engine="sglang", **given)
    found = read_back(kind, server, tmp_path / "deployment")
    assert (found.limits.engine, found.replicas, found.tp, found.router) == ("sglang", 2, server.deployment.tp, server.deployment.router)
    assert serve_arguments(PoolSpec(found)) == server.arguments


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"vllm", "compose", "k8s"}))
def test_a_format_that_starts_no_sglang_says_so(kind):
    with pytest.raises(UsageError, match="starts vllm, not sglang"):
        KINDS[kind]([server_of(1, gpu="H100", engine="sglang")])


def test_what_no_flag_of_sglang_sets_is_refused():
    for stray in ({"num_gpu_blocks": 5000, "max_model_len": 4096}, {"options": {"clip_new_tokens": 9}}, {"parallel": Parallel(1, 2)}):
        with pytest.raises(UsageError, match="--emit"):
            server_of(1, gpu="H100", engine="sglang", **stray)


def test_the_command_offers_every_format():
    assert tuple(KINDS) == EMITS


@pytest.mark.parametrize(("model", "dtype", "stored_bytes"), [("Llama-3.1-70B", "fp8", 141e9), ("DeepSeek-V3", None, 688e9)])
def test_the_disk_holds_the_checkpoint_that_is_downloaded(model, dtype, stored_bytes):
    """What is quantised while loading is stored in 16 bits; by the files on Hugging Face, 141.1 GB and 688.6 GB."""
    d = Deployment.of(model, "H200", tp=8, dtype=dtype)
    server = Server("vllm", "serve", 1, d, serve_arguments(PoolSpec(d)))
    assert stored_bytes < storage_gib(server) * 2**30 < 1.4 * stored_bytes


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vllm"])
def test_a_replica_of_two_nodes_is_refused(kind):
    """No node has the 16 GPUs that a pod of it would ask for."""
    server = server_of(1, gpu="H100", tp=8, parallel=Parallel(2, 1), topology=with_node(default_topology(get_gpu("H100")), 8))
    with pytest.raises(UsageError, match="16 GPUs are more: --emit vllm has the command"):
        KINDS[kind]([server])


@pytest.mark.parametrize("kind", ["compose", "k8s", "dynamo"])
def test_a_router_that_a_format_lacks_is_said(kind):
    said = {name: " ".join(KINDS[kind]([server_of(2, gpu="H100", router=name)])[1]) for name in ("random", "unified")}
    assert "no unified" in said["unified"]
    assert "no random" not in said["random"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vllm"])
@pytest.mark.parametrize("roles", [("prefill", "decode"), ("serve", "serve")])
def test_pools_are_read_as_a_fleet(kind, roles, tmp_path):
    """`--fleet` takes what was written of several pools: their roles, replicas, GPUs and flags."""
    servers = []
    for i, role in enumerate(roles):
        d = Deployment.of("Llama-3.1-8B", ("H100", "H200")[i], tp=i + 1, max_num_seqs=64 * (i + 1), router="power-of-two")
        servers.append(Server(f"{role}{i}", role, i + 1, d, serve_arguments(PoolSpec(d, role=role))))
    path = tmp_path / "deployment.yaml"
    path.write_text(KINDS[kind](servers)[0])
    fleet = fleet_of(command.make_context("simulate", ["--fleet", str(path)]).params)
    found = [(pool.role, pool.deployment.replicas, pool.deployment.gpu.name, serve_arguments(pool)) for pool in fleet.pools]
    wanted = [(each.role, each.replicas, each.deployment.gpu.name, each.arguments) for each in servers]
    assert sorted(found) == sorted(wanted)
    if roles[0] == "prefill" and kind in ("compose", "k8s", "dynamo"):  # which have a proxy that is told how
        assert {pool.deployment.router for pool in fleet.pools} == {"power-of-two"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vllm"])
def test_a_split_by_length_is_read_back_with_its_threshold(kind, tmp_path):
    load = Workload.drawn(50, request_rate=4.0, input_len=3000, length_cv=1.0, output_len=64)
    choices, _ = Plan([Deployment.of("Llama-3.1-8B", "H100")], load, ("ttft:p99<2s",), pools=("split",)).choices()
    found = SimpleNamespace(choice=0, replicas=2)
    plan = SimpleNamespace(winner=found, best=found, choices=choices)
    path = tmp_path / "deployment.yaml"
    path.write_text(emitted(plan, kind, "=> two pools"))
    pools = choices[0].study_of(2).whole_fleet.pools
    assert pools[0].max_prompt_tokens
    found = fleet_of(command.make_context("simulate", ["--fleet", str(path)]).params)
    assert [(each.max_prompt_tokens, each.deployment.replicas, serve_arguments(each)) for each in found.pools] == [
        (each.max_prompt_tokens, each.deployment.replicas, serve_arguments(each)) for each in pools
    ]
    found.check_used(load.trace)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("router", ROUTERS)
def test_the_router_is_read_back(kind, router, tmp_path):
    assert read_back(kind, server_of(2, gpu="H100", router=router), tmp_path / "deployment").router == router


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("router", "own"),
    [("llm-d", {"queue": 4.0, "scrape_s": 0.2}), ("vllm-router", {"cache_threshold": 0.6}), ("lmetric", {"view": "sent"})],
)
def test_settings_of_the_router_are_read_back(kind, router, own, tmp_path):
    server = server_of(2, gpu="H100", router=router, router_options=own)
    assert read_back(kind, server, tmp_path / "deployment").router_options == own
    if kind in ("vllm", "compose", "k8s"):
        assert ("--cache-threshold 0.6" in KINDS[kind]([server])[0]) is (router == "vllm-router")


@pytest.mark.parametrize("kind", ["compose", "k8s", "dynamo", "ray"])
def test_settings_of_a_router_between_pools_are_read_back(kind, tmp_path):
    pools = [
        Deployment.of("Llama-3.1-8B", "H100", router="power-of-two", router_options={"snapshot_s": 0.5}, max_num_seqs=n) for n in (64, 128)
    ]
    servers = [
        Server(role, role, 1, d, serve_arguments(PoolSpec(d, role=role))) for role, d in zip(("prefill", "decode"), pools, strict=True)
    ]
    path = tmp_path / "deployment.yaml"
    path.write_text(KINDS[kind](servers)[0])
    fleet = fleet_of(command.make_context("simulate", ["--fleet", str(path)]).params)
    assert [pool.deployment.router_options for pool in fleet.pools] == [{"snapshot_s": 0.5}] * 2


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_replica_of_two_nodes_is_a_command_on_each(engine, tmp_path):
    given = {} if engine == "sglang" else {"parallel": Parallel(2, 1)}
    server = server_of(2, gpu="H100", engine=engine, tp=8 if given else 16, **given)
    text = KINDS["vllm"]([server])[0]
    assert [text.count(f"--nnodes 2 --node-rank {rank}") for rank in range(3)] == [1, 1, 0]
    found = read_back("vllm", server, tmp_path / "deployment")
    assert (found.replicas, found.gpus) == (2, 16)
    assert serve_arguments(PoolSpec(found)) == server.arguments
