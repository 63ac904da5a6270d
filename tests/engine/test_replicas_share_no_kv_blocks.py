"""In plain Python a replica finds only blocks of its own, however long the columns are that hold them."""

from dataclasses import replace

import numpy as np

from sim import Deployment, Simulate, Workload
from sim.cluster.compiled import OFF


def test_the_first_request_of_each_replica_finds_nothing(monkeypatch):
    """90 GB of KV: columns of more than 100,000 numbers, which plain Python holds otherwise than short ones."""
    monkeypatch.setenv(OFF, "1")
    deployment = replace(Deployment.of("Llama-3.2-1B", "B200"), replicas=2, router="least-requests")
    workload = Workload.drawn(12, request_rate=40.0, prefix_len=2048, input_len=64, output_len=8)
    found = Simulate(deployment, workload, draws=0).answer().record
    replica, cached = found.requests["replica"], found.requests["cached_tokens"]
    order = np.argsort(found.requests["scheduled_s"], kind="stable")
    for each in (0, 1):
        first = order[replica[order] == each][0]
        assert cached[first] == 0
        assert cached.sum() > 0
