"""A prompt of 100,000 tokens and one of 262,144, nothing of them in cache, take as long as servers took; no rate was learnt from these."""

from pathlib import Path

import pytest
import xarray as xr

from sim import Deployment, Workload, load_rates
from sim.rates.serving import as_served
from sim.study.simulate import Study, run_study

MEASURED = Path(__file__).parents[2] / "scenarios/data/measured/validation"


@pytest.mark.parametrize(
    ("file", "gpu", "tokens", "context"),
    [
        ("h200_served_llama3.1-8b_v0.23.nc", "H200", 100_000, 102_400),
        ("h200_served_llama3.1-8b_v0.26.nc", "H200", 100_000, 102_400),
        ("h100_served_qwen2.5-7b-14-layers_dense-128.nc", "H100", 262_144, 540_000),
    ],
)
def test_the_first_token_comes_when_it_came(file, gpu, tokens, context, tmp_path):
    with xr.open_dataset(MEASURED / file) as served:
        (tmp_path / "config.json").write_text(str(served.attrs["model_config"]))
        long = served.isel(request=served.prompt_tokens.values == tokens)
        first = long.isel(request=int(long.arrival_s.values.argmin()))  # later ones were sent before their turn
        seen_ms = 1e3 * float(first.first_token_s - first.arrival_s)
    deployment = Deployment.of(str(tmp_path / "config.json"), gpu, max_model_len=context)
    rates, host = as_served(load_rates(deployment, draws=1))
    figures = run_study(Study(deployment, Workload.from_arrays([0.0], [tokens], [2]), rates, host), draws=0, keep_iterations=False).summary
    print(f"{file}: seen {seen_ms:.0f} ms, predicted {figures['mean_ttft_ms']:.0f} ms")
    assert figures["mean_ttft_ms"] == pytest.approx(seen_ms, rel=0.1)
