"""vLLM before 0.32 runs a draft model from pieces of graphs, iteration after iteration; a served run says which version it was."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from calibrate.served.flags import read_flags
from calibrate.served.replay import replay
from calibrate.served.runs import read_served
from sim.engine.config import EngineConfig
from sim.errors import UsageError
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead

RUN = Path(str(files("scenarios"))) / "data/measured/validation/h200_served_llama3.1-8b_draft-model-k3.nc"
DRAFTS = '--speculative-config \'{"method": "draft_model", "model": "MODEL", "num_speculative_tokens": 3}\''


@pytest.fixture(scope="module")
def served():
    if not RUN.exists():
        pytest.skip("served runs are in a checkout only")
    return read_served(RUN)


def test_the_draft_model_is_the_last_part_of_its_name():
    limits = read_flags(DRAFTS.replace("MODEL", "/models/llama3.2-1b")).limits
    assert limits.draft is not None
    assert (limits.draft.name, limits.options["draft_tokens"]) == ("Llama-3.2-1B", 3)
    with pytest.raises(UsageError, match="unknown model"):
        read_flags(DRAFTS.replace("MODEL", "somebody/else"))


def test_a_run_follows_the_rules_of_its_version(served):
    assert served.limits.engine_version == "0.23"
    options = dict(served.limits.options)
    assert not EngineConfig("vllm", options=options, engine_version="0.23").overlaps
    assert EngineConfig("vllm", options=options, engine_version="0.32").overlaps
    assert EngineConfig("vllm", options=options | {"drafter": "eagle"}, engine_version="0.23").overlaps


def test_token_times_are_what_was_measured_by_the_pieces_alone(served):
    rates, overhead = load_rates(served.deployment), packaged_overhead()
    assert overhead is not None
    load = next(each for each in served.experiments if each.kind == "closed")

    def off(run):
        found = replay(run, load, overhead.applied(rates), overhead.host(rates), draws=8)
        return np.nanmedian(found.guess("e2el_s")) / np.nanmedian(load.e2el_s) - 1.0

    assert abs(off(served)) < 0.2  # 13 % when it was first priced so
    assert off(replace(served, limits=replace(served.limits, engine_version="0.32"))) < -0.3
