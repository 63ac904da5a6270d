"""--inventory leaves only what its GPUs can be; several scenarios share it in their order."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.planning.choices import Choice, Part
from simctl.commands.plan_command import _rest
from tests.cli import run

PLAN = ("plan", "--gpu", "H100,L40S", "--model", "Llama-3.1-8B", "--request-rate", "4", "--slo", "ttft:p90<2s", "--workers", "1")
QUICK = ("--quick", "--within", "20s", "--json")


SCENARIO = """question: a?
command: plan
options: {{gpu: {gpus}, model: Llama-3.1-8B, request-rate: 4, random-output-len: 9, for: 20s, slo: "ttft:p99<2s", price: [H100=2, L40S=3]}}
"""


def unit(stock):
    """Two H100s, and a replica of four L40S with another one standing by."""
    return Choice("a", None, (Part(2, 3.0, 1, gpu="H100"), Part(1, 4.0, 4, lost=1, gpu="L40S")), stock=stock)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 200))
def test_the_most_units_are_those_that_fit(h100, l40s, gpus):
    choice = unit({"H100": h100, "L40S": l40s})

    def fits(n):
        return 2 * n <= h100 and 4 * (n + 1) <= l40s and 2 * n + 4 * (n + 1) <= gpus

    assert choice.most(gpus) == max((n for n in range(1, 200) if fits(n)), default=0)


def test_gpus_that_the_inventory_lacks_are_out_and_said():
    found = json.loads(run(*PLAN, *QUICK, "--inventory", "H100=2").stdout)
    assert found["winner"]["choice"].startswith("1 x H100")
    out = {each["choice"]: each["out"] for each in found["choices"]}
    assert out["1 x L40S"] == "needs more than the 0 L40S of the inventory"


def test_a_plan_leaves_the_rest_to_the_next():
    win = SimpleNamespace(choice=0, replicas=2)
    answer = SimpleNamespace(plan=SimpleNamespace(winner=win, choices=[unit({})]))
    assert _rest({"h100": 16, "L40S": 24}, answer) == {"h100": 12, "L40S": 12}


@pytest.mark.parametrize(("stock", "placed"), [("H100=1,L40S=2", ["1 x L40S", "1 x H100"]), ("H100=2", ["1 x H100", "1 x H100"])])
def test_a_plan_that_finds_too_little_left_goes_first(tmp_path, stock, placed):
    files = [tmp_path / "anywhere.yaml", tmp_path / "h100s.yaml"]
    for file, gpus in zip(files, ("[H100, L40S]", "[H100]"), strict=True):
        file.write_text(SCENARIO.format(gpus=gpus))
    done = run("plan", *map(str, files), "--inventory", stock, "--workers", "1", "--quick", "--json")
    assert [each["winner"]["choice"] for each in json.loads(done.stdout)["plans"]] == placed
    said = "Scenario 2 finds too little left. In the order 2, 1:" in done.stderr
    assert (done.code, said) == (0, "L40S" in stock)


def test_where_no_order_does_each_says_so_once(tmp_path):
    file = tmp_path / "h100s.yaml"
    file.write_text(SCENARIO.format(gpus="[H100]"))
    done = run("plan", str(file), str(file), "--inventory", "H100=1", "--workers", "1", "--quick")
    assert done.code == 1
    assert done.stdout.count("=> 1 x H100") == 2  # in both orders
    assert done.stdout.count("=> none") == 2
    assert "Together" not in done.stdout


@pytest.mark.parametrize(
    ("inventory", "why"),
    [
        ("H100=16,H100=8", "not GPUs with one number each"),
        ("H100", "not GPUs with one number each"),
        ("H100=1,h100_sxm=2", "has two numbers"),
        ("H100=1 --inventory H100=3", "H100 has two numbers"),
    ],
)
def test_what_is_no_inventory_is_one_line(inventory, why):
    done = run(*PLAN, "--inventory", *inventory.split())
    assert (done.code, done.stdout) == (2, "")
    assert why in " ".join(done.stderr.split())
