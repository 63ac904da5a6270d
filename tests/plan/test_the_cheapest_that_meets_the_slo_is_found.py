"""A plan is what brute force finds, its probabilities are true, and what cannot be is said in one line."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.capacity import Choice, search
from sim.errors import UsageError
from sim.results.chance import chance_by
from sim.slo import parse_slo
from tests.cli import run

MOST = 12
TTFT = parse_slo(["ttft:p99<1s"], {})


def synthetic(chances, seed):
    """Trials of choices whose chance by replicas is given: common random numbers decide."""
    draws = np.random.default_rng(seed).random(1600)
    return lambda choice, replicas, trials: [((0.5,) if draws[i] < chances[choice][replicas - 1] else (2.0,)) for i in trials]


RISING = st.lists(st.floats(0.0, 1.0), min_size=MOST, max_size=MOST).map(sorted)
CHOICES = st.lists(st.tuples(RISING, st.integers(1, 20)), min_size=1, max_size=5)


def brute_force(choices, trials):
    """Every count of every choice: the least of each that certainly holds, and the cheapest of these."""
    found = []
    for i, (_, price) in enumerate(choices):
        for replicas in range(1, MOST + 1):
            if chance_by(lambda begin, end, i=i, n=replicas: sum(u[0] <= 1 for u in trials(i, n, range(begin, end)))).certain:
                found.append((replicas * price, i, replicas))
                break
    return min(found)[0] if found else None


@settings(max_examples=60, deadline=None)
@given(CHOICES, st.integers(0, 1000))
def test_a_plan_is_what_brute_force_finds(choices, seed):
    trials = synthetic([chances for chances, _ in choices], seed)
    plan = search([Choice(str(i), None, float(price)) for i, (_, price) in enumerate(choices)], TTFT, trials, MOST)
    cheapest = brute_force(choices, trials)
    assert (plan.winner and plan.cost(plan.winner)) == cheapest
    if plan.winner is None:
        assert all(standing.fails == MOST for standing in plan.standings)


def test_what_is_called_certain_is_so_for_nineteen_of_twenty_truths():
    """200 synthetic truths, most of them near 0.95, where it is hardest to tell."""
    rng, wrong, found = np.random.default_rng(1), 0, 0
    for seed in range(200):
        chances = np.sort(np.clip(rng.normal(0.95, 0.03, MOST), 0, 1)).tolist()
        plan = search([Choice("a", None, 1.0)], TTFT, synthetic([chances], seed), MOST)
        if plan.winner is not None:
            found += 1
            wrong += chances[plan.winner.replicas - 1] < 0.95
    assert found > 100
    assert wrong <= 0.05 * found


SMALL = ("--model", "Llama-3.1-8B", "--request-rate", "5", "--num-prompts", "60", "--random-output-len", "32", "--workers", "1")


def test_the_cheapest_of_real_deployments():
    answer = json.loads(run("plan", "--gpu", "H100,A100-80G", *SMALL, "--slo", "ttft:p99<2s tpot:mean<60ms", "--json").stdout)
    assert answer["winner"]["choice"] == "1 x A100-80G"
    assert answer["winner"]["usd_per_hour"] == 2.5 * answer["winner"]["replicas"]
    assert answer["winner"]["certain"] is True
    assert answer["winner"]["chance_low"] >= 0.95
    dear = json.loads(run("plan", "--gpu", "H100,A100-80G", *SMALL, "--slo", "ttft:p99<2s", "--price", "H100=0.5", "--json").stdout)
    assert dear["winner"]["choice"] == "1 x H100"


def test_several_processes_give_the_same_plan():
    asked = ("plan", "--gpu", "H100", "--max-num-seqs", "4,256", *SMALL[:-2], "--slo", "ttft:p99<80ms", "--json")
    assert run(*asked, "--workers", "2").stdout == run(*asked, "--workers", "1").stdout


def test_a_scenario_file_is_the_same_plan(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(
        "question: Which GPUs?\ncommand: plan\noptions: {gpu: 'H100,A100-80G', model: Llama-3.1-8B, request-rate: 5, num-prompts: 60,\n"
        "  random-output-len: 32, workers: 1, slo: 'ttft:p99<2s tpot:mean<60ms'}\n"
    )
    by_file = run("plan", str(file), "--json", "--workers", "1")
    by_options = run("plan", "--gpu", "H100,A100-80G", *SMALL, "--slo", "ttft:p99<2s tpot:mean<60ms", "--json")
    assert by_file.stdout == by_options.stdout
    assert "--gpu beside a scenario" in run("plan", str(file), "--gpu", "A10").stderr


def test_none_that_can_ends_with_how_far_the_nearest_misses():
    result = run("plan", "--gpu", "A100-80G", *SMALL, "--slo", "ttft:p99<12ms tpot:p95<60ms", "--most-gpus", "2")
    assert result.code == 1
    assert "=> none meets ttft:p99<12ms" in result.stdout
    assert "ttft:p99<12ms is missed in 100 % of the" in result.stdout
    out = run("plan", "--gpu", "A100-80G,L4", *SMALL, "--slo", "tpot:p95<1ms")
    assert out.code == 1
    assert "a token takes at least" in " ".join(out.stdout.split())
    assert "=> none can meet tpot:p95<1ms." in out.stdout
    unfit = run("plan", "--gpu", "L4", "--model", "Llama-3.1-70B", *SMALL[2:], "--slo", "tpot:p95<1s")
    assert "does not fit on 1 x L4" in unfit.stdout


WRONG = {
    (): "plan on what? give --gpu NAME",
    ("--gpu", "H100,"): "not values with commas between them",
    ("--gpu", "H1000", "--slo", "ttft:p99<2s"): "unknown GPU 'H1000'",
    ("--gpu", "H100"): "an SLO needs a condition",
    ("--gpu", "H100", "--slo", "ttft:p99<2"): "not a condition: 'ttft:p99<2'",
    ("--gpu", "H100", "--slo", "ttft:p98<2s"): "not a condition: 'ttft:p98<2s'",
    ("--gpu", "H100", "--slo", "ttft:p99<2s ttft:p99<3s"): "ttft:p99<2s says that already",
    ("--gpu", "H100", "--slo", "good>=99%"): "what is a good request? give --goodput",
    ("--gpu", "H100", "--slo", "failed<101%"): "not a condition: 'failed<101%'",
    ("--gpu", "RTX-4090", "--slo", "ttft:p99<2s"): "no list price of RTX-4090 is known: give --price RTX-4090=USD",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--price", "H100=free"): "--price needs GPU=USD per hour, got 'H100=free'",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--tp", "1,x"): "'x' is not a valid int",
    ("--gpu", "H100", "--slo", "ttft:p99<2s", "--max-num-seqs", ",".join(map(str, range(1, 1200)))): "more than 1000",
    ("no-such.yaml",): "no such scenario file",
    ("batch_cap_on_an_a10",): "a plan needs 'command: plan'",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_bad_input_is_one_line(arguments):
    result = run("plan", *arguments, *(SMALL if not arguments or arguments[0].startswith("-") else ()))
    assert result.code != 0
    assert not result.stdout
    assert WRONG[arguments] in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_conditions_use_their_limits():
    good, failed, tpot = parse_slo(["good>=90%,failed<=0.1 tpot:p50<=20ms"], {"ttft": 100.0})
    summary = {"request_goodput": 9.5, "duration": 10.0, "num_prompts": 100, "completed": 95, "failed": 5, "median_tpot_ms": 30.0}
    assert good.use(summary) == pytest.approx(0.5)
    assert failed.use(summary) == pytest.approx(0.5)
    assert tpot.use(summary) == pytest.approx(1.5)
    assert tpot.use({"median_tpot_ms": float("nan")}) == float("inf")
    with pytest.raises(UsageError, match="not a condition"):
        parse_slo(["tpot:p50<1.2.3ms"], {})


def test_the_module_exits_as_the_command_does():
    call = [sys.executable, "-m", "simctl", "plan", "--gpu", "L4", "--model", "Llama-3.1-70B", *SMALL[2:], "--slo", "tpot:p95<1s"]
    assert subprocess.run(call, capture_output=True, check=False).returncode == 1
