"""`simctl models --check` says of one model which parts were measured, which are priced, and which fields do nothing."""

import json

from tests.cli import run
from tests.specs.configs import config


def checked(tmp_path, **changes):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config("qwen3") | changes), encoding="utf-8")
    answer = run("models", "--check", str(file), "--json")
    assert answer.code == 0, answer.stderr
    return json.loads(answer.stdout)


def test_parts_and_idle_fields(tmp_path):
    said = checked(tmp_path, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 32}, bos_token_id=1)
    status = {part["name"]: part["status"] for part in said["parts"]}
    assert status == {"attention over the whole context": "measured", "dense MLP": "measured", "int4 weights": "priced"}
    assert "bos_token_id" in said["fields_without_effect"]
    assert {"hidden_size", "quantization_config"}.isdisjoint(said["fields_without_effect"])


def test_catalogue_model_and_no_name():
    answer = run("models", "--check", "DeepSeek-V3")
    assert "priced: latent attention" in answer.stdout
    assert run("models", "--check").code == 2


def test_an_unknown_type_is_refused_by_name(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config("llama") | {"model_type": "telepathy"}), encoding="utf-8")
    answer = run("models", "--check", str(file))
    assert answer.code == 2
    assert "telepathy" in answer.stderr
