"""What a server does for users at once: the closed form beside simulated closed loops, Little's law, and fixes that hold what they say."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Deployment, WhatIf, Workload, simulate
from sim.closed_form.fixes import fixes, users_that_fit
from sim.closed_form.serving_at_context import Times
from sim.rates.source import RateSource
from tests.cli import run


@pytest.mark.parametrize(("model", "gpu", "context", "users"), [("Qwen3-8B", "H100", 2048, 8), ("Llama-3.1-8B", "L4", 4096, 3)])
def test_answers_take_as_long_as_in_a_simulated_closed_loop(model, gpu, context, users):
    """The start of a run is a burst, so the closed form is compared by throughput, which that hardly moves."""
    d = Deployment.of(model, gpu)
    question = WhatIf(d, context, (users,), output_tokens=200)
    load = next(load for load in question.serving().loads if load.users == users)
    loop = Workload.drawn(12 * users, input_len=context - 200, output_len=200, max_concurrency=users)
    assert load.total_tokens_per_s == pytest.approx(simulate(d, loop, draws=0).summary["output_throughput"], rel=0.04)


def test_a_first_token_alone_comes_as_in_a_simulation():
    found = WhatIf(Deployment.of("Qwen3-32B", "H100"), 8192).serving()
    alone = simulate(found.question.deployment, Workload.drawn(1, input_len=8064, output_len=128), draws=0)
    assert 1e3 * found.ttft_s.point == pytest.approx(alone.summary["mean_ttft_ms"], rel=0.01)


@settings(max_examples=40, deadline=None)
@given(users=st.integers(1, 3000), think_s=st.floats(0.0, 300.0))
def test_users_who_think_obey_littles_law(users, think_s):
    d = Deployment.of("Qwen3-8B", "H100")
    times = Times.of(d, 1000, 100, *RateSource().of(d, 20))
    at_once = times.at_once(users, think_s)
    below, above = (times.answer_s(at_once + side) for side in (-1e-6, 1e-6))  # steps jump where a GEMM's rows fill another wave
    assert users * below / (below + think_s) >= at_once - 1e-5
    assert at_once == users or users * above / (above + think_s) <= at_once + 1e-5


def test_so_many_servers_and_no_fewer_have_room_for_users_who_think():
    question = WhatIf(Deployment.of("Llama-3.1-8B", "H100"), 8192, users=600, think_s=30.0)
    fix = next(fix for fix in question.serving().fixes if fix.change.endswith("such servers"))
    servers = int(fix.change.split()[0])
    each = [WhatIf(question.deployment, 8192, users=-(-600 // count), think_s=30.0).serving() for count in (servers, servers - 1)]
    assert [found.wanted > found.fit for found in each] == [False, True]


@pytest.mark.parametrize("asked", [("Qwen3-32B", "H100", 8192, 20), ("Qwen3-32B", "L40S", 8192, 1), ("Llama-3.1-8B", "A10", 4096, 40)])
def test_a_fix_holds_the_users_that_it_says(asked):
    model, gpu, context, users = asked
    found = WhatIf(Deployment.of(model, gpu), context, (users,)).serving()
    assert found.fit < users
    prices = [fix.usd_per_hour for fix in found.fixes]
    assert prices == sorted(prices)
    for fix in found.fixes:
        words = fix.change.split()
        flags = dict(zip(words[::2], words[1::2], strict=False)) if words[0].startswith("--") else {}
        given = {"gpu": gpu, "tp": 1} | {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items()}
        numbers = {"tp": int, "gpu_memory_utilization": float}
        given = {name: numbers.get(name, str)(value) for name, value in given.items()}
        length = int(words[2]) if words[0] == "contexts" else context
        servers = int(words[0]) if words[1:] == ["such", "servers"] else 1
        assert servers * users_that_fit(Deployment.of(model, **given), length) == fix.fit >= users


def test_users_who_think_are_a_rate_and_others_a_closed_loop():
    asked = ("--gpu", "H100", "--model", "Qwen3-8B", "--users", "60", "--num-prompts", "60", "--draws", "0", "--json")
    code, out, err = run("simulate", *asked, "--think-time", "30s")
    rate = json.loads(out)["provenance"]["request_rate"]
    assert code == 0
    assert f"{rate:.4g} requests/s (Little's law)" in err
    assert 60 / 32 < rate < 2
    assert json.loads(run("simulate", *asked).stdout)["provenance"]["max_concurrency"] == 60


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("simulate", "--gpu", "H100", "--users", "9", "--request-rate", "2"), "leave out --request-rate"),
        (("simulate", "--gpu", "H100", "--users", "9", "--turns", "3"), "leave out --turns"),
        (("what-if", "--ctx", "8K", "--gpu", "H100", "--think-time", "5"), "give --users N"),
        (("what-if", "--ctx", "8K", "--gpu", "H100", "--map", "hbm", "--users", "5"), "without --explain, --users"),
        (("what-if", "--ctx", "8K", "--gpu", "H100", "--users", "5", "--think-time", "soon"), "not a time"),
    ],
)
def test_users_and_what_contradicts_them_are_one_line(asked, why):
    code, out, err = run(*asked)
    assert (code, out) == (2, "")
    assert why in err
    assert len(err.strip().splitlines()) == 1


def test_weights_are_made_lighter_by_as_little_as_is_enough():
    def named(model, gpu, users, dtype=None):
        d = Deployment.of(model, gpu, dtype=dtype)
        return [fix.change for fix in fixes(d, 8192, users, users_that_fit(d, 8192), 1) if fix.change.startswith("--dtype")]

    assert named("Qwen3-32B", "H100", 12) == ["--dtype fp8"]
    assert named("Qwen3-32B", "H100", 20) == ["--dtype int4"]
    assert named("Qwen3-32B", "H100", 30) == ["--dtype fp8 --kv-dtype fp8"]
    assert named("Qwen3-32B", "H100", 200) == ["--dtype fp8 --kv-dtype fp8 --tp 4"]
    assert named("Qwen3-32B", "H100", 60, "fp8") == []


def test_a_context_shorter_than_half_is_no_fix_of_the_question():
    found = WhatIf(Deployment.of("Qwen3-32B", "H100"), 32768, users=50).serving()
    assert not [fix.change for fix in found.fixes if fix.change.startswith("contexts")]
    nearly = WhatIf(Deployment.of("Qwen3-32B", "H100"), 8192, users=5).serving()
    assert [fix.change for fix in nearly.fixes if fix.change.startswith("contexts")] == ["contexts of 6144 tokens"]


def test_prompts_of_others_bind_where_they_take_longer_than_a_step():
    alone, full = WhatIf(Deployment.of("Llama-3.1-8B", "H100"), 65536, (1, 4), output_tokens=64).serving().loads[:2]
    assert (alone.binds, full.binds) == ("linear layers", "prompts of others")
