"""Every shape the tuning run tries is right, and so would be timed."""

import numpy as np
import pytest

from kernels import timing, tune_shapes
from tests.kernels.caches import DEVICE


def test_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_shapes, "HEADS_KV", 1)
    monkeypatch.setattr(tune_shapes, "HEADS_Q", 7)
    calls, moved, refused = tune_shapes.selections(1, 128 * 150, DEVICE)
    assert moved == 150 * (2 * 128 + 4)
    assert list(calls) == list(tune_shapes.SELECT)
    names = ["chunk 128, 8 warps", "chunk 64, 2 warps, pick by 8"]
    assert [refused(name) for name in names] == ["", ""]


def test_a_shape_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(timing, "interleaved", lambda calls, *_, **__: {name: np.full(3, 2.0) for name in calls})
    rows = tune_shapes.measure("op", 1, 1, ({"a": [], "b": []}, 8, lambda name: "wrong" if name == "a" else ""), 2.0, 3)
    assert [(row["variant"], row["of_floor"]) for row in rows] == [("b", 2.0)]
    assert "op a: wrong" in capsys.readouterr().out


def test_gated_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_shapes, "HEADS_V", 2)
    monkeypatch.setattr(tune_shapes, "KEY_HEADS", 1)
    _, moved, refused = tune_shapes.updates(2, DEVICE)
    assert moved == 2 * 2 * 2 * 128 * 128 * 4
    assert [refused(name) for name in ("16 rows, 4 warps", "64 rows, 8 warps")] == ["", ""]
