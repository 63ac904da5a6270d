"""Azure rows: arrivals in 100 ns ticks from the first row, over midnight and month ends, with or without a last line end."""

from pathlib import Path

import pytest

from sim.workload.azure import load_azure

DATA = Path(__file__).parents[1] / "data"


def test_small_file():
    trace = load_azure(DATA / "small_azure.csv")
    assert len(trace) == 60
    assert trace.arrival_s[0] == 0.0
    assert (trace.prompt_tokens[-1], trace.output_tokens[-1]) == (1343, 23)


def test_ticks_are_exact(tmp_path):
    file = tmp_path / "t.csv"
    rows = ["2023-12-31 23:59:59.9999999,5,1", "2024-01-01 00:00:00,6,2", "2024-01-01 00:00:00.0000001,7,3"]
    file.write_bytes(("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "\r\n".join(rows)).encode())
    trace = load_azure(file)
    assert trace.arrival_s.tolist() == [0.0, 1e-7, 2e-7]
    assert trace.prompt_tokens.tolist() == [5, 6, 7]


def test_rate_scale_divides_arrivals():
    trace = load_azure(DATA / "small_azure.csv")
    assert trace.rate_scaled(2.0).arrival_s == pytest.approx(trace.arrival_s / 2)
    assert trace.head(7).prompt_tokens.tolist() == trace.prompt_tokens[:7].tolist()
