"""`simctl models` and `simctl gpus` list and show, in 80 columns or JSON, and refuse in one line with exit code 2."""

import json

import click
import pytest

from sim.specs.gpus import get_gpu, list_gpus, load_gpus
from sim.specs.models import catalogue_config, get_model, list_models
from simctl.commands.gpus_command import command as gpus
from simctl.commands.models_command import command as models
from simctl.text.model_text import _count
from tests.cli import run


@pytest.mark.parametrize(
    "argv", [["models"], ["gpus"], ["models", "gpt-oss-20b"], ["models", "q36-27b"], ["models", "deepseek-v3"], ["gpus", "gb200"]]
)
def test_text_fits_80_columns(argv):
    code, out, err = run(*argv)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80


def test_lists_name_everything():
    _, out, _ = run("models")
    assert [line.split()[0] for line in out.split("\n\n")[0].splitlines()[1:]] == list_models()
    _, out, _ = run("gpus")
    assert [line.split()[0] for line in out.split("\n\n")[0].splitlines()[1:]] == list_gpus()


def test_model_json_carries_the_bytes():
    _, out, _ = run("models", "Qwen2.5-7B", "--json")
    data = json.loads(out)
    assert data["params"] == 7615616512
    assert data["kv_bytes_per_token"] == {"bf16": 57344, "fp8": 28672}
    assert data["weight_bytes"]["bf16"] == 2 * 7615616512
    assert data["state_bytes_per_sequence"] == 0
    _, out, _ = run("models", "q36-27b", "--json")
    assert json.loads(out)["state_bytes_per_sequence"] == 4 * 48 * 48 * 128 * 128


def test_shown_model_states_what_the_spec_says():
    _, out, _ = run("models", "Gemma-3-4B")
    spec = get_model("Gemma-3-4B")
    for text in (f"{spec.params:,}", f"{spec.active_params:,}", "29 x attention (window 1024)", "20,480 / 10,240 bytes", "8.6 GB"):
        assert text in out


def test_json_lists():
    _, out, _ = run("models", "--json")
    assert [row["name"] for row in json.loads(out)] == list_models()
    _, out, _ = run("gpus", "--json")
    assert [row["name"] for row in json.loads(out)] == list_gpus()


def test_model_from_a_file(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(catalogue_config("Qwen3-8B")))
    code, out, _ = run("models", str(file), "--json")
    assert (code, json.loads(out)["params"]) == (0, 8190735360)


@pytest.mark.parametrize("name", list_gpus())
def test_gpu_yaml_reads_back(name, tmp_path):
    _, out, _ = run("gpus", name, "--yaml")
    file = tmp_path / "one.yaml"
    file.write_text(out)
    back, spec = get_gpu(str(file)), get_gpu(name)
    for field in spec.__dataclass_fields__:
        if field != "origin":
            assert getattr(back, field) == getattr(spec, field), field


def test_gpus_of_a_file_come_first_and_marked(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("{name: Mine, memory_bytes: 24e9, memory_bandwidth: 700e9, flops: {fp16: 1e14}, host_link_bandwidth: 31.5e9}")
    _, out, _ = run("gpus", "--file", str(file))
    assert out.splitlines()[1].split()[:3] == ["Mine*", "24.0", "700"]
    assert len(out.split("\n\n")[0].splitlines()) == len(list_gpus()) + 2
    _, out, _ = run("gpus", "mine", "--file", str(file))
    assert "datasheet prior, wide interval" in " ".join(out.split())
    _, out, _ = run("gpus", "--file", str(file), "--yaml")
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert [gpu.name for gpu in load_gpus(again)] == ["Mine"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["gpus", "A1O"], "simctl: unknown GPU 'A1O'; did you mean 'A10'? known: H100, "),
        (["models", "Qwen9-7B"], "simctl: unknown model 'Qwen9-7B'"),
        (["gpus", "--file", "absent.yaml"], "simctl: absent.yaml: No such file"),
        (["gpus", "--json", "--yaml"], "simctl: --json and --yaml exclude each other"),
        (["models", "a", "b"], "simctl: Got unexpected extra argument"),
        (["models", "absent.json"], "simctl: absent.json: No such file"),
    ],
)
def test_refusals_are_one_line(argv, says):
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.startswith(says)
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [models, gpus], ids=["models", "gpus"])
def test_everything_has_help(command):
    assert command.help
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help


@pytest.mark.parametrize(
    ("count", "text"), [(999_885_952, "1.00B"), (494_032_768, "494M"), (14_770_033_664, "14.8B"), (1.026e12, "1.03T"), (7, "7.00")]
)
def test_counts_in_three_digits(count, text):
    assert _count(count) == text
