"""The models of the published tables are in the catalogue, with the shapes the tables give."""

import pytest

from sim.specs.models import get_model
from sim.specs.precision import DTYPE_BYTES, STATE_BYTES
from studies.reference_tables import table

GB10 = {"moe": "q36-35b-a3b", "dense": "q36-27b"}
NOT_A_MODEL = {"engine test"}
NAMED = [
    ("brl07", "needle_recall"),
    ("tr164", "derived_arch_knee_vs_observed"),
    ("tr164", "low_fit_curves"),
    ("tr164", "served_cells"),
]


@pytest.mark.parametrize("row", table("tr164", "derived_model_dims_external"), ids=lambda row: row["model"])
def test_dense_dims(row):
    spec = get_model(row["model"])
    full = [g for g in spec.groups if not g.mixer.window]
    assert spec.layers == int(row["layers"])
    assert spec.params == int(row["params"])
    assert {(g.mixer.kv_heads, g.mixer.head_dim) for g in spec.groups} == {(int(row["kv_heads"]), int(row["head_dim"]))}
    # the table charges every layer with the whole context; the spec keeps windowed layers apart
    elements = spec.kv_elements_per_token + spec.window_kv_elements_per_token
    assert elements * DTYPE_BYTES["fp16"] == int(row["k_bytes_per_token_fp16_kv"])
    assert sum(g.count for g in full) == spec.kv_layers == int(row["global_attention_layers"])
    assert spec.window == (int(row["sliding_window_tokens"]) if row["sliding_window_tokens"] else None)


@pytest.mark.parametrize("row", table("tr164", "model_architecture"), ids=lambda row: row["model"])
def test_dims_as_stated(row):
    spec = get_model(row["model"])
    mixers = [g.mixer for g in spec.groups]
    assert all((m.kv_heads, m.head_dim) == (int(row["kv_heads"]), int(row["head_dim"])) for m in mixers)
    if row["params"]:
        assert (spec.layers, spec.params) == (int(row["layers"]), int(row["params"]))


@pytest.mark.parametrize("row", table("gb10", "gdn_model_dims"), ids=lambda row: row["model"])
def test_hybrid_dims(row):
    spec = get_model(GB10[row["model"]])
    (gdn,) = [g for g in spec.groups if g.mixer.kind == "gdn"]
    assert gdn.count == spec.state_layers == int(row["gdn_layers"])
    assert gdn.mixer.value_heads == int(row["h_heads"])
    assert gdn.mixer.value_dim == int(row["s_v"])
    assert gdn.mixer.value_heads * gdn.mixer.value_dim == int(row["ssm_inner_size"])
    assert gdn.mixer.key_dim == int(row["ssm_state_size"])


@pytest.mark.parametrize("row", table("gdn", "derived_state_traffic_per_step"), ids=lambda row: f"{row['model']}-{row['bandwidth_case']}")
def test_hybrid_state_traffic(row):
    spec = get_model(GB10[row["model"]])
    traffic = 2 * int(row["decode_batch"]) * STATE_BYTES * spec.state_elements  # read and written, all layers
    assert traffic / spec.state_layers == int(row["bytes_rw_per_call"])
    assert 1e3 * traffic / (float(row["bandwidth_gb_per_s"]) * 1e9) == pytest.approx(float(row["ms_per_step_all_layers"]), abs=0.06)


def test_hybrid_experts():
    experts = next(r["value"] for r in table("gb10", "hardware_software") if r["key"] == "moe_experts_traced_nchannels_x")
    assert {g.mlp.experts for g in get_model(GB10["moe"]).groups} == {int(experts)}


@pytest.mark.parametrize(("source", "name"), NAMED)
def test_every_named_model_is_known(source, name):
    models = {row["model"] for row in table(source, name)} - NOT_A_MODEL - {""}
    assert models
    for model in models:
        assert get_model(model).params > 0
