"""`simctl plan` finds the cheapest deployment at list prices or the user's own, from options or a file, in any number of processes."""

import json
import subprocess
import sys

from tests.cli import run

SMALL = (
    "--model",
    "Llama-3.1-8B",
    "--request-rate",
    "5",
    "--num-prompts",
    "60",
    "--random-output-len",
    "32",
    "--workers",
    "1",
    "--within",
    "10m",
    "--quick",
)


def test_the_cheapest_of_real_deployments():
    answer = json.loads(run("plan", "--gpu", "H100,A100-80G", *SMALL, "--slo", "ttft:p99<2s tpot:mean<60ms", "--json").stdout)
    assert answer["winner"]["choice"] == "1 x A100-80G"
    assert answer["winner"]["usd_per_hour"] == 2.5 * answer["winner"]["replicas"]
    assert answer["winner"]["certain"] is True
    assert answer["winner"]["chance_low"] >= 0.95
    dear = json.loads(run("plan", "--gpu", "H100,A100-80G", *SMALL, "--slo", "ttft:p99<2s", "--price", "H100=0.5", "--json").stdout)
    assert dear["winner"]["choice"] == "1 x H100"


def test_several_processes_give_the_same_plan():
    asked = (
        "plan",
        "--gpu",
        "H100",
        "--num-prompts",
        "20",
        *SMALL[:4],
        *SMALL[6:8],
        "--within",
        "10m",
        "--quick",
        "--slo",
        "ttft:p99<2s",
        "--json",
    )
    assert run(*asked, "--workers", "2").stdout == run(*asked, "--workers", "1").stdout


def test_a_scenario_file_is_the_same_plan(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(
        "question: Which GPUs?\ncommand: plan\noptions: {gpu: 'H100,A100-80G', model: Llama-3.1-8B, request-rate: 5, num-prompts: 60,\n"
        "  random-output-len: 32, workers: 1, slo: 'ttft:p99<2s tpot:mean<60ms'}\n"
    )
    by_file = run("plan", str(file), "--json", "--quick", "--workers", "1", "--within", "10m")
    by_options = run("plan", "--gpu", "H100,A100-80G", *SMALL, "--slo", "ttft:p99<2s tpot:mean<60ms", "--json")
    assert by_file.stdout == by_options.stdout
    assert "--gpu beside a scenario" in run("plan", str(file), "--gpu", "A10").stderr


def test_the_module_exits_as_the_command_does():
    call = [sys.executable, "-m", "simctl", "plan", "--gpu", "L4", "--model", "Llama-3.1-70B", *SMALL[2:], "--slo", "tpot:p95<1s"]
    assert subprocess.run(call, capture_output=True, check=False).returncode == 1
