"""Draws and repeats run on all cores, and give what one core gives, to the last bit."""

import pytest

from sim import Deployment, Workload, simulate


@pytest.mark.parametrize("draws", [None, 6])
def test_any_number_of_cores_gives_the_same(monkeypatch, draws):
    workload = Workload.drawn(num_prompts=60, input_len=300, output_len=20, request_rate=30.0)
    monkeypatch.setattr("sim.study.simulate.worth", lambda tokens: True)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr("sim.workers.cores", lambda cores=cores: cores)
        found.append(simulate(Deployment.of("Llama-3.1-8B", "H100"), workload, draws=draws))
    one, three = found
    assert one.draws == three.draws
    assert one.repeats == three.repeats
    assert one.noise == three.noise
