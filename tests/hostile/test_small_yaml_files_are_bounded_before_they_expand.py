"""A few lines of YAML never cost more than a few lines do: scenarios, GPU files and engine options, whatever stands in them."""

import tracemalloc

import pytest

from tests.cli import run

GOOD = "question: How fast?\ncommand: what-if\noptions: {ctx: 8K, gpu: H100}\nreport: [knee.batch]\n"
BOMB = "[&a [1,1,1,1,1,1,1,1,1]," + ",".join(f"&{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]" for i in range(8)) + "]"
MERGES = "x0: &x0 {a: 1}\n" + "".join(f"x{i}: &x{i} {{<<: [{','.join([f'*x{i - 1}'] * 9)}]}}\n" for i in range(1, 10))
SWEEPS = "".join(f"  {k}: [{','.join(map(str, range(200)))}]\n" for k in ("ctx", "gpu", "model", "dtype", "kv-dtype", "tp", "seed", "k"))
WRONG = {
    "sweeps": (GOOD + "sweep:\n" + SWEEPS, "sweep: 2560000000000000000 runs, more than 10000"),
    "aliases in an option": (GOOD.replace("8K", BOMB), "line 3 not YAML: its aliases stand for too much"),
    "aliases in a command": (GOOD.replace("what-if", BOMB), "line 2 not YAML: its aliases stand for too much"),
    "merged mappings": (MERGES + GOOD, "line 7 not YAML: its aliases stand for too much"),
    "a list in itself": (GOOD.replace("8K", "&a [*a]"), "line 3 not YAML: alias 'a' stands for nothing, or for what holds it"),
    "a ladder of aliases": (
        "x0: &x0 [1]\n" + "".join(f"x{i}: &x{i} [*x{i - 1}]\n" for i in range(1, 50)) + GOOD,
        "line 16 not YAML: nested",
    ),
    "long texts": (GOOD.replace("8K", f"[&a {'x' * 100_000}{', *a' * 20}]"), "line 3 not YAML: its aliases stand for too much"),
    "open brackets": ("question: " + "[" * 100_000, "line 1 not YAML: nested more than 16 deep"),
    "closed brackets": ("question: " + "[" * 900 + "]" * 900, "line 1 not YAML: nested more than 16 deep"),
    "mappings in mappings": (GOOD + "sweep: " + "{a: " * 5000, "line 5 not YAML: nested more than 16 deep"),
    "an int of nothing": (GOOD.replace("8K", "!!int ''"), "line 3 not YAML: a value is no int"),
    "a float of nothing": (GOOD.replace("8K", "!!float ''"), "line 3 not YAML: a value is no float"),
    "a bool of something": (GOOD.replace("8K", "!!bool x"), "line 3 not YAML: a value is no bool"),
    "a day that is none": (GOOD.replace("8K", "2024-13-45"), "line 3 not YAML: a value is no timestamp"),
    "5000 digits": (GOOD.replace("8K", "9" * 5000), "line 3 not YAML: a value is no int"),
    "5000 hex digits": (GOOD.replace("8K", "0x" + "9" * 5000), "line 3 not YAML: a number of more than 128 bits"),
    "minutes of minutes": (GOOD.replace("8K", ":".join(["1"] * 3000)), "line 3 not YAML: a number of more than 128 bits"),
    "a command in a list": (GOOD.replace("what-if", "[x]"), "command: must be one of simulate, plan, what-if, not ['x']"),
    "a megabyte": (GOOD + "# " + "x" * 2**20, "larger than 256 KiB"),
    "no text": (GOOD.encode("utf-16"), "not UTF-8 text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_scenario_is_refused_in_one_line(name, tmp_path):
    text, says = WRONG[name]
    path = tmp_path / "study.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    tracemalloc.start()
    result = run("run", str(path), "--dry-run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"study.yaml: {says}" in result.stderr
    assert peak < 100 * 2**20


def test_a_day_where_a_context_belongs_is_named(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(GOOD.replace("8K", "2024-01-01"))
    result = run("run", str(path))
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert "not a token count: '2024-01-01'" in result.stderr


@pytest.mark.parametrize("text", [f"name: {BOMB}", "name: " + "[" * 5000, "name: !!int ''", "name: 2024-13-45", "name: 0x" + "9" * 5000])
def test_so_is_a_gpu_file(text, tmp_path):
    path = tmp_path / "card.yaml"
    path.write_text(f"memory_bytes: 1\n{text}\n")
    result = run("gpus", str(path))
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert "card.yaml: line 2 not YAML" in result.stderr


@pytest.mark.parametrize("value", ["!!int ''", "9" * 5000, "&a [*a]", "[" * 5000, "2024-13-45"])
def test_so_is_an_engine_option(value):
    result = run("simulate", "--gpu", "A10", "--max-model-len", "auto", "--num-prompts", "3", "--engine-option", f"draft_tokens={value}")
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert "--engine-option needs NAME=VALUE" in result.stderr


def test_a_few_aliases_are_taken(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(GOOD.replace("8K", "&a 8K") + "sweep: {k: [8, 16], batch: &b [1], max-num-seqs: *b}\n")
    assert run("run", str(path), "--dry-run").stdout.count("\n") == 2


def test_keys_that_contradict_each_other_are_refused(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("pools:\n- {name: a, gpu: H100, model: Llama-3.1-8B, max-in-flight: 4, tenants: {gold: 4, free: 1, gold: 1}}\n")
    result = run("simulate", "--fleet", str(path), "--num-prompts", "3")
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert "fleet.yaml: line 2 not YAML: 'gold' stands twice in one mapping" in result.stderr
