"""What `plan --emit` writes is taken by each tool's own parser or schema, from its own package."""

import argparse
import ast
import dataclasses
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from sim.planning.emitters import KINDS
from sim.planning.servers import Server, serve_arguments
from sim.study.deployment import Deployment
from sim.study.fleet_spec import PoolSpec

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def servers_of(pools):
    """Two replicas, or one each of prefill and decode."""
    roles = ["prefill", "decode"] if pools == "apart" else ["serve"]
    found = []
    for role in roles:
        d = Deployment.of("Llama-3.1-8B", "H100", max_num_seqs=64, router="power-of-two")
        name = "vllm" if role == "serve" else role
        found.append(Server(name, role, 3 - len(roles), d, serve_arguments(PoolSpec(d, role=role))))
    return found


@pytest.fixture(params=["together", "apart"])
def servers(request):
    return servers_of(request.param)


def test_docker_compose(servers):
    compose_spec = pytest.importorskip("compose_spec")
    text = KINDS["compose"](servers)[0]
    parsed = compose_spec.PyCompose.from_yaml(text)
    parsed.validate()
    assert len(parsed.services) == 3
    with pytest.raises(ValueError, match="imagine"):
        compose_spec.PyCompose.from_yaml(text.replace("image:", "imagine:"))


def router_words(servers, kind):
    """The router's command line as each format holds it."""
    text = KINDS[kind](servers)[0]
    if kind == "vllm":
        line = next(line for line in text.splitlines() if line.startswith("vllm-router "))
    elif kind == "compose":
        line = yaml.safe_load(text)["services"]["router"]["command"][-1]
    else:
        router = next(each for each in yaml.safe_load_all(text) if each["metadata"]["name"] == "simctl-router")
        line = router["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    return shlex.split(line.partition("vllm-router ")[2] if kind == "vllm" else line.partition("exec vllm-router ")[2])


@pytest.mark.parametrize("kind", ["vllm", "compose", "k8s"])
def test_vllm_router(servers, kind):
    router_args = pytest.importorskip("vllm_router.router_args")
    parser = argparse.ArgumentParser()
    router_args.RouterArgs.add_cli_args(parser)
    found = router_args.RouterArgs.from_cli_args(parser.parse_args(router_words(servers, kind)), use_router_prefix=False)
    assert found.policy == "power_of_two"
    if servers[0].role == "prefill":
        assert found.vllm_pd_disaggregation
        assert (len(found.prefill_urls), len(found.decode_urls)) == (1, 1)
    else:
        assert len(found.worker_urls) == 2


def test_ray_serve_llm(servers):
    llm_config = pytest.importorskip("ray.llm._internal.serve.core.configs.llm_config")
    from vllm.engine.arg_utils import EngineArgs

    application = yaml.safe_load(KINDS["ray"](servers)[0])["applications"][0]
    builder = application["import_path"].partition(":")[2]
    assert f"def {builder}(" in (Path(find_spec("ray").submodule_search_locations[0]) / "serve/llm/__init__.py").read_text()
    args = application["args"]
    configs = args["llm_configs"] if "llm_configs" in args else [args["prefill_config"], args["decode_config"]]
    known = {each.name for each in dataclasses.fields(EngineArgs)}
    for config in configs:
        parsed = llm_config.LLMConfig(**config)
        assert parsed.accelerator_type == "H100"
        assert set(parsed.engine_kwargs) <= known
        assert EngineArgs(model="x", **parsed.engine_kwargs).max_num_seqs == 64
    with pytest.raises(ValueError, match="replicas_num"):
        llm_config.LLMConfig(**configs[0], replicas_num=2)


def dynamo_models():
    """The classes of a graph deployment, of the package's source: importing it takes a runtime that no registry has."""
    spec = find_spec("dynamo")
    if spec is None:
        pytest.skip("no ai-dynamo")
    source = (Path(next(iter(spec.submodule_search_locations))) / "profiler/utils/config.py").read_text()
    wanted = ("DgdModel", "Container", "PodSpec", "PodTemplate", "MultinodeConfig", "Component", "Spec", "Metadata", "Config")
    classes = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name in wanted]
    space = {}
    exec("from typing import Any, Optional\nfrom pydantic import BaseModel, Field", space)
    exec(compile(ast.Module(classes, []), "config.py", "exec"), space)
    return space["Config"]


def test_dynamo(servers):
    document = yaml.safe_load(KINDS["dynamo"](servers)[0])
    parsed = dynamo_models().model_validate(document)
    kinds = [each.component_type for each in parsed.spec.components]
    assert kinds == ["frontend", *(["worker"] if len(servers) == 1 else ["prefill", "decode"])]
    assert parsed.model_extra == {}
    assert all(each.model_extra == {} for each in parsed.spec.components)
    del document["spec"]["components"][1]["type"]
    with pytest.raises(ValueError, match="type"):
        dynamo_models().model_validate(document)


def test_kserve(servers):
    """Its package has the outer object; pods inside are Kubernetes' own. Read as text: importing it takes servers' packages."""
    spec = find_spec("kserve")
    if spec is None:
        pytest.skip("no kserve")
    source = (Path(spec.submodule_search_locations[0]) / "models/v1alpha2_llm_inference_service.py").read_text()
    names = next(
        ast.literal_eval(each.value)
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "attribute_map"
    )
    document = yaml.safe_load(KINDS["kserve"](servers)[0])
    assert set(document) <= set(names.values())
    assert document["apiVersion"] == "serving.kserve.io/v1alpha2"
    assert ("prefill" in document["spec"]) == (len(servers) == 2)
