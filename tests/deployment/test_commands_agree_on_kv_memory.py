"""What-if, simulate, plan, the start check and emitted arguments say the same KV pool of a deployment."""

from itertools import pairwise

import pytest

from sim import load_rates
from sim.closed_form.what_if import what_if
from sim.errors import SimctlError, UsageError
from sim.planning.servers import serve_arguments
from sim.specs.models import list_shapes
from sim.study.deployment import Deployment, plan_engine
from sim.study.fleet_spec import PoolSpec

RATES = load_rates(Deployment.of("Qwen2.5-7B", "H100"), draws=2)
BLOCKS = 4096  # tokens, more than any block holds
GPUS = [("A10", 1), ("H100", 1), ("H200", 2), ("B200", 8)]


def asked(name, gpu, tp, **limits):
    return Deployment.of(name, gpu, tp=tp, **limits)


@pytest.mark.parametrize(("name", "gpu", "tp"), [(name, *GPUS[i % len(GPUS)]) for i, name in enumerate(list_shapes())])
def test_the_longest_request_of_one_command_is_that_of_all(name, gpu, tp):
    try:
        d = asked(name, gpu, tp)
        config = plan_engine(d)[0]
    except (SimctlError, UsageError):
        pytest.skip("does not fit, or does not split")
    longest = config.max_model_len
    arguments = serve_arguments(PoolSpec(d))
    emitted = dict(pairwise(arguments))
    assert (int(emitted["--max-model-len"]), int(emitted["--max-num-seqs"])) == (longest, config.max_num_seqs)
    started = asked(name, gpu, tp, max_model_len=longest, max_num_seqs=config.max_num_seqs)
    assert plan_engine(started)[0].max_model_len == longest  # what is advised starts
    if longest == d.model.max_context:
        return
    with pytest.raises(SimctlError, match="does not hold one request"):
        plan_engine(asked(name, gpu, tp, max_model_len=longest + BLOCKS))
    fits, beyond = (sequences(d, context) for context in (longest, longest + BLOCKS))
    assert beyond < fits
    assert fits < 1.1 or longest < 1024  # of few blocks, the one that stays empty is many


def sequences(d, context):
    """Requests of `context` that what-if says fit; at any rates, which memory does not know."""
    options = what_if(d, context, ks=(1,), rates=RATES).options
    return next(o.n_max for o in options if o.policy.kind == "dense" and o.policy.placement == "hbm")
