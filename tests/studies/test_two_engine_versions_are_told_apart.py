"""What differs between two versions of an engine on one machine: the time its kernels take does not, what its API server passes on does."""

import numpy as np
import pytest

from studies.engine_versions import VERSIONS, cells, held_back_s, measured, streamed_per_s


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(__file__.split("/tests/")[0])


def test_kernels_of_either_take_as_long_and_launching_does_not() -> None:
    files = {v: [measured(s, "llama3.1-8b", v) for s in ("engine-grid", "profile")] for v in VERSIONS}
    old, new = (cells(*files[v]) for v in VERSIONS)
    assert len(old) == len(new) == 23
    assert max(abs(new[label][2] / old[label][2] - 1) for label in old) < 0.025
    assert np.median([new[label][1] - old[label][1] for label in old if label.startswith("mixed")]) > 1.0


def test_tokens_pile_up_behind_the_engine_in_a_crowd_and_not_at_ten_requests_a_second() -> None:
    data = measured("served", "llama3.2-1b", "0.23")
    assert held_back_s(data, "larger crowd 512x3") > 2.0
    assert held_back_s(data, "open 10/s") < 0.05
    assert streamed_per_s(data, "crowd 256x3") == pytest.approx(streamed_per_s(data, "larger crowd 512x3"), rel=0.05)
