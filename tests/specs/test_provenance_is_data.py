"""Where rates come from is data: it survives a file, says what was measured, and no rate's origin is read from its words."""

import json

import pytest

from sim.cost.provenance import Origin, Provenance, from_json, outside_measured
from sim.rates.posterior import packaged_posteriors, rates_for, read_posterior
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision

H100 = Provenance(Origin.IN_PROCESS, "1976 measured cells", "H100", ("bf16",), (1, 2), ("vllm 0.23.0",))


def test_provenance_survives_json() -> None:
    changed = H100.after("scaled")
    assert from_json(json.loads(json.dumps(changed.to_json()))) == changed
    for wrong in ({"origin": "hearsay"}, {"origin": "in process", "colour": "red"}):
        with pytest.raises(ValueError, match=r"hearsay|colour"):
            from_json(wrong)


def test_parts_of_a_deployment_that_nobody_measured_are_named() -> None:
    assert outside_measured(H100, "H100", "bf16", 2, "vllm") == {}
    assert list(outside_measured(H100, "H200", "fp8", 4).values()) == [
        "GPU H200 (measured: H100)", "dtype fp8 (measured: bf16)", "tp 4 (measured: 1, 2)",
    ]  # fmt: skip
    pooled = Provenance(Origin.POPULATION, "hierarchy over GPUs", dtypes=("bf16",), tps=(1,))
    assert list(outside_measured(pooled, "L40S", "bf16", 1).values()) == ["GPU L40S (measured: none)"]


def test_every_packaged_posterior_says_what_was_measured() -> None:
    origins = {str(path.stem): read_posterior(path).source.origin for path in packaged_posteriors()}
    assert origins["h100"] is origins["h200"] is Origin.IN_PROCESS
    of_kernels = {"h100kernels", "h200kernels"}
    assert {origins[name] for name in of_kernels} == {Origin.KERNELS}
    assert {name for name, origin in origins.items() if origin is Origin.PUBLISHED} == {"gb10llamacpp"}
    others = {name for name, origin in origins.items() if origin is Origin.POPULATION}
    assert others == set(origins) - {"h100", "h200", "gb10llamacpp"} - of_kernels


def test_rates_carry_the_origin_of_each() -> None:
    own, other = (rates_for(get_gpu(name), Precision(), draws=20) for name in ("H100", "B200"))
    assert own.sources["beta"].measured
    assert own.source.covers("H100", "bf16", 1, "vllm") == {"GPU": True, "dtype": True, "tp": True, "engine": True}
    assert other.sources["beta"].origin is Origin.POPULATION
    assert other.sources["c1_s"].origin is Origin.PRIOR
    assert not other.source.covers("B200", "bf16", 1)["GPU"]
