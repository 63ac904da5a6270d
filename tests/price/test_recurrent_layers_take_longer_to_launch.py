"""A recurrent layer takes a host longer to launch than attention: more outside graphs, and some where a graph holds the rest."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hw.engines.shapes import shape
from sim.cost.batch import mixed_batch
from sim.cost.mixer_work import DELTA_LAUNCHES, DELTA_PIECES, MAMBA2_LAUNCHES, MAMBA2_PIECES
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.rates.host import Host
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead
from sim.specs.gpus import get_gpu
from sim.specs.hf_config import spec_from_config
from sim.specs.model import Attention, DenseMlp, GatedDeltaNet, LayerGroup, ModelSpec
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment

VALIDATION = Path(__file__).parents[2] / "scenarios/data/measured/validation"
LAYERS = 6
PLAIN = ModelSpec("plain", 1024, 32_000, (LayerGroup(LAYERS, Attention(16, 4, 64), DenseMlp(4096)),), False, 8192)
MAMBA2 = get_model("Granite-4.0-H-Small").groups[0].mixer
OF = {GatedDeltaNet(4, 8, 64, 64): (DELTA_LAUNCHES, DELTA_PIECES), MAMBA2: (MAMBA2_LAUNCHES, MAMBA2_PIECES)}


def launched(model: ModelSpec, tokens: int) -> float:
    return iteration_work(model, mixed_batch(model, [], [(tokens, tokens, 1)]), Precision(), gpu=get_gpu("H100")).launch_layers


@pytest.mark.parametrize("mixer", OF, ids=lambda mixer: mixer.kind)
def test_more_is_launched_outside_graphs_and_in_pieces_of_them(mixer) -> None:
    hybrid, (outside, pieces) = replace(PLAIN, groups=(LayerGroup(LAYERS, mixer, DenseMlp(4096)),)), OF[mixer]
    assert launched(hybrid, 700) - launched(PLAIN, 700) == pytest.approx(LAYERS * outside)
    assert launched(hybrid, 300) - launched(PLAIN, 300) == pytest.approx(LAYERS * pieces)


def alone(name: str) -> np.ndarray:
    """[iteration, (new tokens, decodes, their mean context, seconds)] of prompts between iterations that only decode."""
    with xr.open_dataset(VALIDATION / f"h200_served_{name}.nc") as data:
        at, decodes, context = (data[each].values for each in ("collected_s", "decode_seqs", "decode_context_tokens"))
        new = np.bincount(data["chunk_iteration"].values, data["chunk_new_tokens"].values, len(at))
    beside = [i for i in range(3, len(at) - 2) if new[i] and not new[[i - 3, i - 2, i - 1, i + 1, i + 2]].any()]
    at_work = [i for i in beside if decodes[i - 3 : i + 3].all()]
    # launching it delays what the host collects of the one before: both, less two that only decode
    return np.array([(new[i], decodes[i], context[i] / decodes[i], at[i + 1] - 3 * at[i - 2] + 2 * at[i - 3]) for i in at_work])


@pytest.mark.skipif(not VALIDATION.is_dir(), reason="raw runs come with the source tree")
@pytest.mark.parametrize(("name", "worst"), [("nemotron-3-nano-30b-a3b", 0.15), ("granite-4.0-h-small", 0.15)])
def test_iterations_with_a_prompt_take_as_long_as_measured_where_the_host_is_known(name: str, worst: float) -> None:
    """The first taught the two numbers, the second did not. Without them both come out at less than half."""
    d = Deployment(spec_from_config(shape(name), name, "a shape"), get_gpu("H200"))
    overhead = packaged_overhead()
    assert overhead is not None
    rates = overhead.elsewhere(Host.of(VALIDATION / "h200_host_8.nc")).applied(load_rates(d)).point
    rows = alone(name)
    for low, high in ((1, 300), (300, 513), (513, 800)):
        new, decodes, context, seconds = np.median(rows[(rows[:, 0] >= low) & (rows[:, 0] < high)], axis=0)
        shape_of = mixed_batch(d.model, [context] * round(decodes), [(new, new, 1.0)])
        work = iteration_work(d.model, shape_of, d.precision, gpu=d.gpu)
        assert step_time_s(work, rates) == pytest.approx(seconds, rel=worst)
        mamba2 = sum(group.count for group in d.model.groups if group.mixer == MAMBA2 or group.mixer.kind == "recurrent")
        fewer = MAMBA2_LAUNCHES if new > 512 else MAMBA2_PIECES
        assert step_time_s(work._replace(launch_layers=work.launch_layers - mamba2 * fewer), rates) < seconds / 2
