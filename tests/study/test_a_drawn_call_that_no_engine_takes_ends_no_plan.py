"""Of a load that lasts, a call in thousands is longer than the context: it is turned away. Where many are, the question is refused."""

from dataclasses import replace

import numpy as np
import pytest

from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.study.deployment import Deployment
from sim.study.lasting import without_rare
from sim.study.run import planned
from sim.study.simulate_question import Simulate
from sim.workload.workload import Workload


@pytest.mark.parametrize(("long", "left"), [(0, 2000), (1, 1999), (2, 1998), (5, 2000)])
def test_rare_calls_are_left_out_and_common_ones_kept(long, left):
    drawn = Workload.drawn(2000, request_rate=10.0)
    pools = planned(Simulate(Deployment(get_model("Llama-3.1-8B"), get_gpu("H100")), drawn).study())
    prompts = np.array(drawn.trace.prompt_tokens)
    prompts[:long] = pools[0].config.max_model_len + 1
    trace = replace(drawn.trace, prompt_tokens=prompts)
    assert len(without_rare(trace, pools)) == left
