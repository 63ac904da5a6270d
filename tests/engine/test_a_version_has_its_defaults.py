"""An engine's version chooses what it takes unasked, and an answer for one that was not measured is wider and says so."""

import numpy as np
import pytest

from sim.cost.batch import decode_batch
from sim.cost.step_time import step_time_s
from sim.engine.iteration_cost import IterationCost
from sim.engine.overlap import NO_WORK
from sim.engine.registry import step_settings
from sim.engine.server_flags import read_flag
from sim.engine.step_clock import DECODE_PIECES
from sim.errors import UsageError
from sim.rates.load import load_rates, scope_notes
from sim.study.deployment import Deployment, plan_engine
from sim.ticks import TICK_S
from tests.price.shapes import iteration_of


@pytest.mark.parametrize(("version", "ahead", "share"), [("0.11.0", False, 0.9), ("0.14", True, 0.9), ("0.23.0", True, 0.92)])
def test_defaults_by_version(version, ahead, share):
    d = Deployment.of("Llama-3.1-8B", "H100", engine_version=version)
    assert plan_engine(d)[0].overlaps is ahead
    assert d.limits.memory_share == share


@pytest.mark.parametrize(
    ("more", "pieces"),
    [
        ({"engine_version": "0.7"}, 0.0),
        ({"engine_version": "0.10.2"}, DECODE_PIECES),
        ({"engine_version": "0.11"}, 0.0),
        ({"engine_version": "0.10", "options": {"decode_pieces": False}}, 0.0),
        ({"options": {"decode_pieces": True}}, DECODE_PIECES),
    ],
)
def test_decodes_of_versions_before_whole_graphs_launch_attention_layer_by_layer(more, pieces):
    d = Deployment.of("Llama-3.1-8B", "H100", **more)
    steps = step_settings(plan_engine(d)[0], NO_WORK)
    rates = load_rates(d, draws=1).point
    cost = IterationCost(d.model, d.precision, rates, gpu=d.gpu, **steps)(iteration_of([500] * 8)).ticks * TICK_S
    formula = step_time_s(d.work(decode_batch(d.model, 8.0, 500.0)._replace(pieces=pieces)), rates)
    assert cost == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ('{"cudagraph_mode": "PIECEWISE"}', {"options": {"decode_pieces": True}}),
        ('{"full_cuda_graph": true}', {"options": {"decode_pieces": False}}),
        ('{"cudagraph_mode": "NONE"}', {"enforce_eager": True}),
        ('{"custom_ops": ["all"]}', {}),
    ],
)
def test_a_servers_flags_say_how_graphs_are_captured(said, asked):
    options: dict[str, object] = {}
    read_flag("serve.sh", "vllm", "compilation-config", said, options)
    assert options == asked


def test_what_is_asked_for_wins():
    d = Deployment.of("Llama-3.1-8B", "H100", engine_version="0.11.0", gpu_memory_utilization=0.8, options={"async_scheduling": True})
    assert plan_engine(d)[0].overlaps
    assert d.limits.memory_share == 0.8


def test_an_old_version_is_less_certain():
    old, new = (Deployment.of("Llama-3.1-8B", "H100", engine_version=version) for version in ("0.11.0", "0.24.0"))
    shape = decode_batch(old.model, 8.0, 500.0)
    widths = [np.std(np.log(step_time_s(d.work(shape), load_rates(d).draws, np))) for d in (old, new)]
    assert widths[0] > widths[1] + 0.02
    assert any("vllm 0.11.0 was not measured" in note for note in scope_notes(old, load_rates(old)))
    assert not any("0.24" in note for note in scope_notes(new, load_rates(new)))


def test_no_version_is_refused():
    with pytest.raises(UsageError, match="engine_version"):
        Deployment.of("Llama-3.1-8B", "H100", engine_version="latest")
