"""A check finds what makes a server slow, or says that nothing does; what it cannot use is one line."""

import gzip
import json
import math
from dataclasses import replace

import pytest

from calibrate.logs.read import read_log
from calibrate.served.check import Check, served_of
from calibrate.served.host_fit import as_on
from calibrate.served.replay import replay
from sim.errors import UsageError
from sim.rates.host import Host
from sim.rates.posterior import rates_for
from sim.rates.serving import packaged_overhead
from sim.study.deployment import Deployment
from studies.checked_servers import checked
from tests.cli import run as simctl
from tests.logs.made_logs import RUN, as_bench_serve
from tests.served.made_runs import open_loop

IN_PROCESS, PRIOR = rates_for(RUN.gpu, RUN.precision, draws=200), packaged_overhead().elsewhere(None)
D = Deployment.of("Qwen2.5-7B", "H100")
API_S = {"request_s": PRIOR.request_s, "serial_s": 2 * PRIOR.serial_s, "prompt_token_s": PRIOR.prompt_token_s, "token_s": 2 * PRIOR.token_s}


def written(tmp_path, name, host, rate=8.0, count=80, **changes):
    """A result of `vllm bench serve` of a server on this host."""
    load = replace(open_loop("load", rate, count, 1), text=True)
    seen = replay(RUN, load, *as_on(host, IN_PROCESS, PRIOR))
    path = tmp_path / name
    path.write_text(json.dumps(as_bench_serve(replace(load, ttft_s=seen.ttft_s, e2el_s=seen.e2el_s), **changes)))
    return path


@pytest.mark.parametrize("server", [3, 4], ids=["clock", "prompts"])
def test_a_known_fault_is_found_with_its_factor(server):
    found = checked([server])
    assert [(each.right, each.inside) for each in found] == [(True, True)]


def test_a_slow_host_is_said_in_one_line_and_kept_for_other_commands(tmp_path):
    log, out = written(tmp_path, "log.json", Host(2.5, 2.0, api_s=API_S)), tmp_path / "host.json"
    answer = Check([log], D).answer()
    assert len(repr(Check([log], D))) <= 200
    assert "\n" not in repr(answer)
    assert len(repr(answer)) <= 200
    assert answer.verdict[:60] in repr(answer)
    found = simctl("check", str(log), "--gpu", "H100", "--model", "Qwen2.5-7B", "--out", str(out))
    assert found.code == 0
    verdict = " ".join(found.stdout.split("\n\n")[0].split())
    assert "slower than such a server should be: its host" in verdict
    assert Host.of(out).launch > 1.3


def test_a_gzipped_log_is_the_same_log(tmp_path):
    log = written(tmp_path, "log.json", Host())
    packed = tmp_path / "log.json.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert (read_log(packed).experiment.ttft_s == read_log(log).experiment.ttft_s).all()
    packed.write_bytes(gzip.compress(log.read_bytes())[:-30])
    with pytest.raises(UsageError, match="damaged gzip"):
        read_log(packed)


def test_a_log_of_another_model_or_nothing_is_one_line(tmp_path):
    other = written(tmp_path, "other.json", Host(), model_id="meta-llama/Llama-3.1-8B-Instruct")
    empty = tmp_path / "empty.json"
    empty.write_text(" \n")
    for log, says in ((other, "is of meta-llama/Llama-3.1-8B-Instruct, not of Qwen2.5-7B"), (empty, "an empty log")):
        found = simctl("check", str(log), "--gpu", "H100", "--model", "Qwen2.5-7B")
        assert (found.code, found.stderr) == (2, f"simctl: {log.name}: {says}\n")
    with pytest.raises(UsageError, match="needs --model and --gpu"):
        served_of([empty.rename(tmp_path / "x") and other], None, {})


def test_logs_of_two_servers_are_refused(tmp_path):
    logs = [written(tmp_path, f"{name}.json", Host(step=step), 4.0, 40) for name, step in (("slow", 3.0), ("fast", 1.0))]
    with pytest.raises(UsageError, match="two servers"):
        Check(logs, D).answer()


def test_a_throttled_clock_slows_what_computing_binds_alone():
    plain, slow = (PRIOR.elsewhere(Host(clock=clock, clock_sd=0.0)).applied(IN_PROCESS).point for clock in (1.0, 1.5))
    assert slow.linear_flops_per_s == pytest.approx(plain.linear_flops_per_s / 1.5)
    assert slow.beta == plain.beta
    host = Host(clock=1.5, clock_sd=0.1)
    assert json.loads(host.text())["clock"] == 1.5
    assert math.isclose(PRIOR.elsewhere(host).clock_sd, 0.1)
