"""Claims measured on our GPUs are computed from the measurement files: other step times, another verdict."""

import pytest

from studies.replication import measured


def test_steps_twice_as_long_halve_the_bandwidth(monkeypatch):
    plain = measured.open_measurement

    def slower(path, only=None):
        data = plain(path, only)
        return data.assign({name: 2 * data[name] for name in data if str(name).startswith(("step_s_median", "step_s_p"))})

    before = {claim.name: claim for claim in measured.brl07()}
    monkeypatch.setattr(measured, "open_measurement", slower)
    measured._decode.cache_clear()
    after = {claim.name: claim for claim in measured.brl07()}
    measured._decode.cache_clear()
    assert (before["BM06"].verdict, after["BM06"].verdict) == ("within", "differs")
    assert 2 * after["BM05"].low == pytest.approx(before["BM05"].low, rel=1e-3)
    assert before["BM01"].ours == after["BM01"].ours  # a ratio of two steps


def test_knees_agree_but_for_gemma():
    by_name = {claim.name: claim for claim in measured.tr164()}
    assert by_name["TM1"].verdict == "within"
    assert "Spearman 0.99" in by_name["TM1"].ours
    assert by_name["TM2"].verdict == "differs"  # an engine without torch.compile: docs/replication.md
