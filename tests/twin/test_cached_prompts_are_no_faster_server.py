"""A server whose prompts are found in its prefix cache is simulated so: it is not taken for a faster one."""

import numpy as np

from sim.rates.source import RateSource
from sim.slo import parse_slo
from sim.study.deployment import Deployment
from sim.study.simulate import requests_of
from sim.study.studied import Study
from sim.twin.curve import latency_curve
from sim.twin.prometheus import read_snapshot
from sim.twin.twin import Twin
from sim.workload.workload import Workload
from tests.twin.scripted_servers import ScriptedServer

LONG, SHARED = 6000, 0.8


def test_cached_prompts_are_no_faster_server():
    deployment = Deployment.of("Llama-3.1-8B", "H100", max_num_seqs=64)
    rates, host = RateSource().of(deployment, draws=2)
    load = Workload.drawn(600, request_rate=4.0, prefix_len=int(LONG * SHARED), input_len=LONG - int(LONG * SHARED), output_len=60)
    requests = next(requests_of(Study(deployment, load, rates, host, {}), [None])).requests
    times = [np.asarray(requests[f"{name}_s"], float) for name in ("arrival", "scheduled", "first_token", "finish")]
    server = ScriptedServer(*times, *(np.asarray(requests[f"{name}_tokens"], float) for name in ("prompt", "output")))

    def first_token(cached: bool):
        def curve_for(prompt, output, share):
            return latency_curve(deployment, rates, host, prompt, output, 0.0, share)

        twin = Twin(["http://a"], curve_for, parse_slo(["ttft:p95<1s"], {}))
        for at_s in range(0, 135, 15):
            looked = server.prompt[server.first_s <= at_s].sum()
            hits = f"vllm:prefix_cache_hits_total {looked * SHARED}\nvllm:prefix_cache_queries_total {looked}\n" if cached else ""
            report = twin.observe(float(at_s), [read_snapshot(server.metrics(at_s) + "\n" + hits, float(at_s))])
        return report, twin.servers[0].first_token.median

    told, with_hits = first_token(True)
    _, without = first_token(False)
    assert told.cached_share > 0.79
    assert told.slo[0].holds
    assert abs(with_hits - 1.0) < 0.15
    assert without < 0.6  # prompts of 6,000 tokens that take so little look like a faster server
